"""Named exchanges: values that the replicas of a quorum give each other between two steps. Pure.

Theory of operation. An exchange has a name: the step that was begun last, also after its end, and
its number since then. A step that is tried again has the same names, and gets the values that are
kept. Every replica keeps what it gives and what it has got, for the last steps, so that a replica
that comes later reads the same. Before the first step there is no quorum, and no exchange.

A replica asks each member for all contributions that this member keeps under the name; a member
answers once its own is among them. When all members have answered, the exchange is complete, with
the union of their contributions. If the quorum changes meanwhile, a new *round* begins: all members
of the new quorum are asked again, and answer only once they are in that quorum too. From then on
no member accepts an answer of an earlier round. So if one survivor has a dead replica's
contribution, it is in the union of all. The result is the same everywhere (E1), also for a replica
whose exchange was complete before.

A replica that begins with a step, or has healed to it, is *late* for the exchanges of that step and
of earlier ones: its peers may have completed them. So it peeks first: each member shows its
contributions, but as long as it waits for this replica, only that of this replica's predecessor. If
they show anything, the late replica only reads; else it gives like all others.

A replica answers "nothing" under names of steps before the one that it has begun. While it heals it
does not know its place. Then it answers "nothing" to each peer that has not begun the step, because
such a peer begins the step only after the exchange. If it comes to such a name after all, it gives
only if no member has anything. A replica gives its value before it asks. A late one answers
"nothing" before it peeks, or not until it has decided. So it never gives a value for which some
member has not waited (E1).

A replica that was left out of a quorum and comes back with its state is late too. It takes back its
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
"""Characters of an incarnation in a question."""


class Kind(str, Enum):
    """The data that is exchanged under a name."""

    VALUES = ""
    """What the script gives, or ftrun for it."""
    STAGE = "stage"
    """How far a replica is that ends (parting.py)."""
    PLACE = "place"
    """Where a replica stands in its script (exchange_places.py)."""


_NAME = re.compile(rf"(setup|[0-9]{{1,18}})\.({'|'.join(Kind)})([0-9]{{1,9}})", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class ExchangeName:
    """``index``: the number of the exchange since its step was begun; of a stage its own."""

    step: int
    index: int
    kind: Kind = Kind.VALUES

    def path(self) -> str:
        """The name in an address: ``setup.0``, ``211.3``, ``211.place0``."""
        return f"{'setup' if self.step == SET_UP else self.step}.{self.kind.value}{self.index}"

    @staticmethod
    def parse(text: str) -> ExchangeName:
        """The name in a text that ``path`` has made.

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
        """A step begins, perhaps once more."""
        self._step, self._since = step, 0

    def next(self) -> ExchangeName:
        number, self._since = self._since, self._since + 1
        return ExchangeName(self._step, number)

    def is_void(self, state: int, *, in_step: bool) -> bool:
        """Whether the last step has ended without a commit, and none has begun since.

        Peers that have repaired and committed it never come to the exchanges after such a try.

        Args:
            state: the steps committed in this worker's state.
            in_step: it has a step under way.
        """
        return not in_step and self._step >= state


ASKS, IN_STEP, PEEKS = "asks", "step", "peeks"
_OF = "of"


@dataclass(frozen=True, slots=True)
class ExchangeQuestion:
    """A question to a peer about what it keeps under ``name``.

    Without ``how`` and ``of`` the peer answers once its own contribution is among them.

    ``how`` ASKS: and once it is in the quorum of ``attempt``; ``of`` is the slot that asks.
    IN_STEP: the same, and that one has a step under way, so whoever heals to it may still come.
    PEEKS: what there is now is wanted, but if the peer still waits for the slot ``of``, only that
    slot's. Else with ``of``: a place, or a stage, is wanted now; ``by``: the rank that asks.
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
        """The question in an address that ``path`` has made.

        Raises:
            ValueError: the address is no question.
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
    """The value of one worker. ``what``: the operation with its dtype and shape, for comparison."""

    replica_id: str
    site: str
    what: str
    body: bytes


