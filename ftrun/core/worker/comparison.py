"""Checks that the replicas' operations of one step are alike, before they meet in a group.

If two replicas' n-th operations of a step differ, a backend fails or computes nonsense. So an
operation that differs from the last committed step's is compared first. Any other is issued at
once, because all replicas that hold one state have committed the same steps. (For a newcomer every
operation is new.) Each quorum has one *reference* replica, the same for all members:

- Any other replica asks the reference for its operation, and issues its own if they are alike. If
  not, the mistake counts as its own.
- The reference asks all others before it issues a changed operation, and before it answers a
  question about it. If another replica has an unlike operation that has not changed (which may be
  issued already), or if most others have unlike ones, the mistake counts as the reference's.
  Otherwise each replica with an unlike operation asks, and finds its mistake.

The end of a step is compared like an operation, because one replica may issue fewer than others.

Not here: how questions are sent (training/comparing.py), the consequences of unlike operations
(machine.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftrun.core.ids import Tag, WorkerKey, replica_order
from ftrun.core.quorum import Member, Quorum


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of an operation; of ``sizes`` only the product is compared."""

    op: str = "sum"
    dtype: str = "float32"
    sizes: tuple[int, ...] = (1,)

    @property
    def count(self) -> int:
        count = 1
        for size in self.sizes:
            count *= size
        return count

    def is_like(self, other: Shape | None) -> bool:
        """Whether the two can be reduced into one result."""
        if other is None:
            return False
        mine = (self.op, self.dtype, self.count)
        return mine == (other.op, other.dtype, other.count)

    def __str__(self) -> str:
        sizes = " x ".join(str(size) for size in self.sizes) or "1"
        return f"a {self.op} of {sizes} {self.dtype}"


USUAL = Shape()
"""The shape in tests that are about something else."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of a step, or its end (``shape`` is None).

    ``changed``: the last committed step had another operation, or none, there. ``cleared``: it may
    be issued already. ``over``: the script has ended, and issues nothing in this step.
    """

    shape: Shape | None
    changed: bool
    cleared: bool
    over: bool = False

    def is_like(self, other: Entry) -> bool:
        """Whether both end the step, or both can be reduced together."""
        if self.shape is None:
            return other.shape is None
        return self.shape.is_like(other.shape)

    def __str__(self) -> str:
        return "nothing more" if self.shape is None else str(self.shape)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to ``members`` about their operation ``index`` of the step of ``tag``.

    ``repeat``: how many times the step was begun before under this tag. ``cleared``: answer only
    once the operation may be issued there (in questions to the reference).
    """

    tag: Tag
    repeat: int
    index: int
    members: tuple[Member, ...]
    cleared: bool

    def path(self) -> str:
        """The address of the answer on a peer's state server."""
        step = f"{self.tag.path()}/{self.repeat}/{self.index}"
        return f"/operations/{step}?cleared={self.cleared:d}"


