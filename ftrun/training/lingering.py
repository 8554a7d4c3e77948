"""The end of a script whose peers may have to heal from it once more.

A replica that dies in the last second must heal from somebody, or it would train alone from the
beginning. So a replica that has reached the end *lingers*: it stands at its next step, which needs
all replicas that are still to finish, and commits nothing. The lighthouse sees that too few
contribute, and lets a replica that is back join at this step. When all are there, they meet in one
exchange, and leave after another one. A meeting that a member has missed, because it still healed,
has its result for good: so the next one has another name, and who comes late reads its way there.

Not here: what happens to a step with too few contributors (core/worker/machine.py,
core/lighthouse/membership.py).
"""

from __future__ import annotations

import contextlib
import logging

from ftrun import clock
from ftrun.core.worker import events as e
from ftrun.core.worker.machine import Fate, StepMachine
from ftrun.errors import PeerError, UserError
from ftrun.training.context import stop_requested
from ftrun.training.engine import Engine
from ftrun.training.exchanges import Exchanges
from ftrun.training.step_flow import StepFlow
from ftrun.training.vote import GroupVote

log = logging.getLogger(__name__)

SITE, WHAT, PARTING = "the end of the script", "finish", "leave"
PARTING_TIMEOUT_S = 5.0
PARTING_BEFORE_STEPS_S = 1.0
"""No quorum shows then that a peer has left."""
LOOK_EVERY_S = 1.0
ANSWER_S = 2.0
"""A lighthouse that is there answers at once."""
FINISH_INDEX, PART_INDEX = 999_999_997, 999_999_998
"""Each further meeting at a step has the number below; all replicas go through all of them."""
MEETINGS_MAX = 1_000
PAUSE_S = 0.25
"""Between two meetings, because the member that was missing needs some time to heal."""
_Broken = RuntimeError
"""What Gloo raises if a worker of this replica is gone."""


def linger(
    engine: Engine,
    machine: StepMachine,
    flow: StepFlow,
    exchanges: Exchanges,
    replicas: int,
    timeout_s: float,
    vote: GroupVote | None = None,
) -> bool:
    """Wait at the end until all replicas have come to it, and serve those that heal meanwhile.

    Workers of one replica meet first, and leave together: each is the only one of its replica that
    its counterparts in the others can heal from.

    Args:
        replicas: of the job; those that have finished or were drained are not waited for.
        timeout_s: how long a replica that is missing is waited for.
        vote: the vote of a replica group of several workers.

    Returns:
        False if some replica was still missing at the deadline, or when this one was asked to stop.
    """
    deadline = clock.now() + timeout_s
    expected = _Expected(machine, exchanges, replicas)
    flow.is_over()
    try:
        if vote is not None:
            vote.any(False)
        for meeting in range(MEETINGS_MAX):
            expected.look()
            if not _meet(engine, machine, flow, deadline, expected) or stop_requested():
                return False
            left_s = max(1.0, deadline - clock.now())
            name = exchanges.name(FINISH_INDEX - meeting)
            met = exchanges.exchange(SITE, WHAT, b"", left_s, name=name, gives_up=stop_requested)
            if len(met.contributions) >= machine.contributors_min:
                if vote is not None:
                    vote.any(False)
                _part(exchanges)
                return True
            _pause(engine, machine)
        return False
    except (PeerError, TimeoutError, _Broken) as error:
        log.warning("ends without the others: %s", error)
        return False
    finally:
        engine.feed(e.Decided(False, shared=True, reason="the script has ended"))


class _Expected:
    """How many replicas are to come to the end: ``machine.contributors_min``."""

    def __init__(self, machine: StepMachine, exchanges: Exchanges, replicas: int) -> None:
        self._machine, self._exchanges, self._replicas = machine, exchanges, replicas
        machine.contributors_min = replicas

    def look(self) -> None:
        """Leave out those whose part is over; without an answer it stays as it was."""
        with contextlib.suppress(TimeoutError):
            over = self._exchanges.slots_that_are_over(ANSWER_S)
            self._machine.contributors_min = max(1, self._replicas - len(over))


def part(exchanges: Exchanges, timeout_s: float) -> None:
    """Stay at the end of a script that has trained nothing until no peer needs an answer."""
    try:
        exchanges.exchange(SITE, WHAT, b"", timeout_s, name=exchanges.name(FINISH_INDEX))
    except (PeerError, TimeoutError) as error:
        log.warning("ends without the others: %s", error)
    else:
        _part(exchanges, PARTING_BEFORE_STEPS_S)


def _part(exchanges: Exchanges, timeout_s: float = PARTING_TIMEOUT_S) -> None:
    """All are here, and each stays until all others know: then nobody waits for one that left."""
    try:
        exchanges.exchange(SITE, PARTING, b"", timeout_s, name=exchanges.name(PART_INDEX))
    except (PeerError, TimeoutError, UserError) as error:
        log.debug("the others have left: %s", error)


def _meet(
    engine: Engine, machine: StepMachine, flow: StepFlow, deadline: float, expected: _Expected
) -> bool:
    """Stand at the step until all contribute to it; False at the deadline, or if it is to stop.

    One that joins during the wait adds zeros in the step of its quorum, unless it heals before its
    forward pass. So the step is begun once more when all are members. Under each quorum it is
    begun until the lighthouse can be told that too few contribute, because it lets others join
    at a step that nobody commits only then.
    """
    was_full = False
    while clock.now() < deadline:
        if not flow.begin(False, max(1.0, deadline - clock.now())):
            return False  # it has left
        engine.finish_results()  # no forward pass runs: peers may read the state
        if _are_all_here(machine) or (was_full and _is_full(machine)):
            return True
        if machine.is_stuck:
            engine.note_progress(at_once=True)
            if not _wait_for_others(engine, machine, deadline, expected):
                return False
            if _are_all_here(machine):
                return True
            was_full = _is_full(machine)
        engine.feed(e.Decided(False, shared=True, reason="replicas are missing"))
    return False


def _pause(engine: Engine, machine: StepMachine) -> None:
    """Let some time pass, or the quorum change."""
    attempt = None if machine.in_force is None else machine.in_force.attempt

    def is_another() -> bool:
        return machine.in_force is None or machine.in_force.attempt != attempt

    with contextlib.suppress(TimeoutError):
        engine.wait_until(is_another, PAUSE_S, "the next meeting")


def _wait_for_others(
    engine: Engine, machine: StepMachine, deadline: float, expected: _Expected
) -> bool:
    """Wait for another quorum, or until nobody else is to come; False as ``_meet``."""
    while not (_is_another(machine) or _are_all_here(machine)):
        left_s = deadline - clock.now()
        if left_s <= 0 or stop_requested():
            return False
        try:
            limit_s = min(left_s, LOOK_EVERY_S)
            engine.wait_until(lambda: _is_another(machine), limit_s, "the other replicas")
        except TimeoutError:
            expected.look()
    return True


def _is_another(machine: StepMachine) -> bool:
    """Another quorum is in force than the one in which too few contribute."""
    return machine.fate is Fate.OPEN and (_is_full(machine) or not machine.is_stuck)


def _are_all_here(machine: StepMachine) -> bool:
    return machine.fate is Fate.OPEN and machine.is_enough


def _is_full(machine: StepMachine) -> bool:
    """All that are wanted are members, whether they count in this try or not."""
    quorum = machine.in_force
    is_open = machine.fate is Fate.OPEN and quorum is not None
    return is_open and quorum is not None and len(quorum.members) >= machine.contributors_min
