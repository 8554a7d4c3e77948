"""The progress of a group with memory snapshots, and the cost of a loss at present.

Both are computed from words that its workers write in any case, so no worker waits for this. Not
here: where a lost worker's replacement begins (core/replay/settling.py), the display
(tools/status/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftrun.core.activity import Activity
from ftrun.core.messages import Progress, Resumption
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import SOUND
from ftrun.core.replay.settling import begin
from ftrun.snapshots.area import NONE
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory

LOOKS = 2
"""The number of looks in a row: the words are read one by one while workers write them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A state of all workers after ``step`` steps, and when it was known to exist."""

    step: int
    at: float

    def resumption(self, now: float) -> Resumption:
        return Resumption(self.step, max(0.0, now - self.at))


class AtRisk:
    """The state of one group. Call ``look`` first.

    Attributes:
        step: the number of steps made.
        newest: the newest step of which all workers have a snapshot; None: there is none.
        fall: why deaths cannot be mended from now on; None: they can.
    """

    def __init__(self, memory: GroupMemory, now: float) -> None:
        self._memory = memory
        self._start = Stored(0, now)
        self.newest: Stored | None = None
        self.step = 0
        self.fall: Fall | None = None
        self._stepped_at, self._step_s = now, 0.0
        self._gaps = 0

    @property
    def has_gap(self) -> bool:
        """Whether a lost worker's step cannot be repeated until the next snapshot."""
        return self._gaps >= LOOKS

    def age_s(self, now: float) -> float:
        """The time since the group's start, in seconds."""
        return now - self._start.at

    def look(self, now: float) -> None:
        board, step = self._memory.board, max(self._memory.board.all(Word.REACHED))
        if step > self.step:
            taken = (now - self._stepped_at) / (step - self.step)
            self._step_s = taken if self.step else 0.0  # the first step includes the set-up
        if step != self.step:
            self.step, self._stepped_at = step, now
        newest = min(board.read(rank, Word.NEWEST) for rank in self._memory.here)
        if newest == NONE:
            self.newest = None
        elif self.newest is None or newest != self.newest.step:
            self.newest = Stored(newest, now)
        falls = [x for x in board.all(Word.FALL) if x and x not in SOUND]
        self.fall = Fall(falls[0]) if falls else None
        self._gaps = self._gaps + 1 if self._lacks_results() else 0

    def _lacks_results(self) -> bool:
        if self.newest is None:
            return False
        board, areas, here = self._memory.board, self._memory.area, self._memory.here
        full, done = board.all(Word.FULL), [*map(board.done_of, here)]  # others are nearly as far
        return any(
            begin(areas(rank).generations(), areas(rank).logs(), done, own, full)
            in (Fall.LOG_FULL, Fall.TOO_NEW)
            for own, rank in enumerate(here)
        )

    def of_replicas(self, progress: Progress, now: float) -> Progress:
        """The progress of one of several replicas, with what a loss would cost the job.

        They are all on this node, and no snapshot of them is on a disk or on another node.
        """
        start = self._start.resumption(now)
        worker = Resumption(progress.step, 0.0)
        return replace(progress, worker_lost=worker, node_lost=start, job_lost=start)

    def progress(
        self,
        now: float,
        elsewhere: Stored | None,
        on_disk: Stored | None,
        scalars: tuple[tuple[str, float], ...] = (),
    ) -> Progress:
        """The progress for the status.

        ``elsewhere``: the newest state on another node; ``on_disk``: the newest state in
        ``--snapshot``.
        """
        job = on_disk or self._start
        node = max(elsewhere or job, job, key=lambda stored: stored.step)
        worker = Stored(self.step, now)
        if self.newest is None or self.fall is not None:
            worker = job
        elif self.has_gap:
            worker = self.newest
        return Progress(
            self.step,
            0,
            Activity.APART,
            scalars,
            step_s=self._step_s or None,
            worker_lost=worker.resumption(now),
            node_lost=node.resumption(now),
            job_lost=job.resumption(now),
        )
