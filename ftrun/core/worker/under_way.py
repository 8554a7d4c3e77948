"""The step that one worker is in: its tag, its operations, its vote and its fate.

| fate                 | means                                      | left by                      |
|----------------------|--------------------------------------------|------------------------------|
| OPEN                 | its quorum is in force                     | an interrupt; an error       |
| INTERRUPTED          | the next quorum decides                    | NewQuorum → STANDS, REPAIR,  |
|                      |                                            | VOID                         |
| INTERRUPTED_COMPLETE | the same; its results were complete        | the same                     |
| STANDS               | its results are complete; peers rely on it | an interrupt; one more       |
|                      |                                            | operation → VOID             |
| REPAIR               | its operations are issued again when the   | Built → OPEN; an             |
|                      | next group is built                        | interrupt                    |
| VOID                 | will not be committed                      | Decided                      |

``Decided`` ends a step of any fate. The other transitions are asserted.

Bookkeeping, and questions about it. Not here: a worker's reactions (machine.py).
"""

from __future__ import annotations

from enum import Enum

from ftrun.core.ids import Attempt, Tag
from ftrun.core.quorum import Quorum
from ftrun.core.worker.comparison import Comparison
from ftrun.core.worker.operations import OperationLedger


class Fate(Enum):
    """The fate of the step under way; the table is above."""

    OPEN = "open"
    INTERRUPTED = "interrupted"
    INTERRUPTED_COMPLETE = "interrupted complete"
    STANDS = "stands"
    REPAIR = "repair"
    VOID = "void"

    @property
    def is_interrupted(self) -> bool:
        """The next quorum decides about the step."""
        return self in (Fate.INTERRUPTED, Fate.INTERRUPTED_COMPLETE)

    @property
    def awaits_quorum(self) -> bool:
        """The step waits for the next quorum, or for that quorum's process group."""
        return self.is_interrupted or self is Fate.REPAIR


_INTERRUPTED = {Fate.INTERRUPTED, Fate.INTERRUPTED_COMPLETE}
_VERDICTS = {Fate.STANDS, Fate.REPAIR, Fate.VOID}
TRANSITIONS: dict[Fate, set[Fate]] = {
    Fate.OPEN: {*_INTERRUPTED, Fate.VOID},
    Fate.INTERRUPTED: {Fate.INTERRUPTED, *_VERDICTS},
    Fate.INTERRUPTED_COMPLETE: {*_INTERRUPTED, *_VERDICTS},
    Fate.STANDS: {*_INTERRUPTED, Fate.VOID},
    Fate.REPAIR: {*_INTERRUPTED, Fate.OPEN, Fate.VOID},
    Fate.VOID: {Fate.VOID},
}
"""The next fates. INTERRUPTED never becomes complete: a quorum may rely on the report (C1)."""


