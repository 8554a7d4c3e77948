"""Values that replicas give each other outside the steps' reductions: small, by name, kept.

A script that computes a mean of its loss, or waits at a barrier, calls ``exchange``. The main
thread asks each member's state server in turn and waits there, because it needs all answers anyway.
A death or a switch begins another round by itself; nobody waits for a timeout then.

Not here: which contributions count, and what a round is (core/worker/exchange.py); tensors
(inject/zero_edit/world.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ftrun import clock
from ftrun.checkpoint.donor import DonorLink, DonorRefused
from ftrun.checkpoint.proof import heal_key
from ftrun.core.ids import NO_ATTEMPT, Attempt, Tag
from ftrun.core.messages import Roster
from ftrun.core.quorum import Endpoint
from ftrun.core.worker import events as e
from ftrun.core.worker.exchange import (
    BODY_BYTES_MAX,
    SET_UP,
    Contribution,
    ExchangeName,
    ExchangeQuestion,
    Kept,
    Round,
    judge,
    may_answer,
)
from ftrun.errors import PeerError, ProtocolError, UserError
from ftrun.training.context import WorkerContext
from ftrun.training.engine import Engine

log = logging.getLogger(__name__)

QUESTION_TIMEOUT_S = 10.0
"""Above the time that a peer waits for its answer before it says: not yet."""
RETRY_S = 0.05
PLACE_INDEX = 999_999_999
"""The number under which a replica shows its place in the script at a step (``show_place``)."""
PLACES_KEPT = 2
NOTICE_AFTER_S = 20.0


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result of an exchange: the contributions that count, in the order of the slots."""

    contributions: tuple[Contribution, ...]


