"""The counters of a replica without a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ftrun.inject.zero_edit.values.counters import Counters
from ftrun.inject.zero_edit.values.frameworks import Frameworks


def counters_of(
    frameworks: Frameworks,
    directory: Path = Path("/nowhere"),
    step: Callable[[], int] = lambda: 0,
    life: str = "",
    slot: str = "0",
    *,
    are_together: bool = True,
) -> Counters:
    """Of slot ``slot``, whose files are in ``directory``."""
    script: Any = SimpleNamespace(
        own=SimpleNamespace(leave=lambda step, *, compares: None),
        frameworks=frameworks,
        manager=lambda: SimpleNamespace(current_step=step),
        life=lambda: life,
        is_in_place=False,
        world=SimpleNamespace(given=SimpleNamespace(encoded=dict)),
        are_together=are_together,
        file=lambda name: directory / name.format(replica_id=slot, group_rank=0),
    )
    return Counters(script)