class StepUnderWay:
    """One step, from its boundary to its decision.

    ``commits_as``: the tag under which it is committed. It equals ``tag``, unless other ranks of
    its group have had their results under an earlier one. ``repeats``: it was begun before under
    this quorum, with too few contributors. ``is_enough``: enough contribute now; otherwise no
    replica commits it, and its results do not count. ``voted``: the tag of a vote within the group
    whose outcome is not known yet. ``deadline``: the end of the wait for results, a quorum or
    mates. ``touched_at``: when an operation was last issued or completed, or the step's fate
    changed. ``awaited_since``: the begin of the wait for its results, over all attempts: a
    completion that only repeats one of an earlier attempt is no progress. ``is_blind``: it was
    under way in isolation, so others may have continued without it; only a quorum can decide
    whether its results stand (Q3). ``is_taken``: peers have committed it with this replica's
    gradients, and this replica has not: it heals, and no work is lost. ``kept``: in REPAIR: the
    number of its operations that stand, the same for this rank in all groups.
    """

    def __init__(self, tag: Tag, repeats: bool, now: float, comparison: Comparison) -> None:
        self.tag = self.commits_as = tag
        self.comparison = comparison
        self.began_at = self.touched_at = now
        self.repeats = repeats
        self.is_enough = True
        self.fate = Fate.OPEN
        self.operations = OperationLedger()
        self.is_voting = False
        self.is_blind = self.is_taken = False
        self.kept = 0
        self.voted: Tag | None = None
        self.deadline: float | None = None
        self.awaited_since: float | None = None
        self._completed_max = 0
        self.void_reason = ""

    @property
    def waits_for_repair(self) -> bool:
        """Whether this rank votes on it, while other ranks of the group repair it."""
        return self.is_voting and self.commits_as != self.tag

    @property
    def results(self) -> Tag | None:
        """The step's tag, if its operations are complete, enough contribute, and it is not void."""
        has_results = self.operations.issued > 0 and self.operations.complete and self.is_enough
        return self.commits_as if has_results and self.fate is not Fate.VOID else None

    @property
    def decisive(self) -> Tag | None:
        """The tag under which the step may have been committed, here or by a mate."""
        return self.results or (self.voted if self.operations.complete else None)

    def counts(self, attempt: Attempt) -> bool:
        """Whether an operation's result or error under ``attempt`` has an effect here (C3)."""
        return self.fate is Fate.OPEN and self.tag.attempt == attempt

    def vote(self) -> None:
        """The group's vote begins. This rank votes for the step only if its results may stand."""
        self.is_voting = True
        may_stand = self.fate in (Fate.OPEN, Fate.STANDS, Fate.INTERRUPTED_COMPLETE)
        self.voted = self.commits_as if may_stand and self.is_enough else None

    def _become(self, fate: Fate) -> None:
        assert fate in TRANSITIONS[self.fate], f"{self.fate} → {fate}"
        self.fate = fate

    def interrupt(self, deadline: float, stands: bool) -> None:
        """The step is interrupted: the next quorum decides about it, by ``deadline``.

        ``stands``: its results stand now. Once reported incomplete, results stay incomplete,
        because a quorum may already rely on that (C1).
        """
        if self.fate is Fate.VOID:
            return
        is_complete = stands and self.fate is not Fate.INTERRUPTED
        self._become(Fate.INTERRUPTED_COMPLETE if is_complete else Fate.INTERRUPTED)
        self.deadline = deadline

    def stand(self) -> None:
        """The results are complete, and peers rely on them."""
        self._become(Fate.STANDS)

    def repair(self, kept: int) -> None:
        """Operations from ``kept`` on are issued again once the next process group is built."""
        self._become(Fate.REPAIR)
        self.kept = kept

    @property
    def is_awaited(self) -> bool:
        """A result or another member's answer is outstanding."""
        return self.operations.outstanding or not self.comparison.is_complete

    @property
    def is_finished(self) -> bool:
        """All results are complete, and no replica has more or fewer operations."""
        return self.operations.complete and self.comparison.is_complete

    def note_wait(self, now: float) -> None:
        """An operation was issued, has completed, or was compared: the wait may begin or end.

        It begins again when an operation completes that has not completed in any attempt before.
        """
        is_progress = self.operations.completed > self._completed_max
        self._completed_max = max(self._completed_max, self.operations.completed)
        if not self.is_awaited:
            self.awaited_since = None
        elif self.awaited_since is None or is_progress:
            self.awaited_since = now

    def put_off(self, by_s: float) -> None:
        """Leave these seconds out of every deadline."""
        if self.deadline is not None:
            self.deadline += by_s
        if self.awaited_since is not None:
            self.awaited_since += by_s

    def awaited_s(self, now: float) -> float:
        return 0.0 if self.awaited_since is None else now - self.awaited_since

    def go_out_again(self, quorum: Quorum, deadline: float) -> None:
        """The next process group is built: operations are issued again, under ``quorum``."""
        self.tag = Tag(quorum.attempt, self.tag.step)
        self.commits_as = quorum.repaired_tag or self.tag
        self.repeats = False
        self._become(Fate.OPEN)
        self.comparison.goes_on(quorum, self.kept)
        self.operations.start_again(self.kept)
        self.deadline = deadline if self.is_awaited else None

    def went_out(self, attempt: Attempt) -> None:
        """The step is repeated, and its results have arrived under ``attempt``."""
        self.tag = self.commits_as = self.comparison.tag = Tag(attempt, self.tag.step)

    def void(self, reason: str) -> None:
        self._become(Fate.VOID)
        self.void_reason = reason
        self.voted = None
