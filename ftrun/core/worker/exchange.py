"""Named exchanges: the replicas of a quorum exchange values between two steps. Pure.

Theory of operation. The name of an exchange is the step that was begun last (even if it is over)
and the number of the exchange since then. A step that is tried again has the same names, and gets
the values that are kept. Every replica keeps its own values and those that it has received, for the
last steps, so that a replica that comes later reads the same. Before the first step there is no
quorum, and no exchange.

A replica asks each member for all contributions that this member keeps under the name. A member
answers once its own contribution is among them. When all members have answered, the exchange is
complete; its result is the union of their contributions. If the quorum changes meanwhile, a new
*round* begins: all members of the new quorum are asked again, and answer only once they are in that
quorum too. From then on no member accepts an answer of an earlier round. So if one survivor has a
dead replica's contribution, it is in the union of all. The result is the same everywhere (E1), also
for a replica whose exchange was complete before.

A replica that begins with a step, or has healed to it, is *late* for the exchanges of that step and
of earlier ones: its peers may have completed them. So it peeks first: each member shows its
contributions. A member that still waits for this replica shows only the contribution of this
replica's predecessor. If the members show anything, the late replica only reads; else it
contributes like all others.

Under names of steps before the one that it has begun, a replica answers "nothing". A replica that
heals does not know its place. It answers "nothing" to each peer that has not begun the step,
because such a peer begins the step only after the exchange. If it reaches such a name after all, it
contributes only if no member has anything. A replica keeps its own value before it asks. A late
replica answers "nothing" before it peeks, or does not answer until it has decided. So it never
contributes a value for which some member has not waited (E1).

A replica that was left out of a quorum and comes back with its state is late too. It withdraws its
value for the exchange under way, and peeks.

A contribution carries its call site, operation and shape. If they differ under one name, the
replicas are out of step, and the exchange reports the place of each (E2).

Not here: sockets, waiting, tensors (training/exchanges.py); a worker's quorums (machine.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ftrun.core.ids import NO_ATTEMPT, Attempt, replica_order

SET_UP = -1
"""``ExchangeName.step`` before the first step."""
STEPS_KEPT = 4
KEPT_BYTES_MAX = 256 << 20
BODY_BYTES_MAX = 16 << 20
BY_MAX = 64
"""The maximum length of an incarnation in a question, in characters."""


class Kind(str, Enum):
    """The data that is exchanged under a name."""

    VALUES = ""
    """The script's own values, or values that ftrun exchanges for it."""
    STAGE = "stage"
    """How far a replica is that is at its end (parting.py)."""
    PLACE = "place"
    """Where a replica stands in its script (exchange_places.py)."""


