"""When this worker takes a snapshot of the job's state. Pure; asked at the boundaries of steps.

All members of a quorum begin a step with bitwise equal states (S1), so one of them writes for all:
the *writer* is the first contributor to the step under way. All members compute that by themselves.
A new quorum may change the writer. A new writer does not know what its predecessor has finished, so
it looks into the directory before it writes.

| at a boundary           | it is idle  | it looks, or writes                                |
|-------------------------|-------------|----------------------------------------------------|
| not the writer          | nothing     | nothing: what is under way continues               |
| has become the writer   | LOOK        | nothing: it looks when that is done                |
| half an interval before | PREPARE,    | nothing                                            |
| the first one is due    | once        |                                                    |
| one is due              | TAKE        | SKIP, once an interval; if it has looked for less  |
|                         |             | than an interval, nothing                          |
| a write is over a limit |             | ABANDON                                            |

A kill of everything loses at most one interval and the time of one write. A snapshot is due one
interval after the last one was *begun*, by any writer, and at once if it was skipped because the
last one was still being written. After a failed one the next is due at its usual time. A writer
that is asked to leave takes a last one.

If a replica has several workers, all of them copy at one boundary, each its own part. Their clocks
differ, so the first of them, the *lead*, has the schedule above, and the vote that ends each step
(training/vote.py) carries one more bit: TAKE comes at the boundary after a vote, and nowhere else.

| in the vote of a step   | its bit is true if                                               |
|-------------------------|------------------------------------------------------------------|
| the lead                | it was the writer when the step began; it is idle; one is due    |
| each other worker       | it is idle                                                       |

If the bit is true of all and the step is committed, all TAKE when the next step begins, even if the
writer has changed: none of them reads a clock, or a quorum that may have changed. If no snapshot
can be taken at that boundary, the bit is void, and the next vote carries it again. While another
worker still prepares its memory, or writes its part of a failed snapshot, the lead asks in each
vote. After an interval of that it SKIPs, which is reported, and keeps asking. The others WARM their
writing processes when the replica has become the writer, as a lead does when it LOOKs.

Not here: what is written and where (snapshots/), the copy (training/snapshots.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

INTERVALS_MAX = 10
LIMIT_MIN_S = 600.0
"""A write may take ten intervals, and ten minutes in any case, before it is abandoned."""


class Decision(Enum):
    """An action of the shell."""

    NOTHING = "nothing"
    LOOK = "look"
    WARM = "warm"
    PREPARE = "prepare"
    TAKE = "take"
    SKIP = "skip"
    ABANDON = "abandon"


@dataclass(slots=True)
class SnapshotCounts:
    """Since this worker's start. ``skipped``: because the one before was still being written."""

    written: int = 0
    skipped: int = 0
    failed: int = 0


class SnapshotSchedule:
    """The decisions of one worker.

    Args:
        every_s: the interval.
        now: when this worker begins to train.
        is_late: its peers have trained before it, so that it is unknown when one is due.
        is_several: its replica has more workers, and this one is their lead.
    """

    def __init__(
        self, every_s: float, now: float, *, is_late: bool = False, is_several: bool = False
    ) -> None:
        self.counts = SnapshotCounts()
        self._is_several = is_several
        self._asked_at: float | None = None
        self._declined_since: float | None = None
        self._agreed: int | None = None
        self._every_s = every_s
        self._limit_s = max(LIMIT_MIN_S, INTERVALS_MAX * every_s)
        self._due_at = now + every_s
        self._began_at = None if is_late else now
        self._is_writer = False
        self._must_look = False
        self._looks_since: float | None = None
        self._is_prepared = False
        self._writes_since: float | None = None
        self._is_overdue = False

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._writes_since is not None

    @property
    def _is_busy(self) -> bool:
        return self._looks_since is not None or self.is_writing

    @property
    def limit_s(self) -> float:
        """How long a write may take."""
        return self._limit_s

    def ballot(self, now: float) -> bool:
        """The lead's bit in a step's vote: whether to take one at the boundary that follows."""
        is_ready = self._is_writer and not (self._must_look or self._is_busy)
        self._asked_at = now if is_ready and now >= self._due_at else None
        return self._asked_at is not None

    def voted(self, agreed: bool, step: int, *, committed: bool) -> None:
        """The vote has ended with ``agreed``; the state is now the one of ``step``."""
        self._agreed = step if agreed and committed else None
        if agreed or self._asked_at is None:
            self._declined_since = None
        elif self._declined_since is None:
            self._declined_since = self._asked_at

    def at_boundary(self, is_writer: bool, now: float, step: int = 0) -> Decision:
        """A step begins whose state is whole, and at which replicas may join.

        ``is_writer``: this replica is the first contributor to it. ``step``: of its state.
        """
        agreed, self._agreed = self._agreed == step, None
        self._must_look |= is_writer and not self._is_writer
        self._is_writer = is_writer
        if self._writes_since is not None and now - self._writes_since > self._limit_s:
            return Decision.ABANDON
        if self._is_several and agreed:
            return self._begin(now)
        if not is_writer:
            return Decision.NOTHING
        if self._must_look and not self._is_busy:
            self._must_look, self._looks_since = False, now
            return Decision.LOOK
        if not self._is_prepared and not self._is_busy and now < self._due_at:
            return self._prepare(now)
        if now < self._due_at:
            return Decision.NOTHING
        if self._looks_since is not None and now < self._looks_since + self._every_s:
            return Decision.NOTHING
        if self._is_busy:
            self._due_at = now + self._every_s
            self._is_overdue = True
            self.counts.skipped += 1
            return Decision.SKIP
        return self._await_vote(now) if self._is_several else self._begin(now)

    def _await_vote(self, now: float) -> Decision:
        """One is due, but no vote has agreed to it yet."""
        if self._declined_since is None or now < self._declined_since + self._every_s:
            return Decision.NOTHING
        self._declined_since = now
        self.counts.skipped += 1
        return Decision.SKIP

    def _begin(self, now: float) -> Decision:
        self._due_at = now + self._every_s
        self._writes_since = now
        self._is_overdue = False
        return Decision.TAKE

    def at_end(self, now: float) -> bool:
        """This replica leaves at a boundary. Returns whether it takes a last one, as the writer.

        It does not while a write or a look is under way.
        """
        if not self._is_writer or self._is_busy:
            return False
        self._writes_since = now
        return True

    @property
    def is_idle(self) -> bool:
        return not self._is_busy

    def _prepare(self, now: float) -> Decision:
        """Have memory ready for the first copy, whose size is known only when training runs."""
        if now < self._due_at - self._every_s / 2:
            return Decision.NOTHING
        self._is_prepared, self._looks_since = True, now
        return Decision.PREPARE

    def prepared(self) -> None:
        """The memory is ready."""
        self._looks_since = None
        self._catch_up()

    def looked(self, age_s: float | None, now: float) -> None:
        """The newest snapshot is ``age_s`` old; None: this job has no snapshot."""
        self._looks_since = None
        since = -math.inf if age_s is None else now - max(0.0, age_s)
        if self._began_at is not None:  # a resumed job has lost nothing since its start
            since = max(since, self._began_at)
        self._due_at = max(since, now - self._every_s) + self._every_s

    def written(self) -> None:
        """The snapshot under way is complete."""
        self._writes_since = None
        self.counts.written += 1
        self._catch_up()

    def failed(self) -> None:
        """The snapshot under way has failed, or was abandoned."""
        if self._writes_since is not None:
            self._writes_since = None
            self.counts.failed += 1
            self._catch_up()

    def _catch_up(self) -> None:
        """If one was skipped meanwhile, the next one is due at once, not an interval later."""
        if self._is_overdue:
            self._due_at = -math.inf