class Comparison:
    """One step's operations, as they are compared in one quorum.

    ``unlike``: a text about two operations that cannot be reduced together; "" if there are none.

    Args:
        key: the key of the worker that asks.
        quorum: the quorum in which the operations go out.
        committed: the operations of the last committed step; None if this worker has not taken part
            in it.
        tag: the tag of the step in that quorum.
        repeat: how many times too few contributed to the step under this tag.
    """

    def __init__(
        self,
        key: WorkerKey,
        quorum: Quorum,
        committed: Sequence[Shape] | None,
        tag: Tag,
        repeat: int = 0,
    ) -> None:
        self.unlike = ""
        self.tag = tag
        self.repeat = repeat
        self.shapes: list[Shape] = []
        self.cleared = 0
        self._committed = committed
        self._ended = False
        self._own = key.replica_id
        self._asked = -1
        self._open: set[str] = set()
        self._differ: list[str] = []
        self._meet(quorum)

    def _meet(self, quorum: Quorum) -> None:
        others = tuple(m for m in quorum.members if m.replica_id != self._own)
        names = quorum.donors or tuple(member.replica_id for member in quorum.members)
        reference = min(names, key=replica_order, default="")
        self._is_reference = reference == self._own
        if not self._is_reference:
            others = tuple(member for member in others if member.replica_id == reference)
        self._others = others

    @property
    def ended(self) -> bool:
        """The script issues nothing more in this step."""
        return self._ended

    @property
    def is_complete(self) -> bool:
        """All operations are cleared, and so is the step's end if it has come."""
        return self.cleared == len(self.shapes) + self._ended

    def has_passed(self, question: Question) -> bool:
        """Whether this is a later step of the same quorum than the step of ``question``."""
        mine, asked = (self.tag.step, self.repeat), (question.tag.step, question.repeat)
        return self.tag.attempt == question.tag.attempt and mine > asked

    def is_asked(self, question: Question) -> bool:
        """Whether this is the step of ``question``."""
        return (self.tag, self.repeat) == (question.tag, question.repeat)

    def add(self, shape: Shape) -> None:
        self.shapes.append(shape)

    def end(self) -> None:
        """The script wants its results: no more operations follow."""
        self._ended = True

    def meets_nobody(self) -> None:
        """The step is a repeat, and the worker that was lost had compared all of it."""
        self._others = ()

    def withdraw(self) -> None:
        """Stop answering about this step, because one of its operations was refused."""
        self.repeat = -1

    def goes_on(self, quorum: Quorum, kept: int) -> None:
        """The operations are issued again in the next quorum, except the first ``kept`` ones."""
        self.tag, self.repeat = Tag(quorum.attempt, self.tag.step), 0
        self._asked = -1
        self._open.clear()
        self._meet(quorum)
        if kept < len(self.shapes):
            self.cleared = kept

    def entry(self, index: int) -> Entry | None:
        """The step's operation or end at ``index``; None if it is not known yet."""
        end = len(self.shapes)
        if index < end:
            return Entry(self.shapes[index], self._is_changed(index), index < self.cleared)
        if not self._ended:
            return None
        return Entry(None, self._is_changed(end), end < self.cleared)

    def advance(self) -> range:
        """Clear further operations. Returns those that may be issued now."""
        first, known = self.cleared, len(self.shapes) + self._ended
        while self.cleared < known and not self.unlike and self._is_clear(self.cleared):
            self.cleared += 1
        return range(first, min(self.cleared, len(self.shapes)))

    def question(self) -> Question | None:
        """The question to ask before more can be issued; None: none is open, or it was asked."""
        index = self.cleared
        if self.unlike or self.is_complete or index == self._asked:
            return None
        self._asked = index
        self._open = {member.replica_id for member in self._others}
        self._differ = []
        return Question(self.tag, self.repeat, index, self._others, cleared=not self._is_reference)

    def answer(self, asked: Question, replica_id: str, theirs: Entry) -> None:
        """A member has answered the question ``asked``."""
        index = asked.index
        is_of_this = (asked.tag, asked.repeat, index) == (self.tag, self.repeat, self._asked)
        if not is_of_this or replica_id not in self._open:
            return
        self._open.discard(replica_id)
        mine = self.entry(index)
        if mine is None or mine.is_like(theirs):
            return
        self._differ.append(replica_id)
        may_stay = self._is_reference and theirs.changed
        if may_stay and 2 * len(self._differ) <= len(self._others) + 1:
            return
        self.unlike = (
            f"the replicas' operations differ: as operation {index} of step {self.tag.step}, "
            f"replica {self._own} has {mine}, where replica {replica_id} has {theirs}"
        )

    def _is_clear(self, index: int) -> bool:
        if not self._others or not self._is_changed(index):
            return True
        return index == self._asked and not self._open

    def _is_changed(self, index: int) -> bool:
        before = self._committed
        if before is None or index > len(before):
            return True
        if index == len(self.shapes):
            return index != len(before)
        return index == len(before) or not self.shapes[index].is_like(before[index])


class Comparisons:
    """One worker's comparisons over time: of the step under way, and of the step before.

    Peers may still ask about the step before, because they are up to one step behind.
    """

    def __init__(self, key: WorkerKey) -> None:
        self._key = key
        self._past: Comparison | None = None
        self._committed: tuple[Shape, ...] | None = None

    def begin(self, quorum: Quorum, tag: Tag, *, heals: bool) -> Comparison:
        """A step begins under ``tag``; a replica that heals knows of no committed operations."""
        if heals:
            self._committed = None
        past = self._past
        repeat = past.repeat + 1 if past is not None and past.tag == tag else 0
        return Comparison(self._key, quorum, self._committed, tag, repeat)

    def end(self, comparison: Comparison, *, committed: bool) -> None:
        """The step of ``comparison`` is over."""
        if committed:
            self._committed = tuple(comparison.shapes)
        self._past = comparison

    @property
    def committed(self) -> tuple[Shape, ...] | None:
        """The operations of the last committed step; None: they are not known."""
        return self._committed

    def succeed(self, committed: tuple[Shape, ...] | None) -> None:
        """This worker replaces a lost one, whose last committed step had these operations."""
        self._committed = committed

    def forget(self) -> None:
        """The script has set its own step: its operations may be others now."""
        self._committed = None

    def look_up(self, question: Question, current: Comparison | None) -> Entry | None:
        """The answer to a peer's question, or None. ``current``: the step under way."""
        known = [comparison for comparison in (current, self._past) if comparison is not None]
        for comparison in known:
            if comparison.is_asked(question):
                entry = comparison.entry(question.index)
                return entry if entry and (entry.cleared or not question.cleared) else None
        if any(comparison.has_passed(question) for comparison in known):
            return Entry(None, changed=False, cleared=True)  # the step in question is over here
        return None
