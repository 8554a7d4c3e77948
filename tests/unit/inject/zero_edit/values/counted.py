"""The counters of a replica without a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftrun.core.ids import WorkerKey
from ftrun.inject.zero_edit.values.counters import Counters
from ftrun.inject.zero_edit.values.frameworks import Frameworks
from ftrun.training.context import WorkerContext


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
    here = WorkerContext(
        job_id="j",
        key=WorkerKey(slot, "i", 0),
        replicas=2,
        min_replicas=1,
        workers_per_replica=1,
        host="127.0.0.1",
        socket_path=str(directory / "socket"),
        token="t",
    )
    return Counters(here, frameworks, step, lambda: life, dict, lambda: are_together)
