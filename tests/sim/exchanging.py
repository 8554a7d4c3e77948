"""A simulated worker's exchanges: the real core machines, with a modelled network between them.

A question goes to the peer's state server, which keeps it until the answer is known, or for
``ANSWER_S``. Questions and answers may be late; peers that are cut off or dead are not reached. The
main thread asks one peer after another, as in ``training/exchanges.py``.

Not here: the rules (exchange_rules.py); when the script exchanges (script.py).
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftrun.core.ids import Attempt, StateId
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.asking import (
    AskLighthouse,
    AskPeer,
    AwaitQuorum,
    GiveUpQuorum,
    Known,
    NextMove,
)
from ftrun.core.worker.exchange import (
    Contribution,
    ExchangeName,
    ExchangeQuestion,
    Kept,
    Kind,
    Names,
    answer_of,
)
from ftrun.core.worker.exchange_places import (
    PeekingAtPlace,
    ShownPlaces,
    place_of,
)
from ftrun.core.worker.exchanging import Exchanging
from ftrun.core.worker.parting import ShownStage
from tests.sim.until import INSTANT_S, Until, Wait
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.worker import Worker

ANSWER_S, STAGE_ANSWER_S = 1.0, 0.2
"""How long a peer keeps a question, and a question about a stage."""
LOST_S = 1.5
"""After this time a question counts as lost: the peer was not reached."""
RETRY_S = 0.05
PATIENCE_S = 300.0
"""A script's patience: longer than any fault, because its deadline is not under test."""


@dataclass(frozen=True)
class Programme:
    """How often the script exchanges: at each place of its loop, by the step."""

    seed: int

    def in_step(self, step: int) -> int:
        """Between the beginning of a step and its reductions."""
        return random.Random(f"{self.seed}/in/{step}").choice((0, 0, 1, 2))

    def after(self, step: int) -> int:
        """After the step's end."""
        return random.Random(f"{self.seed}/after/{step}").choice((0, 1, 1, 2))


class Asked:
    """One question in flight. ``found``: the answer; None: there was none."""

    def __init__(self, asker: Worker, ask: AskPeer) -> None:
        self.ask = ask
        self.is_over = False
        self.is_reached = False
        self.found: list[Contribution] | None = None
        self._asker = asker
        self._send()

    @property
    def reply(self) -> Until:
        """Wait until it is over."""
        return Until(lambda: self.is_over, PATIENCE_S, "an answer")

    def _send(self) -> None:
        asker, world = self._asker, self._asker.world
        peer: Worker = world.endpoints[self.ask.endpoint.heal]
        if not peer.alive:
            world.at(world.rng.uniform(0.0002, 0.002), asker, self._end, None, False)
            return
        world.at(LOST_S, asker, self._end, None, False)
        if _hears(asker, peer):
            world.at(_delay_s(asker), peer, peer.exchanges.received, self)

    def answer(self, peer: Worker, found: list[Contribution] | None) -> None:
        """The peer's answer is the value that it keeps; None: not yet."""
        if _hears(peer, self._asker):
            self._asker.world.at(_delay_s(peer), self._asker, self._end, found, True)

    def _end(self, found: list[Contribution] | None, is_reached: bool) -> None:
        if not self.is_over:
            self.is_over, self.found, self.is_reached = True, found, is_reached
            self._asker.script.wake()


def _delay_s(worker: Worker) -> float:
    rng = worker.world.rng
    return rng.uniform(0.0001, 0.002) if rng.random() < 0.9 else rng.uniform(0.0, 0.3)


def _hears(sender: Worker, receiver: Worker) -> bool:
    its, own, now = sender.agent.host, receiver.agent.host, sender.world.now
    return own is its or sender.world.calm or max(own.deaf_until, its.mute_until) <= now


