"""The end of a script whose peers may still have to heal from it.

A replica that dies in the last second must heal from another one, or it would train alone from the
beginning. So a replica that has reached the end *lingers*: it stands at its next step, which needs
all replicas that have not finished, and commits nothing. The lighthouse sees that too few
contribute, and lets a returning replica join at this step. When all are there, they leave together.
If its peers train on from the state that it holds, it leaves early and alone.

Not here: the moves (core/worker/parting.py); what happens to a step with too few contributors
(core/worker/machine.py, core/lighthouse/membership.py).
"""

from __future__ import annotations

import contextlib
import logging
from enum import Enum

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.core.messages import Roster
from ftrun.core.worker import events as e
from ftrun.core.worker.asking import AskLighthouse, AskPeer
from ftrun.core.worker.parting import LOOK_EVERY_S, Do, Parting, Stay
from ftrun.training.context import stop_requested
from ftrun.training.engine import Engine
from ftrun.training.exchanges import Exchanges
from ftrun.training.step_flow import StepFlow
from ftrun.training.vote import GroupVote

log = logging.getLogger(__name__)

SITE = "the end of the script"
ANSWER_S = 2.0
"""A running lighthouse answers at once."""
NOTICE_AFTER_S = 20.0
UNCOMPARED = (
    "the replicas' parameters were not compared at the end of the script, because the lighthouse "
    "did not answer in time"
)
_Broken = RuntimeError
"""Gloo's error if a worker of this replica is gone."""


class Parted(Enum):
    """How a worker has left the end of its script.

    TOGETHER: with all others. ALONE: a replica was missing at the deadline, or this one was asked
    to stop. EARLY: its peers train on.
    """

    TOGETHER = "together"
    ALONE = "alone"
    EARLY = "early"


def linger(
    engine: Engine,
    flow: StepFlow,
    exchanges: Exchanges,
    replicas: int,
    timeout_s: float,
    vote: GroupVote | None = None,
) -> Parted:
    """Wait at the end until all replicas have reached it, and serve those that heal meanwhile.

    The workers of one replica meet first and leave together, because each is the only one of its
    replica from which its counterparts in the others can heal.

    Args:
        replicas: of the job; replicas that have finished or were drained are not waited for.
        timeout_s: how long to wait for a missing replica.
        vote: the vote of a replica group of several workers.
    """
    flow.is_over()
    try:
        if vote is not None:
            vote.any(False)
        return _Lingering(engine, flow, exchanges, replicas, timeout_s).run()
    except (PeerError, TimeoutError, _Broken) as error:
        log.warning("ends without the others: %s", error)
        return Parted.ALONE
    finally:
        engine.feed(e.Decided(False, shared=True, reason="the script has ended"))


class _Lingering:
    """One worker at the end of its script: carries out the moves."""

    def __init__(
        self,
        engine: Engine,
        flow: StepFlow,
        exchanges: Exchanges,
        replicas: int,
        timeout_s: float,
    ) -> None:
        self._engine, self._machine, self._flow = engine, engine.machine, flow
        self._exchanges = exchanges
        self._deadline = clock.now() + timeout_s
        self._notice_at = clock.now() + NOTICE_AFTER_S
        self._parting = Parting(engine.machine, replicas, exchanges.stage)

    def run(self) -> Parted:
        """Stay until all may leave, or until it is known that the others train on."""
        engine, parting = self._engine, self._parting
        while clock.now() < self._deadline and not stop_requested():
            engine.raise_fatal()
            with engine.changed:
                move = parting.next(clock.now())
                engine.changed.notify_all()  # its stage may have advanced: peers wait for that
            match move:
                case None:
                    if not parting.is_compared:
                        log.warning(UNCOMPARED)
                    return Parted.EARLY if parting.gone_on else Parted.TOGETHER
                case AskLighthouse():
                    self._look()
                case AskPeer():
                    self._ask(move)
                case Do.BEGIN:
                    if not self._begin():
                        return Parted.ALONE
                case Do.HEAL:
                    self._flow.heal_after_backward()
                case Do.END_TRY:
                    engine.feed(e.Decided(False, shared=True, reason="replicas are missing"))
                case Do.TELL:
                    engine.note_progress(at_once=True)
                case Stay(until):
                    self._stay(until)
        return Parted.ALONE

    def _look(self) -> None:
        """Ask for the slots whose part is over. Without an answer the old ones are kept."""
        roster: Roster | None = None
        with contextlib.suppress(TimeoutError):
            roster = self._exchanges.slots_that_are_over(ANSWER_S)
        wanted_by = self._engine.wanted_by()
        with self._engine.changed:
            stage = self._exchanges.stage
            stage.wanted_by = stage.wanted_by or wanted_by
            self._parting.are_over(roster, clock.now())
            awaited = self._parting.awaited
        if clock.now() >= self._notice_at:
            self._notice_at = clock.now() + NOTICE_AFTER_S
            log.warning("%s waits for replica %s", SITE, ", ".join(awaited))

    def _ask(self, move: AskPeer) -> None:
        found, is_reached = self._exchanges.ask(move)
        with self._engine.changed:
            if found:
                self._parting.answered(move, found, clock.now())
            else:
                self._parting.failed(move, clock.now(), reached=is_reached)

    def _begin(self) -> bool:
        """Begin the step, or wait a moment for a quorum; False: this replica has left instead."""
        left_s = max(0.0, self._deadline - clock.now())
        try:
            has_begun = self._flow.begin(False, min(left_s, LOOK_EVERY_S))
        except TimeoutError:
            return True
        self._engine.finish_results()  # no forward pass runs: peers may read the state
        return has_begun

    def _stay(self, until: float) -> None:
        machine = self._machine
        before = machine.fate, machine.in_force
        left_s = max(0.0, min(until, self._deadline) - clock.now())
        with contextlib.suppress(TimeoutError):
            self._engine.wait_until(
                lambda: (machine.fate, machine.in_force) != before,
                left_s,
                "the other replicas",
                counts_isolation=True,
            )