class Kept:
    """The contributions that one worker keeps, its own and its peers'.

    Args:
        replica_id: of this worker.
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
        self._given: ExchangeName | None = None  # the last one between two steps
        self._told: set[str] = set()  # the slots that have got it

    def give(self, name: ExchangeName, own: Contribution) -> Contribution:
        """Keep what this worker gives; what a predecessor of this slot has given stays instead."""
        self.come_to(name)
        self.add(name, (own,))
        return self._kept[name][self._own_id]

    def add(self, name: ExchangeName, found: Iterable[Contribution]) -> None:
        """Keep what a peer has answered; what is known stays."""
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
        """This worker has begun ``step``: it gives nothing under names of earlier ones."""
        self._begun_step, self._begun_max = step, max(self._begun_max, step)

    def has_declined(self, name: ExchangeName) -> bool:
        """Whether this worker may have answered "nothing" under ``name``."""
        return name in self._declined or SET_UP < name.step < self._begun_max

    def come_to(self, name: ExchangeName) -> None:
        """This worker comes to an exchange: drop what is too old, or of steps that were lost."""
        oldest = name.step - STEPS_KEPT + 1
        for other in [n for n in self._kept if not oldest <= n.step <= name.step]:
            self._nbytes -= sum(len(c.body) for c in self._kept.pop(other).values())
        self._read = {other for other in self._read if oldest <= other.step <= name.step}
        self._declined = {other for other in self._declined if oldest <= other.step <= name.step}

    def note_gaps(self, gaps: int) -> None:
        """``gaps``: how often a quorum may have left this worker out. If one more: take back."""
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
        """Whether the own value under ``name`` was taken back, and nothing is decided since."""
        return self._undecided == name

    def begins_to_peek(self, name: ExchangeName) -> None:
        """This worker, which is late, finds out whether to give something under ``name``."""
        self._undecided = name

    def has_decided(self, name: ExchangeName, *, reads: bool) -> None:
        """It gives something, or only reads."""
        self._undecided = None
        if reads:
            self._read.add(name)

    def decline(self, name: ExchangeName) -> list[Contribution] | None:
        """Answer without a value of one's own; None: that is not decided yet."""
        if name == self._undecided:
            return None
        self._declined.add(name)
        return self.under(name)

    def waits(self, name: ExchangeName, awaits: Awaits) -> None:
        """This worker has given its value under ``name``, and waits for its peers."""
        self._waits = name, awaits
        self._given, self._told = name, set()

    def tells(self, name: ExchangeName, slot: str) -> None:
        """A peer gets the answer under ``name``."""
        if name == self._given:
            self._told.add(slot)

    def owes(self, slots: Collection[str]) -> frozenset[str]:
        """The slots among ``slots`` that have not got this worker's last value."""
        others = frozenset(slots) - {self._own_id}
        return others - self._told if self._given is not None else frozenset()

    def waits_no_longer(self) -> None:
        """The exchange under way is complete, or given up."""
        self._waits = self._undecided = None

    def peek(self, question: ExchangeQuestion) -> list[Contribution]:
        """The contributions that a late replica must not change."""
        found = self.under(question.name)
        if question.of and self._waits is not None and self._waits[0] == question.name:
            awaits = self._waits[1]
            if awaits(question.of, question.attempt):
                return [c for c in found if c.replica_id == question.of]
        return found

    def answer(self, name: ExchangeName) -> list[Contribution] | None:
        """The answer to a peer; None: this worker has not come to this exchange yet."""
        found = self.under(name)
        if any(c.replica_id == self._own_id for c in found) or name in self._read:
            return found
        return self.decline(name) if SET_UP < name.step < self._begun_step else None

    @property
    def is_full(self) -> bool:
        return self._nbytes > KEPT_BYTES_MAX


class Round:
    """One exchange under way, of one worker.

    Feed it the quorum whenever that changes, and the answers. Without a quorum (``attempt`` None)
    the exchange waits for the next one.

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
        """The quorum in force; True if that begins a new round."""
        if attempt == self._attempt:
            return False
        self._attempt = attempt
        self._members = tuple(members)
        self.open = set(members) - {self._own_id}
        return True

    def answered(self, attempt: Attempt, replica_id: str) -> bool:
        """A member has answered; False: in an earlier round, so its answer must be dropped.

        The caller makes sure that the quorum of ``attempt`` is still in force: a member that has
        answered in the next round already must not come to know more (E1).
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
        question: of a peer.
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
    """Whether a member may answer a question of the round ``asked``: it is in that quorum too."""
    return in_force is not None and in_force >= asked


@dataclass(frozen=True, slots=True)
class Judgement:
    """The choice of the contributions that count in one exchange.

    ``alike``: those of one place, in the order of the slots. ``unlike``: who stands where, for
    people; "" if all are alike. ``is_out``: this worker is among those that do not count.
    """

    alike: tuple[Contribution, ...]
    unlike: str = ""
    is_out: bool = False


def judge(own: Contribution, found: Sequence[Contribution]) -> Judgement:
    """Compare the places of all contributions: the one of most replicas counts.

    Of two places with equally many replicas, that of the lowest slot counts. Every member judges
    the same contributions, so all come to the same answer. ``own``: what this worker would give;
    it may not be among them.
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
