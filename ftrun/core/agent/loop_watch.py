"""Finds a worker whose loop stands still, by the time that its own steps have taken.

This watch is enabled by ``--hang-factor F``. It needs no peers, so it also works for scripts
without a Manager and for a job of one replica. A worker's beats are its new steps, its optimizer's
steps if it has no Manager, and its calls of ``ftrun.heartbeat()``. Once ``STEPS_MIN`` intervals
between beats are known, the next one may take ``F`` times the usual one, at least ``LEAST_S`` and
at least twice the longest one so far. Then the loop stands still.

A worker is not watched while it starts, heals, waits for peers or a quorum, or is in an announced
pause. An agent that was stopped itself sees old beats, so a second check decides. Not here: the
consequences (hangs.py), a silent interpreter (hang_watch.py), the peers' view
(core/lighthouse/standstill.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ftrun.core.activity import Activity
from ftrun.core.messages import Progress
from ftrun.core.step_times import StepTimes

LEAST_S = 10.0
SECOND_LOOK_S = 1.0
GOES_ON_BY_ITSELF = frozenset({Activity.STEP, Activity.OUTSIDE})


class LoopWatch:
    """The loops of one incarnation's workers, by group_rank. ``factor`` 0: none is watched."""

    def __init__(self, factor: float, least_s: float = LEAST_S) -> None:
        self._factor = factor
        self._least_s = least_s
        self._loops: dict[int, _Loop] = {}

    def progress(self, rank: int, progress: Progress, now: float) -> None:
        """A worker with a Manager has reported its step and its activity."""
        if not self._factor:
            return
        loop = self._loop(rank)
        if progress.phase in GOES_ON_BY_ITSELF:
            loop.at_step(progress.step, progress.beats, now)
        else:
            loop.rests(None)

    def beat(self, rank: int, now: float) -> None:
        """The loop of a worker without a Manager has made progress."""
        if self._factor:
            loop = self._loop(rank)
            loop.at_step(loop.steps + 1, 0, now)

    def paused(self, rank: int, limit_s: float, now: float) -> None:
        """A worker without a Manager has announced a pause."""
        if self._factor:
            self._loop(rank).rests(now + limit_s)

    def rest(self) -> None:
        """All workers wait for one that is replaced, until they make progress."""
        for loop in self._loops.values():
            loop.rests(None)

    def gone(self, rank: int) -> None:
        """A worker has ended, or left."""
        self._loops.pop(rank, None)

    def standing(self, now: float) -> tuple[int, str] | None:
        """A worker whose loop stands still, and the reason as text; None if there is none."""
        for rank, loop in self._loops.items():
            due_at = loop.due_at(self._factor, self._least_s)
            if due_at is None or now < due_at:
                continue
            if loop.look_at is None:
                loop.look_at = now + SECOND_LOOK_S
            elif now >= loop.look_at:
                stands_s = now - loop.last_at
                text = (
                    f"hangs: its loop has stood still for {stands_s:.0f} s, and a step usually "
                    f"takes {loop.times.median:.2g} s"
                )
                return rank, text
        return None

    def deadlines(self) -> Iterator[float]:
        for loop in self._loops.values():
            due_at = loop.due_at(self._factor, self._least_s)
            if due_at is not None:
                yield max(due_at, loop.look_at or 0.0)

    def _loop(self, rank: int) -> _Loop:
        return self._loops.setdefault(rank, _Loop())


@dataclass(slots=True)
class _Loop:
    """One worker's loop. ``rests_until``: it is not watched until then.

    ``steps``, ``beats``: the numbers so far. ``look_at``: when to check this standstill a second
    time.
    """

    times: StepTimes = field(default_factory=StepTimes)
    steps: int = -1
    beats: int = 0
    last_at: float = 0.0
    is_resting: bool = True
    rests_until: float | None = None
    look_at: float | None = None

    def at_step(self, step: int, beats: int, now: float) -> None:
        """The worker reports this step, and its number of heartbeats within steps."""
        has_rested = self.is_resting
        if has_rested or step != self.steps:
            self.times.reached(step, now)
        if has_rested or (step, beats) != (self.steps, self.beats):
            self.last_at, self.look_at = now, None
        self.steps, self.beats = step, beats
        self.is_resting, self.rests_until = False, None

    def rests(self, until: float | None) -> None:
        """The worker does something other than a step, until then at the latest; None: until it
        reports.
        """
        self.times.skip()
        self.is_resting, self.rests_until, self.look_at = True, until, None

    def due_at(self, factor: float, least_s: float) -> float | None:
        """The deadline of its next beat; None: it is not watched."""
        limit_s = self.times.limit_s(factor, least_s)
        if limit_s is None or (self.is_resting and self.rests_until is None):
            return None
        if self.rests_until is not None:
            return self.rests_until + limit_s
        return self.last_at + limit_s
