"""Named exchanges: values that the replicas of a quorum give each other between two steps. Pure.

Theory of operation. An exchange has a name: the step that comes next (``SET_UP`` before the first
one) and its number since the last commit. Every replica keeps what it gives and what it has got,
for the last steps, and all of the set-up, so that whoever comes later reads the same.

A replica asks each member for all contributions that this member keeps under the name; a member
answers once its own is among them. When all members have answered, the exchange is complete, with
the union of their contributions. If the quorum changes meanwhile, a new *round* begins: all members
of the new quorum are asked again, and answer only once they are in that quorum too. From then on
nobody takes an answer of an earlier round any more. So a dead replica's contribution that one
survivor has is in the union of all, and the result is the same everywhere (E1), also for one that
was complete before.

A contribution carries its call site, operation and shape. If they differ under one name, the
replicas are out of step, and the exchange says who stands where (E2).

A worker that lacks the count of the step it has joined (its heal was interrupted) gives nothing
there. From its next step on it answers without a contribution of its own, so that nobody waits.

Not here: sockets, waiting, tensors (training/exchanges.py); a worker's quorums (machine.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ftrun.core.ids import NO_ATTEMPT, Attempt, replica_order

SET_UP = -1
"""``ExchangeName.step`` before the first step."""
MANAGED_FROM = 500_000_000
"""The numbers from here on are those of managed groups, which name the step that was begun last."""
STEPS_KEPT = 4
KEPT_BYTES_MAX = 256 << 20
BODY_BYTES_MAX = 16 << 20


@dataclass(frozen=True, order=True, slots=True)
class ExchangeName:
    """``index``: the number of the exchange since the last commit, or in the set-up; from 0."""

    step: int
    index: int

    def path(self) -> str:
        """The name in an address: ``setup.0``, ``211.3``."""
        return f"{'setup' if self.step == SET_UP else self.step}.{self.index}"

    @staticmethod
    def parse(text: str) -> ExchangeName:
        """The name that ``path`` has written.

        Raises:
            ValueError: it is none.
        """
        step, _, index = text.partition(".")
        if not (index.isdecimal() and len(index) < 10):
            raise ValueError(f"no exchange: {text[:40]!r}")
        if step == "setup":
            return ExchangeName(SET_UP, int(index))
        if not (step.isdecimal() and len(step) < 19):
            raise ValueError(f"no exchange: {text[:40]!r}")
        return ExchangeName(int(step), int(index))


@dataclass(frozen=True, slots=True)
class ExchangeQuestion:
    """A question to a peer about what it keeps under ``name``.

    ``of``: only the contribution of this slot is wanted, and at once. Else the peer answers once
    its own is among them and it is in the quorum of ``attempt``.
    """

    name: ExchangeName
    attempt: Attempt = NO_ATTEMPT
    of: str = ""

    def path(self) -> str:
        """The address of the answer on the peer's state server."""
        if self.of:
            return f"/exchanges/{self.name.path()}/of/{self.of}"
        attempt = f"{self.attempt.quorum_id}.{self.attempt.number}"
        return f"/exchanges/{attempt}/{self.name.path()}"

    @staticmethod
    def parse(path: str) -> ExchangeQuestion:
        """The question that ``path`` has written.

        Raises:
            ValueError: it is none.
        """
        parts = path.split("/")[2:]
        if len(parts) == 3 and parts[1] == "of" and parts[2].isdecimal() and len(parts[2]) < 10:
            return ExchangeQuestion(ExchangeName.parse(parts[0]), of=parts[2])
        if len(parts) != 2:
            raise ValueError("no question about an exchange")
        quorum_id, _, number = parts[0].partition(".")
        if not all(n.isdecimal() and len(n) < 20 for n in (quorum_id, number)):
            raise ValueError("no attempt")
        attempt = Attempt(int(quorum_id), int(number))
        return ExchangeQuestion(ExchangeName.parse(parts[1]), attempt)


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
        self._begun = SET_UP

    def give(self, name: ExchangeName, own: Contribution) -> Contribution:
        """Keep what this worker gives; what a predecessor of this slot has given stays instead."""
        self._drop_before(name)
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
        """This worker has begun ``step``: under managed names of earlier ones it gives no more."""
        self._begun = step

    def answer(self, name: ExchangeName) -> list[Contribution] | None:
        """The answer to a peer; None: this worker has not come to this exchange yet."""
        found = self.under(name)
        has_passed = name.index >= MANAGED_FROM and SET_UP < name.step < self._begun
        return found if has_passed or any(c.replica_id == self._own_id for c in found) else None

    @property
    def is_full(self) -> bool:
        """Whether more is kept than the limit allows."""
        return self._nbytes > KEPT_BYTES_MAX

    def _drop_before(self, name: ExchangeName) -> None:
        if name.step == SET_UP:
            return
        oldest = name.step - STEPS_KEPT + 1
        for old in [n for n in self._kept if n.step != SET_UP and n.step < oldest]:
            self._nbytes -= sum(len(c.body) for c in self._kept.pop(old).values())


class Round:
    """One exchange under way, of one worker.

    Feed it the quorum whenever that changes, and the answers. ``members`` None: no quorum is in
    force, so the exchange waits for the next one.

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
        """The quorum of this round; None: there is none."""
        return self._attempt

    @property
    def is_complete(self) -> bool:
        """Whether all members have answered."""
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


def may_answer(asked: Attempt, in_force: Attempt | None) -> bool:
    """Whether a member may answer a question of the round ``asked``: it is in that quorum too."""
    return in_force is not None and in_force >= asked


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which contributions of one exchange count.

    ``alike``: those of one place, in the order of the slots. ``unlike``: who stands where, for
    people; "" if all are alike. ``is_out``: this worker is among those that do not count.
    """

    alike: tuple[Contribution, ...]
    unlike: str = ""
    is_out: bool = False


def judge(own_id: str, found: Sequence[Contribution]) -> Judgement:
    """Compare the places of all contributions: the one of most replicas counts.

    Of two places with equally many replicas, that of the lowest slot counts. Every member judges
    the same contributions, so all come to the same answer.
    """
    places: dict[tuple[str, str], list[Contribution]] = {}
    for contribution in sorted(found, key=lambda c: replica_order(c.replica_id)):
        places.setdefault((contribution.site, contribution.what), []).append(contribution)
    alike = max(places.values(), key=len)  # of equals the first one
    if len(places) == 1:
        return Judgement(tuple(alike))
    parts = []
    for (site, what), there in places.items():
        names = ", ".join(c.replica_id for c in there)
        parts.append(f"{'replica' if len(there) == 1 else 'replicas'} {names}: {what} at {site}")
    is_out = all(contribution.replica_id != own_id for contribution in alike)
    return Judgement(tuple(alike), "; ".join(parts), is_out)
