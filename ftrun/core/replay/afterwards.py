"""Whether all go on after a mend. Pure.

Theory of operation. A mend is over once every rank is connected again. Whether all then meet in
their calls nobody knows so far: a replacement that has made a call too many or too few waits in
another one than its peers, and no call of theirs ever ends. So the board is looked at until every
rank has taken ``STEPS`` more steps. Each worker says about once a second which of its calls is the
first that it has begun and that is not complete (``Waits``).

| a rank has said the same for so long                     | it follows                           |
|----------------------------------------------------------|--------------------------------------|
| ``limit_s``: it waits in a call                          | Stand, once: people are told who     |
|                                                          | waits where. It may be right so: a   |
|                                                          | rank that lives is waited for        |
| ``apart_s``: and all members of a group do so too, in    | Apart: these calls never end         |
| calls of this group that are not one                     |                                      |

A worker that is stopped, or holds Python's lock, says nothing. What it has said before counts for
nothing then (``FRESH_S``), because it may go on as soon as it can. So it begins to stand only when
it says so again.

Not here: what follows (mending.py), the words for people (core/agent/mend_words.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core.replay.settling import Board, Counts

STEPS = 2
"""A step that was under way at the mend, and a whole one."""
FRESH_S = 5.0
"""A worker says it each second; on a busy machine its thread may come late."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The first call that a rank has begun and that is not complete.

    ``call``: its number in the ``group``; -1: there is none. ``kind``: the method of
    torch's ProcessGroup. ``nbytes``: of its tensors, where all members must have as many; else 0.
    ``age_s``: it has said so that long ago.
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
    """Some ranks have waited in their calls for ``still_s``. ``waits``: of every rank."""

    still_s: float
    waits: Sequence[Waits | None]


@dataclass(frozen=True, slots=True)
class Apart(Stand):
    """The members of a group wait in calls that cannot meet. ``group``: the group."""

    group: int


Found: TypeAlias = Stand | None


@dataclass
class Afterwards:
    """The watch over one mend.

    Args:
        steps: by rank, so many it has taken when the mend was over.
        limit_s: that a rank may do nothing for.
        apart_s: that members of a group may wait for in calls that are not one.
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
            steps: by rank, so many it has taken.
            waits: by rank, what it has said last; None: nothing.
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
    """What becomes of the step that was under way at a mend in a replica of several.

    All replicas decide about it, perhaps in a quorum that no lighthouse has formed so far.

    Args:
        steps: by rank, so many it had taken when the mend was over.
        lost: by rank, so many were not committed when its worker was lost.
    """

    steps: Sequence[int]
    lost: Sequence[int]

    def known(self, board: Board, steps: Sequence[int], lost: Sequence[int]) -> int | None:
        """How many steps were not committed since; None: that is not known so far."""
        gone = max((now - before for now, before in zip(lost, self.lost, strict=False)), default=0)
        if gone > 0:
            return gone
        reached = max(self.steps, default=0)
        is_over = all(x > reached or over for x, over in zip(steps, board.over, strict=False))
        return 0 if is_over else None


def is_apart(group: int, done: Sequence[Counts], stands: Mapping[int, Waits]) -> bool:
    """Whether the members of a group wait in calls of it that can never meet."""
    calls = [stands.get(rank) for rank, own in enumerate(done) if group in own]
    here = [known for known in calls if known and known.group == group]
    return len(here) == len(calls) and len({(x.call, x.kind, x.nbytes) for x in here}) > 1
