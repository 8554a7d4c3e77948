"""Watches whether all ranks make progress after a mend. Pure.

Theory of operation. A mend is over once every rank is connected again. That alone does not show
that the ranks' calls match: a replacement that has made one call too many or too few waits in
another call than its peers, and none of these calls ever ends. So the agent keeps looking at the
board until every rank has completed ``STEPS`` more steps. About once a second each worker reports
the first call that it has begun and that is not complete (``Waits``).

| a rank has reported the same call for                   | result                               |
|----------------------------------------------------------|--------------------------------------|
| ``limit_s``                                              | Stand, once: the user sees which     |
|                                                          | rank waits where. This may be no     |
|                                                          | fault: a rank that lives is awaited  |
| ``apart_s``, and so has every member of a group, in      | Apart: these calls never end         |
| calls of this group that do not match                    |                                      |

A worker that is stopped, or that waits for Python's lock, reports nothing. Its last report then
expires (``FRESH_S``), because the worker may make progress as soon as it runs again. Its time in
the call is counted from its next report.

Not here: what the agent does about it (mending.py), the messages (core/agent/mend_words.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core.replay.settling import Board, Counts

STEPS = 2
"""The rest of the step that was under way at the mend, and one whole step."""
FRESH_S = 5.0
"""A worker reports each second. On a busy machine its thread may be late."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The first call that a rank has begun and that is not complete.

    ``call``: its number in the ``group``; -1: there is none. ``kind``: the method of torch's
    ProcessGroup. ``nbytes``: the size of its tensors if it must be equal at all members, else 0.
    ``age_s``: the age of this report.
    """

    group: int
    call: int
    kind: str
    nbytes: int
    age_s: float

    @property
    def is_fresh(self) -> bool:
        return self.age_s <= FRESH_S


@dataclass(frozen=True, slots=True)
class Stand:
    """Some ranks have waited in their calls for ``still_s``. ``waits``: the report of each rank."""

    still_s: float
    waits: Sequence[Waits | None]


@dataclass(frozen=True, slots=True)
class Apart(Stand):
    """The members of ``group`` wait in calls that cannot match."""

    group: int


Found: TypeAlias = Stand | None


@dataclass
class Afterwards:
    """The watch over one mend.

    Args:
        steps: by rank, its number of steps when the mend was over.
        limit_s: a rank that waits in one call for this long is shown to the user.
        apart_s: the members of a group may wait in calls that do not match for this long.
    """

    steps: Sequence[int]
    limit_s: float
    apart_s: float
    is_over: bool = False
    _seen: dict[int, object] = field(default_factory=dict)
    _moved_at: dict[int, float] = field(default_factory=dict)
    _is_told: bool = False

    def look(
        self,
        board: Board,
        steps: Sequence[int],
        waits: Sequence[Waits | None],
        now: float,
    ) -> Found:
        """Look at the board.

        Args:
            steps: by rank, its number of steps.
            waits: by rank, its last report; None: it has sent none.
        """
        ranks = range(len(steps))
        for rank in ranks:
            known = waits[rank]
            call = None if known is None else (known.group, known.call)
            seen = dict(board.done[rank]), steps[rank], board.over[rank], call
            if self._seen.get(rank) != seen or known is None or not known.is_fresh:
                self._seen[rank], self._moved_at[rank] = seen, now
        has_gone_on = [steps[x] >= self.steps[x] + STEPS or board.over[x] for x in ranks]
        self.is_over = all(has_gone_on)
        still_s = {x: now - self._moved_at[x] for x in ranks}
        stands = {
            rank: known
            for rank in ranks
            if (known := waits[rank]) and known.call >= 0 and still_s[rank] >= self.apart_s
        }
        if self.is_over or not stands:
            return None
        longest_s = max(still_s[rank] for rank in stands)
        for group in sorted({known.group for known in stands.values()}):
            if is_apart(group, board.done, stands):
                self.is_over = True
                return Apart(longest_s, waits, group)
        if self._is_told or longest_s < self.limit_s:
            return None
        self._is_told = True
        return Stand(longest_s, waits)


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """What becomes of the step that was under way at a mend in a job of several replicas.

    All replicas decide about that step, perhaps in a quorum that no lighthouse has formed yet.

    Args:
        steps: by rank, its number of steps when the mend was over.
        lost: by rank, its number of steps without a commit when its worker was lost.
    """

    steps: Sequence[int]
    lost: Sequence[int]

    def known(self, board: Board, steps: Sequence[int], lost: Sequence[int]) -> int | None:
        """The number of steps since the mend that were not committed; None: not known yet."""
        gone = max((now - before for now, before in zip(lost, self.lost, strict=False)), default=0)
        if gone > 0:
            return gone
        reached = max(self.steps, default=0)
        is_over = all(x > reached or over for x, over in zip(steps, board.over, strict=False))
        return 0 if is_over else None


def is_apart(group: int, done: Sequence[Counts], stands: Mapping[int, Waits]) -> bool:
    """Whether the members of a group wait in calls of it that can never match."""
    calls = [stands.get(rank) for rank, own in enumerate(done) if group in own]
    here = [known for known in calls if known and known.group == group]
    return len(here) == len(calls) and len({(x.call, x.kind, x.nbytes) for x in here}) > 1
