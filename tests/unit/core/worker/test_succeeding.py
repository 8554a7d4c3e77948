"""A machine that takes a lost worker's place, and what it says before and after."""

from __future__ import annotations

from dataclasses import replace

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import USUAL
from ftrun.core.worker.machine import StepMachine

KEY = WorkerKey("0", "a1", 1)
HERE = Endpoint("10.0.0.1", "10.0.0.1:1")
MEMBERS = tuple(Member(x, f"a{int(x) + 1}", (HERE, HERE), "10.0.0.1:9") for x in "01")
STATE = StateId(7, "ab")
QUORUM = Quorum(Attempt(3, 1), MEMBERS, "10.0.0.1:9", 5, StateId(5, "cd"))


def successor() -> StepMachine:
    machine = StepMachine(KEY, HERE, StateId(0, "00"), workers_per_replica=2)
    assert machine.handle(e.Succeeds(STATE, QUORUM, 4, (USUAL,), 0), 1.0) == []
    return machine


def repeats_a_step(machine: StepMachine, at: Attempt) -> list[e.Instruction]:
    """A step of one operation, whose result the log has, and whose vote was true."""
    sent = machine.handle(e.BoundaryReached(), 2.0)
    sent += machine.handle(e.OperationIssued(), 2.1)
    sent += machine.handle(e.WentOut(replace(QUORUM, attempt=at)), 2.2)
    sent += machine.handle(e.OperationCompleted(at, 0), 2.2)
    for event in (e.OperationsEnded(), e.VoteStarted(), e.Decided(True)):
        sent += machine.handle(event, 2.3)
    machine.check()
    return sent


def test_it_commits_what_the_lost_one_has_committed_and_says_nothing() -> None:
    machine, later = successor(), Attempt(3, 2)
    sent = repeats_a_step(machine, later)
    assert not [x for x in sent if isinstance(x, e.Send)]
    assert machine.state == STATE.committed(Tag(later, 7))
    assert machine.begun == 5


def test_it_seeds_the_next_successor() -> None:
    machine = successor()
    repeats_a_step(machine, QUORUM.attempt)
    machine.handle(e.BoundaryReached(), 3.0)
    seed = machine.seed()
    assert seed == e.Succeeds(machine.state, QUORUM, 5, (USUAL,), 0)


def test_an_interrupt_ends_it() -> None:
    machine, highest = successor(), Attempt(3, 4)
    machine.handle(e.BoundaryReached(), 2.0)
    machine.handle(e.OperationIssued(), 2.1)
    [sent] = [x for x in machine.handle(m.Interrupt(highest), 2.2) if isinstance(x, e.Send)]
    assert isinstance(sent.message, m.Report)
    assert sent.message.state == STATE
    assert sent.message.interrupted == highest
    assert sent.message.repairable
    quorum = replace(QUORUM, attempt=Attempt(3, 5), step=7, state=STATE)
    machine.handle(m.NewQuorum(quorum), 2.3)
    machine.handle(m.Built(quorum.attempt), 2.4)
    assert machine.tag == Tag(quorum.attempt, 7)


def test_no_step_is_moved_once_it_is_over() -> None:
    machine = successor()
    machine.handle(e.WentOut(replace(QUORUM, attempt=Attempt(3, 9))), 2.0)
    assert machine.in_force == QUORUM


def test_who_counts_is_said_by_the_quorum_in_which_the_results_came() -> None:
    machine = successor()
    machine.handle(e.BoundaryReached(), 2.0)
    machine.handle(e.OperationIssued(), 2.1)
    assert machine.contributors() == (0, 1)
    # The other replica has lost this step, and heals in it.
    later = replace(QUORUM, attempt=Attempt(3, 2), step=7, state=STATE, newcomers=("1",))
    machine.handle(e.WentOut(later), 2.2)
    assert machine.contributors() == (0,)


def test_a_lost_step_that_it_repeats_is_no_news() -> None:
    machine = successor()
    machine.handle(e.BoundaryReached(), 2.0)
    machine.handle(e.OperationIssued(), 2.1)
    machine.handle(e.OperationCompleted(QUORUM.attempt, 0), 2.2)
    machine.handle(e.OperationsEnded(), 2.3)
    machine.handle(e.VoteStarted(), 2.3)
    sent = machine.handle(e.Decided(False, reason="voted against"), 2.4)
    assert e.AbortGroup(QUORUM.attempt) in sent
    assert not [x for x in sent if isinstance(x, e.Send)]
