"""The step machine in every situation: stale messages, an interrupt, a script that leaves.

Not here: how it gets into a situation, event by event (tests/transcripts/step).
"""

from __future__ import annotations

import pytest

from ftrun.core import messages as m
from ftrun.core.activity import LONG_S, Activity
from ftrun.core.ids import Tag
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import STORY_LINES_MAX, StepPhase
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.under_way import Fate
from tests.unit.core.worker import alike
from tests.unit.core.worker.step_script import (
    Names,
    attempt_of,
    event_of,
    machine_of,
    quorum_of,
    standing,
    state_of,
)

FORMED = ["boundary", "new quorum 1.5#1 at 5/A: 0 1 2", "built 1.5#1"]
WORKING = [*FORMED, "issue batched closes"]
REDUCED = [*FORMED, "issue", "done 1.5#1 0"]
PREPARED = [*WORKING, "prepare 1.6#1: 0 1 2 3 newcomers 3", "built 1.6#1"]
PROMISED = [*PREPARED, "propose 1.6#1@6"]
VOTING = [*REDUCED, "vote"]
VOID = [*WORKING, "interrupt 1.5#1", "new quorum 1.6#1 at 9/B: 0 1 newcomers 0"]

SITUATIONS: dict[str, list[str]] = {
    "idle": [],
    "waiting for a first quorum": ["boundary"],
    "waiting for its group": ["boundary", "new quorum 1.5#1 at 5/A: 0 1 2"],
    "idle with a quorum": ["new quorum 1.5#1 at 5/A: 0 1 2", "built 1.5#1"],
    "stepping": FORMED,
    "working": WORKING,
    "all reduced": REDUCED,
    "healing": ["boundary", "new quorum 1.5#1 at 7/B: 0 1 newcomers 0", "built 1.5#1"],
    "isolated": [*WORKING, "isolated"],
    "held": [*WORKING, "interrupt 1.5#1"],
    "held with results": [*REDUCED, "interrupt 1.5#1"],
    "to be repaired": [*WORKING, "interrupt 1.5#1", "new quorum 1.6#1 at 5/A: 0 1"],
    "standing": [*REDUCED, "interrupt 1.5#1", "new quorum 1.6#1 at 6/A+1.5#1: 0 1"],
    "void": VOID,
    "preparing": [*WORKING, "prepare 1.6#1: 0 1 2 3 newcomers 3"],
    "prepared": PREPARED,
    "promised": PROMISED,
    "confirmed": [*PROMISED, "switch 1.6#1@6"],
    "stopped by its promise": [*PROMISED, "done 1.5#1 0", "decide commit", "boundary"],
    "about to leave": [*WORKING, "prepare 1.6#1: 1 2", "propose 1.6#1@6", "switch 1.6#1@6"],
    "committed": [*REDUCED, "decide commit"],
}
IN_GROUPS: dict[str, list[str]] = {
    "voting": VOTING,
    "held while voting": [*VOTING, "interrupt 1.5#1"],
    "void while voting": [*VOID, "vote"],
}
EVERY = [*SITUATIONS, *IN_GROUPS]


def situation(name: str) -> StepMachine:
    machine = machine_of(f"worker 0 holds 5/A workers={2 if name in IN_GROUPS else 1}")
    for text in {**SITUATIONS, **IN_GROUPS}[name]:
        look_up(machine, text)
    return machine


def look_up(machine: StepMachine, text: str, now: float = 0.0) -> list[e.Instruction]:
    instructions = alike.handle(machine, event_of(text), now)
    machine.check()
    return instructions


def sent(instructions: list[e.Instruction]) -> list[m.FromWorker]:
    return [i.message for i in instructions if isinstance(i, e.Send)]


def all_of(machine: StepMachine) -> tuple[str, m.Report]:
    return standing(machine, Names()), machine.report()


def test_the_situations_are_all_there_are() -> None:
    """The situations have every phase and every fate of a step."""
    machines = [situation(name) for name in EVERY]
    assert {machine.fate for machine in machines} == set(Fate)
    assert {machine.phase for machine in machines} == set(StepPhase) - {StepPhase.LEFT}


# ---------------------------------------------------------------- what is over

STALE = [
    "interrupt 1.4#9",
    "new quorum 1.4#1 at 5/A: 0 1",
    "new quorum 1.4#1 at 9/B: 0 1 newcomers 0",
    "prepare 1.4#1: 0 1 3 newcomers 3",
    "prepare 1.4#1: 0 1 newcomers 0",
    "prepare 1.4#1: 1",
    "switch 1.4#1@6",
    "cancel 1.4#1",
    "not built 1.4#1: no route to host",
    "done 1.4#1 0",
    "failed 1.4#1 0: connection reset",
    "loaded 1.4#1@5 5/B",
    "heal failed 1.4#1@5: no donor answered",
]


@pytest.mark.parametrize("name", [name for name in EVERY if situation(name).quorums.seen.quorum_id])
@pytest.mark.parametrize("text", STALE)
def test_what_is_over_changes_nothing(name: str, text: str) -> None:
    """Q2, C3: messages and results under an attempt below the highest known one change nothing."""
    machine = situation(name)
    before = all_of(machine)
    assert look_up(machine, text) == []
    assert all_of(machine) == before