class SimulatedExchanges:
    """The counterpart of training/exchanges.py for a simulated worker."""

    def __init__(self, worker: Worker, programme: Programme) -> None:
        self._worker = worker
        self.programme = programme
        self.kept = Kept(worker.key.replica_id)
        self.names = Names()
        self.places = ShownPlaces()
        self.stage = ShownStage()
        self._attempt: Attempt | None = None
        self.results: dict[ExchangeName, tuple[bytes, ...]] = {}
        self._questions: list[tuple[Asked, float]] = []

    # ------------------------------------------------------------ the peers' questions

    def received(self, asked: Asked) -> None:
        """A peer's question has arrived."""
        keeps_s = STAGE_ANSWER_S if asked.ask.question.name.kind is Kind.STAGE else ANSWER_S
        self._questions.append((asked, self._worker.world.now + keeps_s))
        self._worker.world.at(keeps_s, self._worker, self.look)
        self.look()

    def look(self) -> None:
        """Answer the questions that can be answered by now, and those that have waited too long."""
        waiting, self._questions = self._questions, []
        for asked, until in waiting:
            found = self._find(asked.ask.question)
            if found is not None or self._worker.world.now >= until:
                self._note_vain(asked.ask.question, found)
                asked.answer(self._worker, found)
            else:
                self._questions.append((asked, until))

    def _note_vain(self, question: ExchangeQuestion, found: list[Contribution] | None) -> None:
        quorum = self._worker.machine.in_force
        if found is None:
            self.stage.asked_in_vain(question, None if quorum is None else quorum.attempt)
            self._worker.script.wake()

    def _find(self, question: ExchangeQuestion) -> list[Contribution] | None:
        machine, name = self._worker.machine, question.name
        attempt = machine.in_force.attempt if machine.in_force is not None else None
        if name.kind is Kind.PLACE:
            return place_of(self.places, self._worker.key, question, is_set_up=machine.is_set_up)
        if name.kind is Kind.STAGE:
            return self.stage.answer(self._worker.key, question, machine.trains_from)
        return answer_of(
            self.kept,
            question,
            attempt,
            heals_to=machine.heals_to,
            gaps=machine.gaps,
        )

    # ------------------------------------------------------------ the script

    def exchange(self, site: str) -> Generator[Wait, None, None]:
        """Make one exchange of a managed group."""
        machine = self._worker.machine
        if not self.names.is_void(machine.state.step, in_step=machine.in_step):
            yield from self._exchange(self.names.next(), site)

    def step_begun(self) -> bool:
        """A step has begun: show the script's place. False: the step is void, because there is no
        state yet."""
        worker, machine = self._worker, self._worker.machine
        self.names.step_begun(machine.position)
        if worker.world.job.heal_first:
            if machine.healing:
                return False
            place = str(machine.position)
            self.places.show(machine.position, lambda: place)
        self.kept.step_begun(machine.position)
        self.look()
        return True

    def committed(self, after: StateId) -> None:
        """A step is committed: the exchanges since the last one count (E1)."""
        worker = self._worker
        worker.world.exchange_rules.committed(worker.key, after, self.results)
        self.results = {}

    def healed(self, place: str) -> None:
        """The worker takes its peers' state and place: its own exchanges since its last commit do
        not count."""
        step = self._worker.machine.state.step
        if self._worker.world.has_places and step:
            require(place == str(step), "Z1", f"{self._worker.name} heals {step} at {place!r}")
        self.results = {}

    def in_force(self, quorum: Quorum) -> None:
        """The worker uses a quorum."""
        before, self._attempt = self._attempt, quorum.attempt
        if not self._worker.world.exchange_rules.in_force(self._worker.key, before, quorum):
            self.results = {}

    def _own(self, site: str, body: bytes) -> Contribution:
        return Contribution(self._worker.key.replica_id, site, "a value", body)

    def _exchange(self, name: ExchangeName, site: str) -> Generator[Wait, None, None]:
        worker = self._worker
        body = f"{worker.key.incarnation}@{name.path()}".encode()
        own = self._own(site, body)
        exchanging = Exchanging(worker.key, name, own, self.kept)
        deadline = worker.world.now + PATIENCE_S
        while worker.world.now < deadline:
            move = exchanging.next(self._known)
            self.look()  # a peer may have sent its value
            if move is None:
                if exchanging.is_void:
                    return
                judgement = exchanging.judgement
                worker.world.exchange_rules.judged(worker.key, name, judgement)
                result = tuple(c.body for c in judgement.alike)
                worker.world.note(worker.name, "exchanged", (name, result))
                self.results[name] = result
                return
            if isinstance(move, AskPeer):
                asked = Asked(worker, move)
                yield asked.reply
                if asked.found is not None:
                    exchanging.answered(move, asked.found, self._known)
                else:
                    exchanging.failed(move, reached=asked.is_reached)
            else:
                yield from self._wait_for(move)
        require(False, "L1", f"{worker.name} waits for {exchanging.open} at {name} for ever")

    def look_for_peers(self) -> Generator[Wait, None, str | None]:
        """The place of the members that train; None: no member trains."""
        asking = PeekingAtPlace(self._worker.key)
        deadline = self._worker.world.now + PATIENCE_S
        while self._worker.world.now < deadline:
            move = asking.next(self._known)
            if move is None:
                return asking.found
            if isinstance(move, AskPeer):
                asked = Asked(self._worker, move)
                yield asked.reply
                if asked.found is not None:
                    asking.answered(move, asked.found)
                else:
                    asking.failed(move)
            else:
                yield from self._wait_for(move)
        require(False, "L1", f"{self._worker.name} asks for a place for ever")
        return None

    def _wait_for(self, move: NextMove) -> Generator[Wait, None, None]:
        worker = self._worker
        machine = worker.machine
        match move:
            case AskLighthouse(anew):
                if anew:
                    worker.peers = None
                    yield RETRY_S
                if worker.peers is None:
                    worker.feed(e.PeersAsked())
                    yield INSTANT_S
                yield Until(lambda: worker.peers is not None, PATIENCE_S, "the other replicas")
            case AwaitQuorum():
                is_over = lambda: machine.in_force is not None or machine.is_alone  # noqa: E731
                yield Until(is_over, PATIENCE_S, "a quorum")
            case GiveUpQuorum(attempt, replica_id):
                worker.feed(e.PeerUnreached(attempt, replica_id))
                yield INSTANT_S
            case _:
                yield RETRY_S

    @property
    def _known(self) -> Known:
        worker = self._worker
        machine = worker.machine
        now = worker.world.now
        return Known(
            worker.peers,
            machine.in_force,
            now,
            machine.is_alone,
            machine.in_step,
            machine.gaps,
            machine.late_to,
        )