class Exchanges:
    """The exchanges of one worker. For the main thread, but for ``answer``.

    Args:
        context: of this worker.
        engine: of this worker; its lock guards what is kept.
    """

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._key = heal_key(context.token)
        self._kept = Kept(context.replica_id)
        self._at = SET_UP
        self.index = 0
        self._behind = 0
        self._healed_at = SET_UP
        self._links: dict[str, DonorLink] = {}
        self._places: dict[int, Callable[[], str]] = {}
        engine.on_exchange = self.answer

    # ------------------------------------------------------------ the script's side

    def exchange(
        self,
        site: str,
        what: str,
        body: bytes,
        timeout_s: float,
        *,
        index: int | None = None,
        step: int | None = None,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> Exchanged:
        """Give ``body`` and get what all members of the quorum give at the same place.

        Before the first step all wanted replicas take part, and what they give is kept: a replica
        that is started later gets the same.

        Args:
            site: ``file:line`` of the script's call.
            what: the operation with its dtype and shape.
            body: at most 16 MiB.
            timeout_s: deadline for all answers.
            index: a number of one's own; None: the next one since the last commit.
            step: with ``index``: the step that comes next; None: the one after the last commit.
            gives_up: whether to wait no longer.

        Raises:
            UserError: ``body`` is too large, or this replica is out of step with its peers.
            TimeoutError: a member has not come to this place within ``timeout_s``, or ``gives_up``.
        """
        if len(body) > BODY_BYTES_MAX:
            raise UserError(
                f"{site}: {what} has {len(body)} bytes, and an exchange between replicas takes "
                f"{BODY_BYTES_MAX} at most"
            )
        name = self._next() if index is None else self._numbered(index, step)
        if self.is_full:
            raise UserError(f"{site}: the exchanges of the script's set-up take too much memory")
        own = Contribution(self._context.replica_id, site, what, body)
        waits = _Waiting(name, own, clock.now() + timeout_s, timeout_s, gives_up)
        if name.step == SET_UP:
            self._set_up(waits)
        else:
            if name.step <= self._healed_at:
                self._read_own(waits)
            self._give(waits)
            self._between(waits)
        with self._engine.changed:
            found = self._kept.under(name)
        judgement = judge(own.replica_id, found)
        if judgement.is_out:
            raise UserError(
                f"this replica is out of step with its peers: {judgement.unlike}. It ends, before "
                "it disturbs the others"
            )
        if judgement.unlike:
            log.warning("a replica is out of step: %s", judgement.unlike)
        return Exchanged(judgement.alike)

    @property
    def is_full(self) -> bool:
        """Whether the exchanges before the first step take all the memory that they may."""
        with self._engine.changed:
            return self._kept.is_full

    @property
    def is_in_set_up(self) -> bool:
        """Whether this worker has not begun its first step."""
        return self._at_step() == SET_UP

    def close(self) -> None:
        """Close all connections to peers."""
        for link in self._links.values():
            link.end()
            link.close()
        self._links.clear()

    def _next(self) -> ExchangeName:
        """The name of the next exchange. The number begins at 0 after each commit."""
        at = self._at_step()
        if at != self._at:
            self._at, self.index = at, 0
        name = ExchangeName(at, self.index)
        self.index += 1
        return name

    def _numbered(self, index: int, step: int | None) -> ExchangeName:
        at = self._at_step()
        return ExchangeName(at if step is None or at == SET_UP else step, index)

    def step_begun(self, step: int) -> None:
        """Managed groups exchange under the name of ``step`` from now on."""
        with self._engine.changed:
            self._kept.step_begun(step)
            self._engine.changed.notify_all()

    def place(self) -> int:
        """How many exchanges there were since the last commit."""
        return self.index if self._at_step() == self._at else 0

    def _at_step(self) -> int:
        machine = self._engine.machine
        return machine.state.step - self._behind if machine.begun else SET_UP

    def set_place(self, index: int, behind: int = 0) -> None:
        """This worker has healed to a state in which its peers have exchanged that often.

        ``behind``: it goes through that many steps again, whose exchanges its peers have kept.
        """
        self._behind = behind
        self._healed_at = self._engine.machine.state.step
        self._at, self.index = self._at_step(), index

    def step_again(self) -> None:
        """One of the steps that this worker goes through again has ended."""
        self._behind = max(0, self._behind - 1)

    def show_place(self, encode: Callable[[], str]) -> None:
        """Show peers that heal to the state of this step where the script stands at it."""
        with self._engine.changed:
            self._places[self._engine.machine.position] = encode
            while len(self._places) > PLACES_KEPT:
                del self._places[min(self._places)]
            self._engine.changed.notify_all()

    def ask_place(self, timeout_s: float, step: int | None = None) -> str | None:
        """The place of the replicas that this one has healed from; None: nobody answers.

        ``step``: the place at which they began it; None: the step under way, or the next one.

        It is one donor's answer, because values that nobody reduces differ between replicas.
        """
        machine, deadline = self._engine.machine, clock.now() + timeout_s
        name = ExchangeName(machine.position if step is None else step, PLACE_INDEX)
        while clock.now() < deadline:
            quorum = machine.in_force
            if quorum is None:
                return None  # interrupted: the next quorum names the donors
            for member in quorum.members:
                if member.replica_id not in quorum.donors:
                    continue
                question = ExchangeQuestion(name, of=member.replica_id)
                found = self._ask(member.endpoints[self._context.group_rank], question)
                if found:
                    return found[0].body.decode()
            self._engine.await_answer(lambda: None, RETRY_S)
        return None

    def peek_place(self, timeout_s: float) -> str | None:
        """Where the replicas that train stand now; None: none trains, or nobody answers."""
        deadline, rank = clock.now() + timeout_s, self._context.group_rank
        question = ExchangeName(SET_UP, PLACE_INDEX)
        while clock.now() < deadline:
            roster = self.peers(max(0.0, deadline - clock.now()))
            if not roster.has_begun:
                return None
            for entry in roster.entries:
                if entry.replica_id == self._context.replica_id:
                    continue
                asked = ExchangeQuestion(question, of=entry.replica_id)
                found = self._ask(entry.endpoints[rank], asked)
                if found:
                    return found[0].body.decode()
            self._engine.peers = None  # they may have been restarted meanwhile
            self._engine.await_answer(lambda: None, RETRY_S)
        return None

    def _shown(self, step: int) -> list[Contribution] | None:
        """This replica's place at ``step``; ``SET_UP``: its latest one."""
        if step == SET_UP and self._places:
            step = max(self._places)
        encode = self._places.get(step)
        if encode is None:
            return None
        return [Contribution(self._context.replica_id, "", "place", encode().encode())]

    def _give(self, waits: _Waiting) -> None:
        with self._engine.changed:
            self._kept.give(waits.name, waits.own)
            self._engine.changed.notify_all()

    # ------------------------------------------------------------ before the first step

    def _set_up(self, waits: _Waiting) -> None:
        """Exchange with all wanted replicas, or read what those that train have exchanged."""
        while True:
            roster = self.peers(waits.left_s())
            peers = {
                entry.replica_id: entry.endpoints[self._context.group_rank]
                for entry in roster.entries
                if entry.replica_id != self._context.replica_id
            }
            if roster.has_begun:
                if self._read_kept(waits, peers):
                    return
            elif self._take_part(waits, peers):
                return
            waits.check(sorted(peers))

    def peers(self, timeout_s: float) -> Roster:
        """The replicas that train, or all that are to take part if none does yet.

        Raises:
            TimeoutError: they are not all there within ``timeout_s``.
        """
        engine = self._engine
        if engine.peers is None:
            engine.feed(e.PeersAsked())
            engine.wait_until(lambda: engine.peers is not None, timeout_s, "the other replicas")
        assert engine.peers is not None
        return engine.peers

    def slots_that_are_over(self, timeout_s: float) -> frozenset[str]:
        """The slots whose part in the job is over by now; the lighthouse is asked anew.

        Raises:
            TimeoutError: it does not answer.
        """
        self._engine.peers = None
        return frozenset(self.peers(timeout_s).finished)

    def _read_kept(self, waits: _Waiting, peers: dict[str, Endpoint]) -> bool:
        """Read from one of those that train; False: none can be reached, so ask who is there."""
        for replica_id, endpoint in peers.items():
            found = self._ask(endpoint, ExchangeQuestion(waits.name))
            if found is None:
                continue
            if not found:
                log.warning(
                    "%s: its peers had no such exchange before their first step, so replica %s "
                    "goes on with its own value",
                    waits.own.site,
                    replica_id,
                )
            self._keep(waits.name, found)
            self._give(waits)
            return True
        self._engine.peers = None
        return not peers

    def _take_part(self, waits: _Waiting, peers: dict[str, Endpoint]) -> bool:
        """Exchange with all; False: one cannot be reached, so ask who is there."""
        for endpoint in peers.values():  # a predecessor of this slot may have given something
            question = ExchangeQuestion(waits.name, of=self._context.replica_id)
            self._keep(waits.name, self._ask(endpoint, question) or [])
        self._give(waits)
        for replica_id, endpoint in peers.items():
            found = self._ask_until(waits, replica_id, endpoint, NO_ATTEMPT, lambda: True)
            if found is None:
                self._engine.peers = None
                return False
            self._keep(waits.name, found)
        return True

    # ------------------------------------------------------------ between two steps

    def _between(self, waits: _Waiting) -> None:
        """Ask all members of the quorum in force, and again if that changes."""
        machine, own_id = self._engine.machine, self._context.replica_id
        this_round = Round(own_id)
        rank = self._context.group_rank
        while True:
            with self._engine.changed:
                quorum = machine.in_force
                if quorum is None:
                    this_round.begin(None, ())
                else:
                    members = {x.replica_id: x.endpoints[rank] for x in quorum.members}
                    this_round.begin(quorum.attempt, members)
            if this_round.is_complete:
                return
            if quorum is None:
                self._await_quorum(waits)
                continue
            replica_id = min(this_round.open)
            attempt = quorum.attempt
            found = self._ask_until(
                waits, replica_id, members[replica_id], attempt, partial(self._stands, attempt)
            )
            if found is None:
                self._await_change(waits, attempt, replica_id)
            else:
                with self._engine.changed:  # an answer of a quorum that is over must not be kept
                    if self._stands(attempt) and this_round.answered(attempt, replica_id):
                        self._kept.add(waits.name, found)

    def _read_own(self, waits: _Waiting) -> None:
        """What a predecessor of this slot has given, its peers have counted already."""
        quorum, rank = self._engine.machine.in_force, self._context.group_rank
        own = ExchangeQuestion(waits.name, of=self._context.replica_id)
        for member in () if quorum is None else quorum.members:
            if member.replica_id != self._context.replica_id:
                self._keep(waits.name, self._ask(member.endpoints[rank], own) or [])

    def _stands(self, attempt: Attempt) -> bool:
        """Whether the quorum of ``attempt`` is still in force here."""
        quorum = self._engine.machine.in_force
        return quorum is not None and quorum.attempt == attempt

    def _await_quorum(self, waits: _Waiting) -> None:
        machine = self._engine.machine
        self._engine.wait_until(
            lambda: machine.in_force is not None, waits.left_s(), f"{waits.own.site}: a quorum"
        )

    def _await_change(self, waits: _Waiting, attempt: Attempt, replica_id: str) -> None:
        """A member cannot be reached: either the quorum changes, or it is asked again."""
        waits.check([replica_id])
        self._engine.await_answer(lambda: None if self._stands(attempt) else True, RETRY_S)

    # ------------------------------------------------------------ questions and answers

    def answer(self, question: ExchangeQuestion, timeout_s: float) -> bytes | None:
        """The answer to a peer's question; None: not known yet. From any thread."""
        machine = self._engine.machine

        def find() -> Sequence[Contribution] | None:
            if question.name.index == PLACE_INDEX:
                return self._shown(question.name.step)
            if question.of:
                found = self._kept.under(question.name)
                return [c for c in found if c.replica_id == question.of]
            is_set_up = question.name.step == SET_UP
            in_force = machine.in_force.attempt if machine.in_force is not None else None
            if not is_set_up and not may_answer(question.attempt, in_force):
                return None
            known = self._kept.answer(question.name)
            if known is None and is_set_up and machine.begun:
                return []  # this worker had no such exchange, and will have none
            return known

        found = self._engine.await_answer(find, timeout_s)
        return None if found is None else encode(found)

    def _keep(self, name: ExchangeName, found: Sequence[Contribution]) -> None:
        with self._engine.changed:
            self._kept.add(name, found)

    def _ask_until(
        self,
        waits: _Waiting,
        replica_id: str,
        endpoint: Endpoint,
        attempt: Attempt,
        stands: Callable[[], bool],
    ) -> list[Contribution] | None:
        """A member's answer, however long its script takes; None: it cannot be reached."""
        question = ExchangeQuestion(waits.name, attempt)
        while stands():
            self._engine.raise_fatal()
            try:
                return decode(self._link(endpoint).exchange(question, self._soon()))
            except DonorRefused as refusal:
                if not refusal.ask_again:
                    raise PeerError(f"replica {replica_id} refuses: {refusal}") from refusal
                waits.check([replica_id])
            except (PeerError, OSError) as error:
                log.debug("replica %s does not answer: %s", replica_id, error)
                self._drop(endpoint)
                return None
        return None

    def _ask(self, endpoint: Endpoint, question: ExchangeQuestion) -> list[Contribution] | None:
        """One question; None: no answer."""
        try:
            return decode(self._link(endpoint).exchange(question, self._soon()))
        except (PeerError, OSError) as error:
            log.debug("%s does not answer: %s", endpoint.heal, error)
            self._drop(endpoint)
            return None

    def _soon(self) -> float:
        return clock.now() + QUESTION_TIMEOUT_S

    def _link(self, endpoint: Endpoint) -> DonorLink:
        link = self._links.get(endpoint.heal)
        if link is None:
            shown = endpoint.heal_certificate if self._context.heal_tls else None
            receiver = self._context.key.incarnation
            tag = Tag(NO_ATTEMPT, 0)  # a link's tag is for states only
            link = DonorLink(endpoint.heal, tag, self._key, receiver, 0.0, shown)
            self._links[endpoint.heal] = link
        return link

    def _drop(self, endpoint: Endpoint) -> None:
        link = self._links.pop(endpoint.heal, None)
        if link is not None:
            link.close()


@dataclass(slots=True)
class _Waiting:
    """One call of the script, and how long it may wait."""

    name: ExchangeName
    own: Contribution
    deadline: float
    timeout_s: float
    gives_up: Callable[[], bool] = lambda: False
    noticed_at: float = 0.0

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - clock.now())

    def check(self, whom: Sequence[str]) -> None:
        """Say for whom this waits, now and then.

        Raises:
            TimeoutError: the deadline has come, or it gives up.
        """
        now = clock.now()
        names = ", ".join(whom)
        place = f"{self.own.what} at {self.own.site}"
        if self.gives_up():
            raise TimeoutError(f"{place}: waits for replica {names} no longer")
        if now >= self.deadline:
            raise TimeoutError(
                f"{place}: replica {names} did not come to this place within {self.timeout_s:g} s"
            )
        self.noticed_at = self.noticed_at or self.deadline - self.timeout_s
        if now - self.noticed_at >= NOTICE_AFTER_S:
            self.noticed_at = now
            log.warning("%s waits for replica %s", place, names)


def encode(found: Sequence[Contribution]) -> bytes:
    """An answer: a line of JSON about the contributions, then their bodies."""
    head = [[c.replica_id, c.site, c.what, len(c.body)] for c in found]
    return json.dumps(head).encode() + b"\n" + b"".join(c.body for c in found)


def decode(data: bytes) -> list[Contribution]:
    """The contributions in an answer.

    Raises:
        ProtocolError: ``data`` is no answer.
    """
    line, _, rest = data.partition(b"\n")
    found, at = [], 0
    try:
        for replica_id, site, what, size in json.loads(line):
            is_known = all(isinstance(text, str) for text in (replica_id, site, what))
            if not (is_known and type(size) is int and 0 <= size <= len(rest) - at):
                raise ValueError("of the wrong type")
            found.append(Contribution(replica_id, site, what, rest[at : at + size]))
            at += size
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a peer sent an exchange that cannot be read: {error}") from error
    return found
