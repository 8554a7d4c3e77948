"""When the states that a group has in its agents' memory are written to disk. Pure.

No worker takes part, so the agent can write whenever all have the state of one step. There is one
writer. Its schedule is the one that replicas have (snapshots.py); it begins with the first state.

| in memory, all workers have            | result                                                 |
|----------------------------------------|--------------------------------------------------------|
| no state of one step, or one that may  | nothing                                                |
| be incomplete (``is_sound``)           |                                                        |
| no newer one than the newest on disk   | nothing, but a write that takes too long is abandoned  |
| a newer one                            | the schedule's decision; SKIP if it is to be reported  |
| a newer one, and the job ends before   | TAKE (``at_end``)                                      |
| its script                             |                                                        |

Not here: how all nodes of a group come to hold one step (core/replay/copying.py), each node's part
in a snapshot (core/replay/parts.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import SOUND
from ftrun.core.worker.snapshots import Decision, SkipNotices, SnapshotCounts, SnapshotSchedule


@dataclass(frozen=True, slots=True)
class InMemory:
    """The states in the memory of a group's agents.

    ``step``: the newest step of which they hold each worker's state; None: there is none.
    ``is_over``: all workers have reached the end of their script.
    """

    step: int | None
    is_sound: bool = True
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The report to the user about a snapshot that is whole.

    ``is_first``: the first one of this agent. ``skipped``: it ends a series of skipped ones that
    was reported, and this is the number of skipped ones in all; otherwise 0.
    """

    is_first: bool
    skipped: int


def why_unsound(falls: Iterable[int]) -> Fall | None:
    """Why states in memory may be incomplete, by the workers' falls; None: they are complete."""
    return next((Fall(x) for x in falls if x and Fall(x) not in SOUND), None)


class GroupSnapshots:
    """The snapshots of one group, over all its restarts.

    ``newest``: the step of the newest whole snapshot; None: there is none.
    """

    def __init__(self, every_s: float) -> None:
        self.newest: int | None = None
        self._every_s = every_s
        self._schedule: SnapshotSchedule | None = None
        self._skips = SkipNotices()
        self._has_told = False

    @property
    def counts(self) -> SnapshotCounts:
        """The counts since the agent's start."""
        return SnapshotCounts() if self._schedule is None else self._schedule.counts

    def begins_from(self, step: int) -> None:
        """The group resumes from the snapshot of this step."""
        self.newest = step

    def look(self, seen: InMemory, now: float) -> Decision:
        """What to do now."""
        if seen.step is None or not seen.is_sound:
            return Decision.NOTHING
        schedule = self.schedule(now)
        if not self._is_newer(seen.step) and not schedule.is_writing:
            return Decision.NOTHING
        decision = schedule.at_boundary(True, now, seen.step)
        if decision is Decision.SKIP and not self._skips.skipped(schedule.counts.skipped):
            return Decision.NOTHING
        return decision

    def at_end(self, seen: InMemory, now: float) -> bool:
        """The job ends.

        Returns whether one more snapshot is taken; it is not reported as the first one.
        """
        if seen.step is None or not seen.is_sound or seen.is_over or not self._is_newer(seen.step):
            return False
        self.schedule(now)
        self._has_told = True
        return True

    def written(self, step: int, now: float) -> Written:
        """The snapshot under way is whole."""
        schedule = self.schedule(now)
        schedule.written()
        self.newest = step
        is_first, self._has_told = not self._has_told, True
        skipped = schedule.counts.skipped if self._skips.written() and not is_first else 0
        return Written(is_first, skipped)

    def _is_newer(self, step: int) -> bool:
        return self.newest is None or step > self.newest

    def schedule(self, now: float) -> SnapshotSchedule:
        """The schedule: when a write is due, and how long it may take.

        It begins with the first state.
        """
        if self._schedule is None:
            self._schedule = SnapshotSchedule(self._every_s, now)
        return self._schedule