_NAME = re.compile(rf"(setup|[0-9]{{1,18}})\.({'|'.join(Kind)})([0-9]{{1,9}})", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class ExchangeName:
    """The name of one exchange.

    ``index``: the number of the exchange since its step was begun; a stage has its own number.
    """

    step: int
    index: int
    kind: Kind = Kind.VALUES

    def path(self) -> str:
        """The name in an address: ``setup.0``, ``211.3``, ``211.place0``."""
        return f"{'setup' if self.step == SET_UP else self.step}.{self.kind.value}{self.index}"

    @staticmethod
    def parse(text: str) -> ExchangeName:
        """The name in a text that ``path`` has returned.

        Raises:
            ValueError: the text is no name of an exchange.
        """
        found = _NAME.fullmatch(text)
        if found is None:
            raise ValueError(f"no exchange: {text[:40]!r}")
        step, kind, index = found.groups()
        return ExchangeName(SET_UP if step == "setup" else int(step), int(index), Kind(kind))


class Names:
    """The names of one worker's exchanges, in the order of its program."""

    def __init__(self) -> None:
        self._step = SET_UP
        self._since = 0

    def step_begun(self, step: int) -> None:
        """A step begins, perhaps as a further try."""
        self._step, self._since = step, 0

    def next(self) -> ExchangeName:
        number, self._since = self._since, self._since + 1
        return ExchangeName(self._step, number)

    def is_void(self, state: int, *, in_step: bool) -> bool:
        """Whether the last step has ended without a commit, and none has begun since.

        Peers that have repaired and committed it never reach the exchanges after such a try.

        Args:
            state: the number of steps committed in this worker's state.
            in_step: it has a step under way.
        """
        return not in_step and self._step >= state


ASKS, IN_STEP, PEEKS = "asks", "step", "peeks"
_OF = "of"


@dataclass(frozen=True, slots=True)
class ExchangeQuestion:
    """A question to a peer about what it keeps under ``name``.

    Without ``how`` and ``of`` the peer answers once its own contribution is among what it keeps.

    - ``how`` ASKS: it answers once it is in the quorum of ``attempt`` too. ``of`` is the slot that
      asks.
    - ``how`` IN_STEP: like ASKS, and the asking slot has a step under way, so a replica that heals
      to that step may still take part.
    - ``how`` PEEKS: it answers at once with what it keeps. If it still waits for the slot ``of``,
      it answers with that slot's contribution alone.
    - Otherwise, with ``of``: the question is for a place or a stage, now; ``by``: the rank that
      asks.
    """

    name: ExchangeName
    attempt: Attempt = NO_ATTEMPT
    of: str = ""
    by: str = ""
    how: str = ""

    def path(self) -> str:
        """The address of the answer on the peer's state server."""
        attempt = f"{self.attempt.quorum_id}.{self.attempt.number}"
        how = self.how or (_OF if self.of else "")
        parts = (attempt, self.name.path(), how, self.of, self.by)
        return "/exchanges/" + "/".join(part for part in parts if part)

    @staticmethod
    def parse(path: str) -> ExchangeQuestion:
        """The question in an address that ``path`` has returned.

        Raises:
            ValueError: the address is not a question.
        """
        parts = path.split("/")[2:]
        attempt, name, how, of, by, *_ = [*parts, "", "", "", "", ""]
        lengths = {"": (2,), ASKS: (4,), IN_STEP: (4,), PEEKS: (3, 4), _OF: (4, 5)}
        if len(parts) not in lengths.get(how, ()):
            raise ValueError("no question about an exchange")
        quorum_id, _, number = attempt.partition(".")
        if not all(n.isdecimal() and len(n) < 20 for n in (quorum_id, number)):
            raise ValueError("no attempt")
        if len(parts) > 3 and not (of.isdecimal() and len(of) < 10):
            raise ValueError("no slot")
        if len(parts) > 4 and not (by.isalnum() and by.isascii() and len(by) <= BY_MAX):
            raise ValueError("no incarnation")
        how = "" if how == _OF else how
        of_attempt = Attempt(int(quorum_id), int(number))
        return ExchangeQuestion(ExchangeName.parse(name), of_attempt, of, by, how)


Awaits = Callable[[str, Attempt], bool]
"""Whether the slot will still be asked, in the quorum of this attempt or a later one."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The value of one worker.

    ``what``: the operation with its dtype and shape, for comparison. ``counts``: the worker
    contributes to the step, so sums include its value.
    """

    replica_id: str
    site: str
    what: str
    body: bytes
    counts: bool = True


class Kept:
    """The contributions that one worker keeps, its own and its peers'.

    Args:
        replica_id: this worker's.
    """

    def __init__(self, replica_id: str) -> None:
        self._own_id = replica_id
        self._kept: dict[ExchangeName, dict[str, Contribution]] = {}
        self._nbytes = 0
        self._begun_step = self._begun_max = SET_UP
        self._read: set[ExchangeName] = set()
        self._declined: set[ExchangeName] = set()
        self._undecided: ExchangeName | None = None
        self._gaps = 0
        self._waits: tuple[ExchangeName, Awaits] | None = None
        self._given: ExchangeName | None = None  # the last value between two steps
        self._told: set[str] = set()  # the slots that have received it

    def give(self, name: ExchangeName, own: Contribution) -> Contribution:
        """Keep this worker's value.

        If a predecessor of this slot has contributed, that value stays.
        """
        self.come_to(name)
        self.add(name, (own,))
        return self._kept[name][self._own_id]

    def add(self, name: ExchangeName, found: Iterable[Contribution]) -> None:
        """Keep what a peer has answered. Values that are kept already stay."""
        kept = self._kept.setdefault(name, {})
        for contribution in found:
            if contribution.replica_id not in kept:
                kept[contribution.replica_id] = contribution
                self._nbytes += len(contribution.body)

    def under(self, name: ExchangeName) -> list[Contribution]:
        """All contributions under ``name``, in the order of the slots."""
        kept = self._kept.get(name, {})
        return [kept[replica_id] for replica_id in sorted(kept, key=replica_order)]

    def step_begun(self, step: int) -> None:
        """This worker has begun ``step``: it contributes nothing under names of earlier steps."""
        self._begun_step, self._begun_max = step, max(self._begun_max, step)

    def has_declined(self, name: ExchangeName) -> bool:
        """Whether this worker may have answered "nothing" under ``name``."""
        return name in self._declined or SET_UP < name.step < self._begun_max

    def come_to(self, name: ExchangeName) -> None:
        """This worker reaches an exchange: drop what is too old, or belongs to steps that were
        lost.
        """
        oldest = name.step - STEPS_KEPT + 1
        for other in [n for n in self._kept if not oldest <= n.step <= name.step]:
            self._nbytes -= sum(len(c.body) for c in self._kept.pop(other).values())
        self._read = {other for other in self._read if oldest <= other.step <= name.step}
        self._declined = {other for other in self._declined if oldest <= other.step <= name.step}

    def note_gaps(self, gaps: int) -> None:
        """``gaps``: how often a quorum may have left this worker out.

        If it rises: withdraw the value.
        """
        if gaps == self._gaps:
            return
        self._gaps = gaps
        if self._waits is not None:
            name, self._waits = self._waits[0], None
            own = self._kept.get(name, {}).pop(self._own_id, None)
            self._nbytes -= len(own.body) if own is not None else 0
            self._declined.add(name)
            self._undecided = name

    def has_taken_back(self, name: ExchangeName) -> bool:
        """Whether the own value under ``name`` was withdrawn, and nothing is decided since."""
        return self._undecided == name

    def begins_to_peek(self, name: ExchangeName) -> None:
        """This worker is late: it asks its peers before it decides whether to contribute."""
        self._undecided = name

    def has_decided(self, name: ExchangeName, *, reads: bool) -> None:
        """This late worker contributes, or only reads."""
        self._undecided = None
        if reads:
            self._read.add(name)

    def decline(self, name: ExchangeName) -> list[Contribution] | None:
        """Answer without an own value; None: whether there will be one is not decided yet."""
        if name == self._undecided:
            return None
        self._declined.add(name)
        return self.under(name)

    def waits(self, name: ExchangeName, awaits: Awaits) -> None:
        """This worker has contributed under ``name``, and waits for its peers."""
        self._waits = name, awaits
        self._given, self._told = name, set()

    def tells(self, name: ExchangeName, slot: str) -> None:
        """A peer receives the answer under ``name``."""
        if name == self._given:
            self._told.add(slot)

    def owes(self, slots: Collection[str]) -> frozenset[str]:
        """The slots among ``slots`` that have not received this worker's last value."""
        others = frozenset(slots) - {self._own_id}
        return others - self._told if self._given is not None else frozenset()

    def waits_no_longer(self) -> None:
        """The exchange under way is complete, or given up."""
        self._waits = self._undecided = None

    def peek(self, question: ExchangeQuestion) -> list[Contribution]:
        """The answer to a late replica that peeks."""
        found = self.under(question.name)
        if question.of and self._waits is not None and self._waits[0] == question.name:
            awaits = self._waits[1]
            if awaits(question.of, question.attempt):
                return [c for c in found if c.replica_id == question.of]
        return found

    def answer(self, name: ExchangeName) -> list[Contribution] | None:
        """The answer to a peer; None: this worker has not reached this exchange yet."""
        found = self.under(name)
        if any(c.replica_id == self._own_id for c in found) or name in self._read:
            return found
        return self.decline(name) if SET_UP < name.step < self._begun_step else None

    @property
    def is_full(self) -> bool:
        return self._nbytes > KEPT_BYTES_MAX


class Round:
    """One exchange under way, of one worker.

    Pass it the quorum whenever it changes, and the answers. Without a quorum (``attempt`` None) the
    exchange waits for the next one.

    Attributes:
        open: the members that have not answered in this round.
    """

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._attempt: Attempt | None = None
        self._members: tuple[str, ...] = ()
        self.open: set[str] = set()

    @property
    def attempt(self) -> Attempt | None:
        """The attempt of this round's quorum; None: no quorum is in force."""
        return self._attempt

    @property
    def is_complete(self) -> bool:
        return self._attempt is not None and not self.open

    def begin(self, attempt: Attempt | None, members: Collection[str]) -> bool:
        """Set the quorum in force. Returns True if that begins a new round."""
        if attempt == self._attempt:
            return False
        self._attempt = attempt
        self._members = tuple(members)
        self.open = set(members) - {self._own_id}
        return True

    def answered(self, attempt: Attempt, replica_id: str) -> bool:
        """A member has answered. Returns False if this is of an earlier round: drop the answer.

        The caller makes sure that the quorum of ``attempt`` is still in force: a member that has
        already answered in the next round must not get to know more (E1).
        """
        if attempt != self._attempt:
            return False
        self.open.discard(replica_id)
        return True


def answer_of(
    kept: Kept,
    question: ExchangeQuestion,
    in_force: Attempt | None,
    *,
    heals_to: int | None,
    gaps: int,
) -> list[Contribution] | None:
    """A worker's answer to a peer's question; None: not yet.

    Args:
        kept: what this worker keeps.
        question: the peer's question.
        in_force: this worker's quorum; None: it is in none.
        heals_to: the step that it heals to at present; None: it holds its quorum's state.
        gaps: how often a quorum may have left it out.
    """
    name = question.name
    kept.note_gaps(gaps)
    if not may_answer(question.attempt, in_force):
        return None
    if question.how == PEEKS:
        return kept.peek(question)
    found = kept.answer(name)
    is_healing = heals_to is not None and name.step <= heals_to and question.how != IN_STEP
    found = kept.decline(name) if found is None and is_healing else found
    if found is not None:
        kept.tells(name, question.of)
    return found


def may_answer(asked: Attempt, in_force: Attempt | None) -> bool:
    """Whether a member may answer a question of the round ``asked``: it must be in that quorum
    too.
    """
    return in_force is not None and in_force >= asked


@dataclass(frozen=True, slots=True)
class Judgement:
    """The contributions that count in one exchange.

    ``alike``: those from one place, in the order of the slots. ``unlike``: the place of each
    replica, for people; "" if all are at one place. ``is_out``: this worker is among those that do
    not count.
    """

    alike: tuple[Contribution, ...]
    unlike: str = ""
    is_out: bool = False


def judge(own: Contribution, found: Sequence[Contribution]) -> Judgement:
    """Compare the places of all contributions: the place of most replicas counts.

    Of two places with equally many replicas, the place of the lowest slot counts. Every member
    judges the same contributions, so all get the same result. ``own``: this worker's contribution,
    which need not be among those found.
    """
    places: dict[tuple[str, str], list[Contribution]] = {}
    for contribution in sorted(found, key=lambda c: replica_order(c.replica_id)):
        places.setdefault((contribution.site, contribution.what), []).append(contribution)
    alike = max(places.values(), key=len)  # of equals the first one
    if all(contribution.replica_id != own.replica_id for contribution in found):
        places.setdefault((own.site, own.what), []).append(own)
    if len(places) == 1:
        return Judgement(tuple([c for c in alike if c in found]))
    parts = []
    for (site, what), there in places.items():
        names = ", ".join(c.replica_id for c in there)
        parts.append(f"{'replica' if len(there) == 1 else 'replicas'} {names}: {what} at {site}")
    is_out = all(contribution.replica_id != own.replica_id for contribution in alike)
    return Judgement(tuple([c for c in alike if c in found]), "; ".join(parts), is_out)
