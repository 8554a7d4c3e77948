"""The progress of a replica group, from the reports of its workers.

The lighthouse gets the progress of the worker with group_rank 0. Three facts are combined over the
group, because they differ between workers. A step's time and own part are those of the slowest
worker (the others wait for it in the group's vote). The bytes of a heal are the sum. A group waits
in a collective of the script only if all its workers wait. Pure; one entry for each living worker.
Not here: when progress is sent (agent/link.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ftrun.core.activity import IN_A_WAIT, Activity
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import HealProgress, Progress


class GroupProgress:
    """The last Progress of each worker of a node."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, dict[int, Progress]]] = {}

    def note(self, key: WorkerKey, progress: Progress) -> None:
        """A worker has reported. Reports of another incarnation of its replica are dropped."""
        incarnation, workers = self._last.get(key.replica_id, ("", {}))
        if incarnation != key.incarnation:
            workers = {}
            self._last[key.replica_id] = key.incarnation, workers
        workers[key.group_rank] = progress

    def whole(self, replica_id: str, incarnation: str, first: Progress) -> Progress:
        """``first``, the progress of group_rank 0, with the facts of the whole group."""
        known, workers = self._last.get(replica_id, ("", {}))
        if known != incarnation or len(workers) < 2:
            return first
        others = [found for rank, found in workers.items() if rank]
        heals = [found.heal for found in (first, *others) if found.heal is not None]
        is_busy = any(found.phase not in IN_A_WAIT for found in others)
        is_alone = first.phase is Activity.COLLECTIVE and is_busy
        return replace(
            first,
            phase=Activity.OUTSIDE if is_alone else first.phase,
            step_s=_longest(found.step_s for found in (first, *others)),
            own_s=_longest(found.own_s for found in (first, *others)),
            heal=_sum(heals) if first.heal is not None else None,
        )


def _longest(times: Iterable[float | None]) -> float | None:
    return max((x for x in times if x is not None), default=None)


def _sum(heals: list[HealProgress]) -> HealProgress:
    totals = [heal.total_bytes for heal in heals]
    known = [total for total in totals if total is not None]
    total = sum(known) if len(known) == len(totals) else None
    return HealProgress(sum(heal.done_bytes for heal in heals), total)
