"""RunSettings as ``ftrun run SCRIPT`` makes them, with the defaults of its own options."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from ftrun import commands
from ftrun.config import RunSettings, resolve


def options(**given: Any) -> dict[str, Any]:
    """The parameters of ``ftrun run`` by name: those given, and the defaults of the others."""
    parameters = inspect.signature(commands.run).parameters.values()
    return {**{parameter.name: parameter.default for parameter in parameters}, **given}


def run_settings(**changes: Any) -> RunSettings:
    """A job called ``job``, with these fields changed."""
    return replace(resolve(options(script=["t.py"], job_id="job")), **changes)