@pytest.mark.parametrize("name", EVERY)
def test_what_is_stale_and_must_be_answered(name: str) -> None:
    machine = situation(name)
    before = all_of(machine)
    (refusal,) = sent(look_up(machine, "propose 1.4#1@99"))
    assert isinstance(refusal, m.Refused) and 0 <= refusal.current <= 7
    assert look_up(machine, "built 1.4#1") == [e.DropGroup(attempt_of("1.4#1"))]
    assert sent(look_up(machine, "ask")) == [machine.report()]
    assert all_of(machine) == before


# ---------------------------------------------------------------- an interrupt


@pytest.mark.parametrize("name", EVERY)
def test_an_interrupt_ends_everything_up_to_it(name: str) -> None:
    machine = situation(name)
    groups = {quorum.attempt for quorum in machine.report().quorums()}
    groups -= {attempt_of("1.6#1")} if name == "about to leave" else set()
    instructions = look_up(machine, "interrupt 1.7#1")
    assert {i.attempt for i in instructions if isinstance(i, e.AbortGroup)} == groups
    (report,) = sent(instructions)
    assert isinstance(report, m.Report) and report.interrupted == attempt_of("1.7#1")
    assert report.in_force is None and report.pending is None
    assert not machine.may_issue and machine.contributors() == ()
    assert machine.fate in (Fate.INTERRUPTED, Fate.INTERRUPTED_COMPLETE, Fate.VOID)


@pytest.mark.parametrize("name", EVERY)
def test_a_second_interrupt_is_answered_and_that_is_all(name: str) -> None:
    machine = situation(name)
    look_up(machine, "interrupt 1.7#1")
    before = all_of(machine)
    assert sent(look_up(machine, "interrupt 1.7#1")) == [machine.report()]
    assert all_of(machine) == before


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("late", ["built 1.5#1", "built 1.6#1"])
def test_a_group_that_is_late_is_dropped(name: str, late: str) -> None:
    machine = situation(name)
    look_up(machine, "interrupt 1.7#1")
    (instruction,) = look_up(machine, late)
    assert isinstance(instruction, e.DropGroup)


@pytest.mark.parametrize("name", EVERY)
def test_there_is_a_way_back_to_work(name: str) -> None:
    """After an interrupt in any situation, a quorum with the reported state leads to a step."""
    machine = situation(name)
    look_up(machine, "reachable")
    (report,) = sent(look_up(machine, "interrupt 1.7#1"))
    assert isinstance(report, m.Report)
    state = report.state.committed(report.reduced) if report.reduced else report.state
    quorum = quorum_of("1.7#2", "5/A", "0 1")
    quorum = Quorum(quorum.attempt, quorum.members, "s:1", state.step, state)
    machine.handle(m.NewQuorum(quorum), 0.0)
    look_up(machine, "built 1.7#2")
    if machine.fate is not Fate.OPEN:
        look_up(machine, "decide commit")
        look_up(machine, "boundary")
    assert machine.tag == Tag(quorum.attempt, state.step)
    assert machine.may_issue and machine.contributors() == (0, 1)


# ---------------------------------------------------------------- waits end; the script leaves


@pytest.mark.parametrize("name", EVERY)
def test_no_wait_is_without_a_deadline(name: str) -> None:
    """L2: every wait ends, and then the script decides."""
    machine = situation(name)
    look_up(machine, "reachable")
    for now in (1e3, 1e4, 1e5):
        look_up(machine, "tick", now)
    waits_for_script = machine.fate is Fate.OPEN and machine.healing is machine.is_decidable
    assert not machine.in_step or machine.is_decidable or machine.verdict_known or waits_for_script


@pytest.mark.parametrize("name", EVERY)
def test_who_has_left_is_deaf(name: str) -> None:
    machine = situation(name)
    assert isinstance(sent(look_up(machine, "go away: finished"))[-1], m.Leaving)
    assert machine.phase is StepPhase.LEFT
    for text in ("boundary", "ask", "interrupt 1.9#1", "new quorum 1.9#2 at 5/A: 0 1", "tick"):
        assert look_up(machine, text, 1e6) == []


@pytest.mark.parametrize("name", [name for name in EVERY if situation(name).in_step])
def test_nobody_is_left_waiting_by_who_leaves(name: str) -> None:
    machine = situation(name)
    was_handed = (machine.is_decidable and machine.fate is Fate.OPEN) or machine.reduced is not None
    instructions = look_up(machine, "go away: finished")
    assert was_handed or any(isinstance(i, e.FailOperations) for i in instructions)


# ---------------------------------------------------------------- what others read


