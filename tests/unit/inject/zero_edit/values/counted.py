"""The counters of a replica without a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftrun.inject.zero_edit.values.counters import FILE, Counters
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
    path = directory / FILE.format(replica_id=slot, group_rank=0)
    return Counters(path, frameworks, step, lambda: life, dict, lambda: are_together)
