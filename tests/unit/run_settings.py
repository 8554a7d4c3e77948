"""RunSettings as made by ``ftrun run SCRIPT``, with the defaults of its options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ftrun.config.layers import Stated, gather
from ftrun.config.settings import RunSettings, resolve


def stated(environ: dict[str, str] | None = None, **flags: Any) -> dict[str, Stated]:
    """Every option: those given by name as flags, the environment, and defaults."""
    texts = {name: x if isinstance(x, bool | None) else str(x) for name, x in flags.items()}
    return gather(texts, environ or {}, None)


def resolved(*words: str, gpus: int = 0, **flags: Any) -> RunSettings:
    """The settings of a command with these words and flags."""
    return resolve(words or ("t.py",), stated(**flags), gpus)


def run_settings(**changes: Any) -> RunSettings:
    """A job called ``job``, with these fields changed."""
    return replace(resolved(job_id="job"), **changes)
