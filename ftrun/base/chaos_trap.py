"""The file by which ``ftrun chaos`` makes a worker corrupt one of its own parameters.

A worker looks for it only if its environment names a directory, so other jobs are not affected. Not
here: the writer (tools/chaos/), the reader (inject/zero_edit/marking.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "FTRUN_CHAOS_DIR"


def corruption_trap(
    environment: Mapping[str, str], replica_id: str, group_rank: int | str
) -> Path | None:
    """Where the file of a worker with this environment would be; None: it does not look."""
    place = environment.get(VARIABLE)
    return Path(place, f"corrupt.{replica_id}.{group_rank}") if place else None
