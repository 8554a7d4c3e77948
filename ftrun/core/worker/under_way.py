"""The step that one worker is in: its tag, its operations, its vote and its fate.

Bookkeeping with the questions that go with it. Not here: what a worker does about them
(machine.py).
"""

from __future__ import annotations

from enum import Enum

from ftrun.core.ids import Attempt, Tag
from ftrun.core.quorum import Quorum
from ftrun.core.worker.comparison import Comparison
from ftrun.core.worker.operations import OperationLedger


class Fate(Enum):
    """What becomes of the step under way; the table is in machine.py."""

    OPEN = "open"
    INTERRUPTED = "interrupted"
    INTERRUPTED_COMPLETE = "interrupted complete"
    STANDS = "stands"
    REPAIR = "repair"
    VOID = "void"

    @property
    def is_interrupted(self) -> bool:
        """The next quorum decides."""
        return self in (Fate.INTERRUPTED, Fate.INTERRUPTED_COMPLETE)

    @property
    def awaits_quorum(self) -> bool:
        """Nothing goes on before a next quorum has come, or its group stands."""
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
"""What may follow upon what. INTERRUPTED never becomes complete: what was reported binds (C1)."""


class StepUnderWay:
    """From its boundary to its decision.

    ``repeats``: it was begun before under this quorum, and too few contributed. ``is_enough``:
    enough do now; else nobody commits it, and its results count for nothing. ``voted``: the tag
    of a vote within the group whose outcome is not known yet. ``deadline``: when to do something
    about what is outstanding. ``touched_at``: when an operation was last issued or completed, or
    the step's fate changed. ``is_blind``: no lighthouse was heard for so long that others may have
    gone on without it: only a quorum can tell whether its results stand (Q3).
    """

    def __init__(self, tag: Tag, repeats: bool, now: float, comparison: Comparison) -> None:
        self.tag = tag
        self.comparison = comparison
        self.began_at = self.touched_at = now
        self.repeats = repeats
        self.is_enough = True
        self.fate = Fate.OPEN
        self.operations = OperationLedger()
        self.is_voting = False
        self.is_blind = False
        self.voted: Tag | None = None
        self.deadline: float | None = None
        self.void_reason = ""

    @property
    def results(self) -> Tag | None:
        """The tag under which everything that was issued is complete."""
        has_results = self.operations.issued > 0 and self.operations.complete and self.is_enough
        return self.tag if has_results and self.fate is not Fate.VOID else None

    @property
    def decisive(self) -> Tag | None:
        """The tag under which it may have been committed, here or by a mate."""
        return self.results or (self.voted if self.operations.complete else None)

    def counts(self, attempt: Attempt) -> bool:
        """Whether what an operation does under ``attempt`` means anything here (C3)."""
        return self.fate is Fate.OPEN and self.tag.attempt == attempt

    def vote(self) -> None:
        """The ranks of the group are asked; what cannot stand will not be voted for."""
        self.is_voting = True
        may_stand = self.fate in (Fate.OPEN, Fate.STANDS, Fate.INTERRUPTED_COMPLETE)
        self.voted = self.tag if may_stand and self.is_enough else None

    def _become(self, fate: Fate) -> None:
        assert fate in TRANSITIONS[self.fate], f"{self.fate} → {fate}"
        self.fate = fate

    def interrupt(self, deadline: float, stands: bool) -> None:
        """Interrupted: the next quorum tells, by ``deadline``.

        ``stands``: the results stand as it is. What is reported then binds: nothing that comes
        later makes results stand of which a quorum may know already that they do not (C1).
        """
        if self.fate is Fate.VOID:
            return
        is_complete = stands and self.fate is not Fate.INTERRUPTED
        self._become(Fate.INTERRUPTED_COMPLETE if is_complete else Fate.INTERRUPTED)
        self.deadline = deadline

    def stand(self) -> None:
        """The results are complete and peers count on them."""
        self._become(Fate.STANDS)

    def repair(self) -> None:
        """The operations go out again as soon as there is a group for them."""
        self._become(Fate.REPAIR)

    @property
    def is_awaited(self) -> bool:
        """Something is outstanding: a result, or a word of other members."""
        return self.operations.outstanding or not self.comparison.is_complete

    @property
    def is_finished(self) -> bool:
        """All results are there, and no replica has more or fewer."""
        return self.operations.complete and self.comparison.is_complete

    def go_out_again(self, quorum: Quorum, deadline: float) -> None:
        """That group is there."""
        self.tag = Tag(quorum.attempt, self.tag.step)
        self.comparison.begin_again(quorum)
        self.repeats = False
        self._become(Fate.OPEN)
        self.operations.start_again()
        self.deadline = deadline if self.is_awaited else None

    def void(self, reason: str) -> None:
        """It will not be committed."""
        self._become(Fate.VOID)
        self.void_reason = reason
        self.voted = None
