"""Small named values that replicas exchange outside the steps' reductions.

A managed group that broadcasts, or waits at a barrier, calls ``exchange``. Every replica runs the
same program and so counts the same exchanges since its last step began. Step and count are the name
of an exchange, also after the step's end. The main thread asks each member's state server in turn,
because it needs all answers anyway. A death or a switch begins another round at once, so no replica
waits for a timeout.

Not here: whom to ask, which answers count, when it is over (core/worker/exchanging.py), where
replicas stand (core/worker/exchange_places.py), the connections (questions.py), tensors
(managed_group.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.core.messages import Roster
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker import exchange as ex
from ftrun.core.worker.asking import (
    AskLighthouse,
    AskPeer,
    AwaitChange,
    AwaitQuorum,
    GiveUpQuorum,
    Known,
    NextMove,
)
from ftrun.core.worker.exchange_places import (
    AskingDonors,
    PeekingAtPlace,
    ShownPlaces,
    place_of,
)
from ftrun.core.worker.exchanging import Exchanging
from ftrun.core.worker.parting import ShownStage
from ftrun.training.context import WorkerContext
from ftrun.training.engine import Engine
from ftrun.training.questions import Links, encode

log = logging.getLogger(__name__)

RETRY_S = 0.05
NOTICE_AFTER_S = 20.0
STAGE_ANSWER_S, STAGE_TIMEOUT_S = 0.2, 2.0
"""How long a stage question is held by its receiver, and waited for by its sender. Short, because
the sender must check its quorum in between."""


class Exchanges:
    """The exchanges of one worker. For the main thread, except ``answer``.

    Args:
        engine: of this worker; its lock guards the kept values.
        leave: called while the main thread waits; raises if the script must leave there.
    """

    def __init__(
        self, context: WorkerContext, engine: Engine, leave: Callable[[], None] = lambda: None
    ) -> None:
        self._context = context
        self._leave = leave
        self._engine = engine
        self._kept, self._names = ex.Kept(context.replica_id), ex.Names()
        self._places = ShownPlaces()
        self.stage = ShownStage()
        """How far this worker has come at the end of its script."""
        self._links = Links(context)
        engine.exchanges = self

    # ------------------------------------------------------------ the script's side

    def exchange(
        self, site: str, what: str, body: bytes, timeout_s: float, *, counts: bool
    ) -> tuple[ex.Contribution, ...] | None:
        """Send ``body``, and receive the values of all members of the quorum at the same place.

        Args:
            site: the name of the caller.
            what: the operation with its dtype and shape.
            body: less than 16 MiB.
            timeout_s: deadline for all answers.
            counts: see ``Contribution``.

        Returns:
            The members' values, in the order of the slots; None: the last step was not committed
                here, and
            peers that have committed it never come to this place.

        Raises:
            PeerError: no step has begun, so there is no quorum.
            UserError: ``body`` is too large, or this replica is out of step with its peers.
            TimeoutError: a member has not come to this place within ``timeout_s``.
        """
        machine = self._engine.machine
        if not machine.begun:
            raise PeerError(f"{what} of {site}: no step has begun, so there are no members yet")
        if self._names.is_void(machine.state.step, in_step=machine.in_step):
            _warn_alone(f"{what} of {site}")
            return None
        if len(body) > ex.BODY_BYTES_MAX:
            raise UserError(
                f"{site}: {what} has {len(body)} bytes, and an exchange between replicas takes "
                f"{ex.BODY_BYTES_MAX} at most"
            )
        own = ex.Contribution(self._context.replica_id, site, what, body, counts)
        with self._engine.changed:
            is_full = self._kept.is_full
        if is_full:
            raise UserError(f"{site}: the exchanges of the last steps take too much memory")
        exchanging = Exchanging(self._context.key, self._names.next(), own, self._kept)
        try:
            self._carry_out(exchanging, _Waiting(own, clock.now() + timeout_s, timeout_s))
        finally:
            with self._engine.changed:
                exchanging.is_over()
        with self._engine.changed:
            judgement = exchanging.judgement
        if exchanging.is_void:
            _warn_alone(site)
        if judgement.is_out:
            raise UserError(
                f"this replica is out of step with its peers: {judgement.unlike}. It ends, before "
                "it disturbs the others"
            )
        if judgement.unlike:
            log.warning("a replica is out of step: %s", judgement.unlike)
        return judgement.alike

    @property
    def is_in_set_up(self) -> bool:
        """Whether this worker has not begun its first step."""
        return not self._engine.machine.begun

    def close(self) -> None:
        self._links.close()

    def step_begun(self, step: int) -> None:
        """A step begins, perhaps as a retry."""
        self._names.step_begun(step)
        with self._engine.lock:
            self._kept.step_begun(step)
            self._engine.announce()

    def members(self) -> list[str]:
        quorum = self._engine.machine.in_force
        return [] if quorum is None else [member.replica_id for member in quorum.members]

    def part(self, timeout_s: float) -> None:
        """At the script's end, wait until all members have received this worker's last value."""

        def is_over() -> bool | None:
            return None if self._kept.owes(self.members()) else True

        if self._engine.await_answer(is_over, timeout_s) is None:
            log.debug("ends although members have not asked for its last value")

    # ------------------------------------------------------------ places

    def show_place(self, encode: Callable[[], str]) -> None:
        """Publish the script's place at this step for peers that heal to its state."""
        with self._engine.lock:
            self._places.show(self._engine.machine.position, encode)
            self._engine.announce()

    def place_of_donors(
        self, quorum: Quorum, step: int, is_over: Callable[[], bool], timeout_s: float
    ) -> str:
        """The place of the donors of ``quorum`` at ``step``. For the thread that fetches a state.

        It comes from one donor only, because values that are not reduced differ between replicas.

        Raises:
            PeerError: no donor has answered within ``timeout_s``, or before ``is_over``.
        """
        asking = AskingDonors(self._context.key, step)
        links, deadline = Links(self._context), clock.now() + timeout_s
        try:
            while not is_over() and clock.now() < deadline:
                move = asking.next(Known(None, quorum, clock.now()))
                if move is None:
                    assert asking.found is not None, "there is a quorum"
                    return asking.found
                if isinstance(move, AskPeer):
                    found, _ = links.ask(move)
                    if found is not None:
                        asking.answered(move, found)
                    else:
                        asking.failed(move)
                else:
                    self._engine.await_answer(lambda: True if is_over() else None, RETRY_S)
        finally:
            links.close()
        raise PeerError(f"its donors do not tell where they stand at step {step}")

    def peek_place(self, timeout_s: float) -> str | None:
        """The current place of the training replicas; None: no replica trains, or none answers."""
        asking, deadline = PeekingAtPlace(self._context.key), clock.now() + timeout_s
        while clock.now() < deadline:
            with self._engine.changed:
                move = asking.next(self._known)
            if move is None:
                return asking.found
            if not isinstance(move, AskPeer):
                self._wait_for(move, max(0.0, deadline - clock.now()), "their place")
                continue
            found = self._links.ask(move)[0]
            if found is not None:
                asking.answered(move, found)
            else:
                asking.failed(move)
        return None

    # ------------------------------------------------------------ moves

    def peers(self, timeout_s: float, *, counts_isolation: bool = False) -> Roster:
        """The replicas that train. If none trains yet: all that are expected, once they are there.

        ``counts_isolation``: see ``Engine.wait_until``.

        Raises:
            TimeoutError: they are not all there within ``timeout_s``.
        """
        engine = self._engine
        if engine.peers is None:
            engine.feed(e.PeersAsked())
            engine.wait_until(
                lambda: engine.peers is not None,
                timeout_s,
                "the other replicas",
                counts_isolation=counts_isolation,
                gives_up=self._leave,
            )
        assert engine.peers is not None
        return engine.peers

    def slots_that_are_over(self, timeout_s: float) -> Roster:
        """Ask the lighthouse again for the slots whose part in the job is over.

        Raises:
            TimeoutError: it has not answered within ``timeout_s``.
        """
        self._engine.peers = None
        return self.peers(timeout_s, counts_isolation=True)

    def ask(self, move: AskPeer) -> tuple[list[ex.Contribution] | None, bool]:
        """Ask a peer for its stage. Returns its answer, if it has one, and whether it was
        reached."""
        return self._links.ask(move, timeout_s=STAGE_TIMEOUT_S)

    @property
    def _known(self) -> Known:
        machine = self._engine.machine
        return Known(
            self._engine.peers,
            machine.in_force,
            clock.now(),
            machine.is_alone,
            machine.in_step,
            machine.gaps,
            machine.late_to,
        )

    def _carry_out(self, exchanging: Exchanging, waits: _Waiting) -> None:
        """Carry out the moves of an exchange until it is complete."""
        changed = self._engine.changed
        while True:
            self._engine.raise_fatal()
            self._leave()
            with changed:
                move = exchanging.next(self._known)
                changed.notify_all()  # it may have set its value: peers wait for that
                open_ones = exchanging.open
            if move is None:
                return
            if not isinstance(move, AskPeer):
                if isinstance(move, AwaitChange):
                    waits.check(open_ones)
                self._wait_for(move, waits.left_s(), waits.own.site)
                continue
            found, is_reached = self._links.ask(move, refuses=True)
            with changed:
                if found is not None:
                    exchanging.answered(move, found, self._known)
                else:
                    exchanging.failed(move, reached=is_reached)
            if found is None:
                waits.check((move.replica_id,))

    def _wait_for(self, move: NextMove, limit_s: float, site: str) -> None:
        engine = self._engine
        match move:
            case AskLighthouse(anew):
                if anew:
                    engine.peers = None
                    engine.await_answer(lambda: None, min(RETRY_S, limit_s))
                self.peers(limit_s)
            case AwaitQuorum():
                machine = engine.machine
                engine.wait_until(
                    lambda: machine.in_force is not None or machine.is_alone,
                    limit_s,
                    f"{site}: a quorum",
                    gives_up=self._leave,
                )
            case GiveUpQuorum(attempt, replica_id):
                engine.feed(e.PeerUnreached(attempt, replica_id))
            case _:
                before = self._attempt()
                engine.await_answer(
                    lambda: None if self._attempt() == before else True, min(RETRY_S, limit_s)
                )

    def _attempt(self) -> object:
        quorum = self._engine.machine.in_force
        return None if quorum is None else quorum.attempt

    # ------------------------------------------------------------ questions and answers

    def step_is_void(self, step: int) -> None:
        """The step was given up, so its place is no longer an answer."""
        self._places.forget(step)

    def answer(self, question: ex.ExchangeQuestion, timeout_s: float) -> bytes | None:
        """The answer to a peer's question; None: not known yet. From any thread."""
        machine = self._engine.machine
        if question.name.kind is ex.Kind.STAGE:
            timeout_s = min(timeout_s, STAGE_ANSWER_S)

        def find() -> Sequence[ex.Contribution] | None:
            if question.name.kind is ex.Kind.PLACE:
                return place_of(
                    self._places, self._context.key, question, is_set_up=machine.is_set_up
                )
            if question.name.kind is ex.Kind.STAGE:
                return self.stage.answer(self._context.key, question, machine.trains_from)
            attempt = machine.in_force.attempt if machine.in_force is not None else None
            return ex.answer_of(
                self._kept,
                question,
                attempt,
                heals_to=machine.heals_to,
                gaps=machine.gaps,
            )

        found = self._engine.await_answer(find, timeout_s)
        with self._engine.changed:
            if found is None:
                quorum = machine.in_force
                self.stage.asked_in_vain(question, None if quorum is None else quorum.attempt)
            self._engine.changed.notify_all()  # this worker may be waiting to end
        return None if found is None else encode(found)


@dataclass(slots=True)
class _Waiting:
    """One call of the script, and its deadline."""

    own: ex.Contribution
    deadline: float
    timeout_s: float
    noticed_at: float = 0.0

    def left_s(self) -> float:
        return max(0.0, self.deadline - clock.now())

    def check(self, whom: Sequence[str]) -> None:
        """Log which replicas this waits for, every ``NOTICE_AFTER_S`` seconds.

        Raises:
            TimeoutError: the deadline has passed.
        """
        now = clock.now()
        names = ", ".join(whom)
        place = f"{self.own.what} at {self.own.site}"
        if now >= self.deadline:
            raise TimeoutError(
                f"{place}: replica {names} did not come to this place within {self.timeout_s:g} s"
            )
        self.noticed_at = self.noticed_at or self.deadline - self.timeout_s
        if now - self.noticed_at >= NOTICE_AFTER_S:
            self.noticed_at = now
            log.warning("%s waits for replica %s", place, names)


def _warn_alone(site: str) -> None:
    """Warn that no peer comes to this place: the step is void, or this worker was left out."""
    log.warning("%s: no other replica comes here: its own value is the result", site)