def test_the_facts_of_a_step() -> None:
    machine = machine_of("worker 0 holds 5/A")
    assert not machine.in_step and machine.position == 5 and machine.contributors() == ()
    assert machine.place == (None, False)  # no step has begun
    assert machine.late_to == 5 and not machine.is_set_up
    assert not machine.counts(attempt_of("1.5#1"))
    for text in FORMED:
        look_up(machine, text)
    assert machine.in_step and machine.may_issue and machine.tag == Tag(attempt_of("1.5#1"), 5)
    assert machine.is_set_up and machine.heals_to is None
    assert machine.counts(attempt_of("1.5#1")) and not machine.counts(attempt_of("1.6#1"))
    look_up(machine, "issue")
    assert not machine.is_decidable and machine.reduced is None
    look_up(machine, "done 1.5#1 0")
    assert machine.is_decidable and machine.reduced == machine.tag
    look_up(machine, "decide commit")
    assert machine.state == state_of("6/A+1.5#1") and machine.position == 6
    assert machine.place == (6, False)
    assert machine.tag is None and machine.reduced is None


def test_who_heals_tells_to_which_step() -> None:
    machine = situation("healing")
    assert (machine.heals_to, machine.late_to) == (7, 5)
    for text in ("loaded 1.5#1@7 7/B", "applied from 1"):
        look_up(machine, text)
    assert (machine.heals_to, machine.late_to) == (None, 7)


def test_what_a_report_has_told_a_tick_does_not_repeat() -> None:
    machine = situation("waiting for a first quorum")
    look_up(machine, "tick", 2.0)
    for text in FORMED[1:]:
        look_up(machine, text, 3.0)
    assert machine.report_activity() == (Activity.STEP, 0.0)
    assert look_up(machine, "tick", 4.0) == []


@pytest.mark.parametrize("locally", [False, True], ids=["evaluates", "trains locally"])
def test_a_long_time_between_two_steps_is_outside_unless_the_script_trains_in_it(
    locally: bool,
) -> None:
    machine = situation("committed")
    machine.trains_between_steps = locally
    since = machine.activity()[1]
    machine.handle(e.Ticked(), since + LONG_S / 2)
    assert machine.activity() == (Activity.STEP, since)
    machine.handle(e.Ticked(), since + LONG_S)
    assert machine.activity() == (Activity.STEP if locally else Activity.OUTSIDE, since)


def test_heals_first_at_step_0_and_where_it_is_asked_for() -> None:
    def heals_first(worker: str, state: str) -> bool:
        machine = machine_of(worker)
        look_up(machine, "boundary")
        look_up(machine, f"new quorum 1.5#1 at {state}: 0 1 newcomers 0")
        look_up(machine, "built 1.5#1")
        assert machine.healing
        return machine.heals_first

    assert heals_first("worker 0 holds 0/A", "0/B")
    assert not heals_first("worker 0 holds 0/A", "5/B")
    assert heals_first("worker 0 holds 0/A heal_first=1", "5/B")


def test_the_story_is_told_and_does_not_grow_for_ever() -> None:
    machine = machine_of("worker 0 holds 5/A")
    for second in range(3 * STORY_LINES_MAX):
        look_up(machine, "tick", float(second))
    look_up(machine, "boundary freeze", 500.0)
    assert len(machine.story()) == STORY_LINES_MAX
    expected = "BoundaryReached(freeze_membership=True, catches_up=False)"
    assert machine.story()[-1] == f"500.000 {expected}"


def test_a_promise_is_kept_to_the_word() -> None:
    machine = situation("promised")
    machine.quorums._begun = 6
    with pytest.raises(AssertionError, match="Q5"):
        machine.check()


def test_nobody_trains_under_what_it_gave_up() -> None:
    machine = situation("working")
    machine.quorums.interrupted = attempt_of("1.5#1")
    with pytest.raises(AssertionError, match="Q2"):
        machine.check()


# ---------------------------------------------------------------- peers that have come to their end


def test_who_has_come_to_a_state_by_itself_trains_from_it_while_operations_are_out() -> None:
    """Its answer to a peer at the end of its script; a peer that has just healed gives none."""
    machine = machine_of("worker 0 holds 5/A")
    for text in [*REDUCED]:
        look_up(machine, text)
    assert machine.trains_from is None, "it began with this state"
    assert not machine.heal.has_committed
    for text in ["decide commit", "boundary"]:
        look_up(machine, text)
    assert machine.heal.has_committed
    assert machine.trains_from is None, "it may end here as well"
    look_up(machine, "issue")
    assert machine.trains_from == machine.state
    look_up(machine, "done 1.5#1 0")
    assert machine.trains_from is None, "the peer that asks took part in this step too"
    look_up(machine, "issue")
    assert machine.trains_from == machine.state
    look_up(machine, "interrupt 1.5#1")
    assert machine.trains_from is None


def test_who_leaves_early_names_its_step() -> None:
    machine = situation("committed")
    gone = machine.handle(e.WentAway(m.LeaveReason.EARLY), 0.0)
    assert sent(gone) == [m.Leaving(m.LeaveReason.EARLY, 6)]


@pytest.mark.parametrize(
    ("name", "awaits"),
    [("waiting for a first quorum", True), ("stepping", False), ("held", True), ("prepared", True)],
)
def test_others_may_join_at_the_next_boundary(name: str, awaits: bool) -> None:
    assert situation(name).quorums.awaits_newcomers is awaits