class PartSchedule:
    """The decisions of a worker that is not its replica's lead: it follows the votes alone.

    Args:
        every_s, now: see ``SnapshotSchedule``.
    """

    def __init__(self, every_s: float, now: float) -> None:
        self.counts = SnapshotCounts()
        self.limit_s = max(LIMIT_MIN_S, INTERVALS_MAX * every_s)
        self._prepares_at = now + every_s / 2
        self._is_warm = self._is_prepared = self._prepares = False
        self._agreed: int | None = None
        self._writes_since: float | None = None

    @property
    def is_idle(self) -> bool:
        """No part is being written, and no memory is being made ready."""
        return self._writes_since is None and not self._prepares

    @property
    def is_writing(self) -> bool:
        return self._writes_since is not None

    def ballot(self, _now: float) -> bool:
        """This worker's bit in a step's vote: it can copy at the boundary that follows."""
        return self.is_idle

    def voted(self, agreed: bool, step: int, *, committed: bool) -> None:
        """The vote has ended with ``agreed``; the state is now the one of ``step``."""
        self._agreed = step if agreed and committed else None

    def at_boundary(self, is_writer: bool, now: float, step: int = 0) -> Decision:
        """See ``SnapshotSchedule``. Memory is prepared once, half an interval after the start."""
        agreed, self._agreed = self._agreed == step, None
        if self._writes_since is not None and now - self._writes_since > self.limit_s:
            return Decision.ABANDON
        if agreed:
            self._writes_since = now
            return Decision.TAKE
        if is_writer and not self._is_warm:
            self._is_warm = True
            return Decision.WARM
        if is_writer and not self._is_prepared and now >= self._prepares_at:
            self._is_prepared = self._prepares = True
            return Decision.PREPARE
        return Decision.NOTHING

    def at_end(self, now: float) -> bool:
        """The lead takes a last one. Returns whether this worker can write its part."""
        if not self.is_idle:
            return False
        self._writes_since = now
        return True

    def prepared(self) -> None:
        self._prepares = False

    def written(self) -> None:
        self._writes_since = None
        self.counts.written += 1

    def failed(self) -> None:
        if self._writes_since is not None:
            self._writes_since = None
            self.counts.failed += 1


@dataclass
class SkipNotices:
    """When to report skipped snapshots: one line when skipping begins, one when it is over.

    If every second snapshot is skipped, skipping begins again and again. So only a doubled number
    is reported again. ``told``: the number at the last notice.
    """

    told: int = 0
    is_on: bool = False

    def skipped(self, total: int) -> bool:
        """One more is skipped, ``total`` so far. Returns whether to report it."""
        if self.is_on or total < 2 * self.told:
            return False
        self.told, self.is_on = total, True
        return True

    def written(self) -> bool:
        """One is written. Returns whether to report it, because skipped ones were reported."""
        was_on, self.is_on = self.is_on, False
        return was_on
