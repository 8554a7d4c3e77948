"""The supervisor, event by event: starts, kills, restarts, and the job's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.activity import Activity
from ftrun.core.agent.ending import RECORDS_WAIT_S
from ftrun.core.agent.events import (
    SIGTERM,
    AskToStop,
    AskWorker,
    CheckHealth,
    DrainAsked,
    EndAgent,
    Event,
    FailureReported,
    FormWanted,
    HealthChecked,
    IncidentRecorded,
    Instruction,
    JobEnded,
    LighthouseGone,
    LighthouseSent,
    NoManagerMade,
    RestartAsked,
    ScriptTimerReleased,
    ScriptTimerSet,
    SendEvidence,
    SendToLighthouse,
    SendToReplica,
    SendToWorkers,
    ShowNotice,
    SignalReplica,
    SignalWorker,
    SlotsAssigned,
    SpawnerLost,
    SpawnerReady,
    SpawnerWarmed,
    StacksTaken,
    StandbyExited,
    StartReplica,
    StartStandby,
    StopAsked,
    SweepReplica,
    TakeStacks,
    TimerFired,
    WorkerDisconnected,
    WorkerExited,
    WorkerLife,
    WorkerSent,
    WorkerUsed,
)
from ftrun.core.agent.hangs import STACKS_WAIT_S
from ftrun.core.agent.outage import REMIND_S
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.script_timers import SECOND_LOOK_S
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.slot_state import Outcome, SlotPhase
from ftrun.core.agent.standby import StandbyRules
from ftrun.core.agent.stopping import SIGKILL
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.forms import Form
from ftrun.core.ids import NO_ATTEMPT, StateId, WorkerKey
from ftrun.core.messages import (
    AgentLeaving,
    FailureEvidence,
    FailureReport,
    Goodbye,
    Healed,
    Heartbeat,
    InForce,
    JobFailed,
    Lease,
    LeaveReason,
    Leaving,
    Progress,
    ReplicaFinished,
    ReplicaGivenUp,
    ReplicaLost,
    ReplicaStarted,
    Report,
    RunningReplica,
    StartFailure,
)
from ftrun.core.quorum import Endpoint
from ftrun.errors import Bug
from tests.suite.properties import examples

TRACE = 'Traceback:\n  File "train.py", line 3, in <module>\nValueError: no'
RAISED = FailureReport("ValueError", "no", TRACE)


class Agent:
    """A supervisor on a clock that jumps, with the incarnations that it has started."""

    def __init__(self, is_ready: bool = True, **changes: Any) -> None:
        rules: dict[str, Any] = {
            "agent_id": "a",
            "workers_per_replica": 1,
            "restarts": RestartRules(max_restarts=10),
            "grace_s": 10.0,
            "isolation_limit_s": 60.0,
            "join_timeout_s": 30.0,
        }
        self.core = Supervisor(SupervisorSettings(**{**rules, **changes}), 0.0)
        self.now = 0.0
        self.incarnations: dict[str, str] = {}
        if is_ready:
            self.on(SpawnerReady())

    def on(self, event: Event) -> list[Instruction]:
        out = self.core.handle(event, self.now)
        for instruction in out:
            if isinstance(instruction, StartReplica):
                self.incarnations[instruction.replica_id] = instruction.incarnation
        self.core.check()
        return out

    def assign(self, *replica_ids: str, is_at_start: bool = False) -> list[Instruction]:
        """``is_at_start``: the scripts have made no step, with or without a Manager."""
        before = set(self.incarnations)
        out = self.on(SlotsAssigned(replica_ids))
        for replica_id in self.incarnations.keys() - before:
            if not is_at_start:
                self.on(
                    NoManagerMade(WorkerKey(replica_id, self.incarnations[replica_id], 0), True)
                )
        return out

    def exits(self, replica_id: str, status: int, rank: int = 0) -> list[Instruction]:
        return self.on(WorkerExited(self.incarnations[replica_id], rank, 1000 + rank, status))

    def raises(
        self, replica_id: str, rank: int = 0, step: int | None = None, heals: bool = False
    ) -> list[Instruction]:
        key = WorkerKey(replica_id, self.incarnations[replica_id], rank)
        report = replace(RAISED, step=step, heals=heals)
        return [*self.on(FailureReported(key, report)), *self.exits(replica_id, 1, rank)]

    def steps_alone(self, replica_id: str) -> list[Instruction]:
        return self.on(NoManagerMade(WorkerKey(replica_id, self.incarnations[replica_id], 0), True))

    def says(self, replica_id: str, message: Any, rank: int = 0) -> list[Instruction]:
        return self.on(
            WorkerSent(WorkerKey(replica_id, self.incarnations[replica_id], rank), message)
        )

    def failure_reports(self, replica_id: str) -> list[Instruction]:
        return self.says(replica_id, Report(StateId(0, "x"), Endpoint("h", "h:1")))

    def wait(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.on(TimerFired())


def starts(out: list[Instruction]) -> list[tuple[str, int]]:
    return [(i.replica_id, i.restarts) for i in out if isinstance(i, StartReplica)]


def signals(out: list[Instruction]) -> list[tuple[str, int]]:
    return [(i.replica_id, i.number) for i in out if isinstance(i, SignalReplica)]


def asked(out: list[Instruction]) -> list[str]:
    return [i.replica_id for i in out if isinstance(i, AskToStop)]


def leaving(out: list[Instruction]) -> list[tuple[str, bool]]:
    orders = [(i.replica_id, i.message) for i in out if isinstance(i, SendToReplica)]
    return [(replica_id, order.in_quorum) for replica_id, order in orders]


def told(out: list[Instruction]) -> list[Any]:
    return [i.message for i in out if isinstance(i, SendToLighthouse)]


def said(out: list[Instruction]) -> str:
    return "\n".join(i.text for i in out if isinstance(i, ShowNotice))


def evidence(out: list[Instruction]) -> list[FailureEvidence]:
    return [i.evidence for i in out if isinstance(i, SendEvidence)]


def ended(out: list[Instruction]) -> EndAgent | None:
    return next((i for i in out if isinstance(i, EndAgent)), None)


# ---------------------------------------------------------------- starts and good ends


def test_assigned_slots_are_started_in_order_and_told() -> None:
    agent = Agent()
    out = agent.assign("10", "2")
    assert starts(out) == [("2", 0), ("10", 0)]
    assert told(out) == [
        ReplicaStarted("2", agent.incarnations["2"], 0),
        ReplicaStarted("10", agent.incarnations["10"], 0),
    ]
    assert agent.core.running() == tuple(
        RunningReplica(slot, agent.incarnations[slot]) for slot in ("2", "10")
    )
    assert starts(agent.assign("10", "2")) == []


def test_a_job_whose_scripts_all_end_well_ends_with_0_without_a_lighthouse_word() -> None:
    agent = Agent()
    agent.on(LighthouseSent(agent.now))
    agent.assign("0", "1")
    out = agent.exits("0", 0)
    assert told(out) == [ReplicaFinished("0", agent.incarnations["0"])]
    assert SweepReplica("0", agent.incarnations["0"]) in out
    assert ended(agent.exits("1", 0)) is None
    assert agent.core.finished() == ("0", "1")
    assert agent.core.next_deadline() == 2.0
    assert ended(agent.wait(1.9)) is None
    out = agent.wait(0.1)
    assert ended(out) == EndAgent(0, "all replicas have finished")
    assert told(out) == [Goodbye()]
    assert agent.core.next_deadline() is None
    assert agent.wait(1.0) == []


@pytest.mark.parametrize("given", [(), ("0", "1")])
def test_an_end_by_itself_is_off_when_the_slots_change(given: tuple[str, ...]) -> None:
    """Seed 20012868: the end was due and could not be, and the timer fired again at once."""
    agent = Agent()
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.exits("0", 0)
    assert agent.core.next_deadline() == 2.0
    agent.assign(*given)
    assert ended(agent.wait(2.0)) is None
    assert agent.core.next_deadline() == 60.0


def test_beside_other_agents_the_lighthouse_has_the_last_word() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.exits("0", 0)
    agent.on(LighthouseSent(agent.now))
    assert ended(agent.wait(50.0)) is None
    assert starts(agent.assign("0", "1")) == [("1", 0)]
    agent.exits("1", 0)
    assert ended(agent.on(JobEnded(0, "all have finished"))) == EndAgent(0, "all have finished")


def test_beside_other_agents_without_a_lighthouse_the_end_comes_by_itself() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.exits("0", 0)
    agent.on(LighthouseGone("cut"))
    agent.on(LighthouseGone("cut"))
    end = agent.wait(2.0)
    assert ended(end) == EndAgent(0, "all replicas have finished")


def test_a_group_of_two_has_finished_when_both_have() -> None:
    agent = Agent(workers_per_replica=2)
    agent.assign("0")
    assert told(agent.exits("0", 0, rank=1)) == []
    assert told(agent.exits("0", 0, rank=0)) == [ReplicaFinished("0", agent.incarnations["0"])]


# ---------------------------------------------------------------- failures


def test_a_loss_is_told_before_anything_else_and_the_restart_is_at_once() -> None:
    agent = Agent()
    agent.assign("0", "1")
    first = agent.incarnations["0"]
    out = agent.exits("0", -9)
    assert out[0] == SendToLighthouse(ReplicaLost("0", first, "died: SIGKILL", kind="signal"))
    assert starts(out) == [("0", 1)]
    assert signals(out) == []
    assert agent.incarnations["0"] != first
    assert "replica 0 (pid 1000) died: SIGKILL. Restart 1 of 10 now." in said(out)
    assert [loss.incarnation for loss in agent.core.dead()] == [first]
    assert "exited -9" in "".join(agent.core.story("0"))


def test_one_workers_death_kills_the_rest_of_its_group_only_and_restarts_when_all_are_gone() -> (
    None
):
    agent = Agent(workers_per_replica=2)
    agent.assign("0", "1")
    out = agent.exits("0", -11, rank=1)
    assert isinstance(told(out)[0], ReplicaLost)
    assert signals(out) == [("0", SIGKILL)]
    assert isinstance(out[0], SignalReplica)  # Q3: a loss that is told commits no more
    assert starts(out) == []
    assert said(out) == ""  # the other worker's end may still turn out to be the first cause
    out = agent.exits("0", -9, rank=0)
    assert "worker 1 (pid 1001) died: SIGSEGV. Restart 1 of 10 now." in said(out)
    assert [i.log for i in out if isinstance(i, ShowNotice)] == [WorkerLife("0", 1, 0)]
    assert [x.group_rank for x in evidence(out)[0].workers] == [1]  # we have stopped the other one
    assert starts(out) == [("0", 1)]
    assert told(out) == [ReplicaStarted("0", agent.incarnations["0"], 1)]
    summary = agent.core.summary()[0]
    assert (summary.status, summary.restarts, summary.phase) == (-11, 1, SlotPhase.RUNNING)


def test_a_late_or_repeated_exit_does_nothing() -> None:
    agent = Agent()
    agent.assign("0")
    old = agent.incarnations["0"]
    agent.exits("0", -9)
    assert agent.on(WorkerExited(old, 0, 1000, -9)) == []
    assert agent.on(FailureReported(WorkerKey("0", old, 0), RAISED)) == []
    assert agent.on(WorkerSent(WorkerKey("0", old, 0), Progress(1, 1, Activity.STEP))) == []
    assert agent.on(RestartAsked("0", old, "silent")) == []


def test_without_progress_a_restart_waits_and_then_comes() -> None:
    agent = Agent()
    agent.assign("0")
    agent.exits("0", -9)
    out = agent.exits("0", -9)
    assert starts(out) == []
    assert "Restart 2 of 10 in 1 s." in said(out)
    assert agent.core.next_deadline() == 1.0
    assert starts(agent.wait(1.0)) == [("0", 2)]


def test_progress_ends_the_waiting_and_the_lost_time_is_counted() -> None:
    agent = Agent()
    agent.assign("0")
    agent.exits("0", -9)
    agent.now += 3.0
    agent.says("0", Healed(NO_ATTEMPT, 7, ("1",), 10, 0.1))
    agent.says("0", InForce(NO_ATTEMPT, 7))
    agent.says("0", Progress(8, 8, Activity.STEP))  # its peers' step, in which it healed
    agent.says("0", Progress(9, 9, Activity.STEP))
    assert starts(agent.exits("0", -9)) == [("0", 2)]
    summary = agent.core.summary()[0]
    assert (summary.lost_s, summary.steps, summary.restarts) == (3.0, 9, 2)


def test_the_same_traceback_three_times_ends_the_job_and_says_why() -> None:
    agent = Agent()
    agent.assign("0", "1")
    agent.raises("0")
    agent.steps_alone("0")
    agent.raises("0")
    agent.wait(1.0)
    agent.steps_alone("0")
    out = agent.raises("0")
    reason = told(out)[1].reason
    assert told(out)[1] == JobFailed(72, reason)
    assert "crash loop: replica 0 has failed 3 times" in reason
    assert evidence(out)[0].verdict == "crash loop"
    assert "ValueError: no" in reason
    assert asked(out) == ["1"]
    assert ended(agent.exits("1", 143)) == EndAgent(72, reason)
    outcomes = [slot.outcome for slot in agent.core.summary()]
    assert outcomes == [Outcome.CRASH_LOOP, Outcome.STOPPED]


def test_a_crash_loop_of_a_signal_or_an_exit_code_keeps_that_code() -> None:
    for status, code in ((-11, 139), (42, 42)):
        agent = Agent()
        agent.assign("0")
        agent.exits("0", status)
        agent.steps_alone("0")
        agent.exits("0", status)
        agent.wait(1.0)
        agent.steps_alone("0")
        end = ended(agent.exits("0", status))
        assert end is not None
        assert end.exit_code == code


def test_a_spent_budget_ends_the_job_with_the_first_causes_code() -> None:
    agent = Agent(restarts=RestartRules(max_restarts=1))
    agent.assign("0")
    agent.exits("0", 3)
    out = agent.exits("0", -9)
    end = ended(out)
    assert end is not None
    assert end.exit_code == 3
    assert "no restart is left of 1" in end.reason
    assert "It is not restarted." in said(out)


@pytest.mark.parametrize("known", [(7, 7), (5, 7), (7, 5), (None, 7), (7, None), (None, None)])
def test_the_step_of_an_error_is_the_workers_own_whatever_progress_has_arrived(
    known: tuple[int | None, ...],
) -> None:
    """Progress is sent ten times a second, so the last one may be of an earlier step."""
    agent = Agent()
    agent.assign("0", is_at_start=True)
    for step in known:
        if step is not None:
            agent.says("0", Progress(step, 0, Activity.STEP))
        out = agent.raises("0", step=7)
        agent.wait(5.0)
    assert "has failed twice in the same way at step 7" in said(out)
    assert ended(out) is not None
    assert evidence(out)[0].step == 7


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        (((3, False), (3, True)), "at step 3"),  # its peers stand, and it heals to their step
        (((3, True), (9, True)), "before the first step"),
        (((3, False), (9, True), (9, False)), "at step 9"),
        (((3, False), (9, True), (12, False)), "crash loop"),
    ],
)
def test_an_error_in_a_heal_is_the_same_at_the_same_step_or_in_another_heal(
    places: tuple[tuple[int, bool], ...], verdict: str
) -> None:
    agent = Agent(restarts=RestartRules(max_restarts=10, strikes_max=3))
    agent.assign("0", is_at_start=True)
    for step, heals in places:
        out = agent.raises("0", step=step, heals=heals)
        agent.wait(5.0)
    assert verdict in said(out) and ended(out) is not None


def test_an_error_at_a_step_that_nobody_has_named_is_a_crash_loop_at_the_third_time() -> None:
    """An error file has no step in it, and the last progress may be of an earlier one."""
    agent = Agent()
    agent.assign("0")
    recorded = FailureReport("KeyError", "inner", TRACE)
    verdicts = []
    for _ in range(3):
        agent.says("0", Progress(7, 7, Activity.STEP))
        gone = WorkerExited(agent.incarnations["0"], 0, 1000, 5, recorded=recorded)
        verdicts += [each.verdict for each in evidence(agent.on(gone))]
        agent.wait(5.0)
    assert verdicts == ["restarted", "restarted", "crash loop"]


def connected(**changes: Any) -> Agent:
    agent = Agent(**{"replicas": 3, "restarts": RestartRules(max_restarts=1), **changes})
    agent.on(LighthouseSent(agent.now))
    return agent


def given_up(agent: Agent, replica_id: str, **changes: Any) -> ReplicaGivenUp:
    reason = f"replica {replica_id} has failed (SIGKILL) and no restart is left of 1"
    word = ReplicaGivenUp(replica_id, agent.incarnations[replica_id], 137, reason, "script", True)
    return replace(word, **changes)


def test_the_lighthouse_decides_whether_a_job_goes_on_without_a_replica() -> None:
    agent = connected()
    agent.assign("0", "1", "2")
    agent.exits("1", -9)
    out = agent.exits("1", -9)
    assert told(out)[1:] == [given_up(agent, "1")]
    assert "It is not restarted." in said(out)
    assert agent.core.given_up() == (given_up(agent, "1"),)
    assert not agent.core.is_ending
    agent.assign("0", "2")  # it goes on
    assert agent.core.given_up() == ()
    kept = agent.core.summary()[1]
    assert (kept.replica_id, kept.outcome, kept.restarts) == ("1", Outcome.BUDGET_SPENT, 1)
    assert starts(agent.assign("0", "1", "2")) == [("1", 0)]  # `ftrun restart 1`
    assert [slot.outcome for slot in agent.core.summary()] == [None, None, None]
    assert starts(agent.exits("1", -9)) == [("1", 1)]


def test_a_job_that_cannot_go_on_ends_with_the_code_of_the_replica() -> None:
    agent = connected()
    agent.assign("0", "1")
    agent.exits("1", -9)
    word = told(agent.exits("1", -9))[-1]
    agent.on(JobEnded(word.exit_code, word.reason, word.kind))
    end = ended(agent.exits("0", 0)) or ended(agent.wait(RECORDS_WAIT_S))
    assert end == EndAgent(137, word.reason, "script")


def test_without_a_lighthouse_to_ask_the_job_ends_here() -> None:
    agent = connected()
    agent.on(LighthouseGone("cut"))
    agent.assign("0", "1")
    agent.exits("1", -9)
    out = agent.exits("1", -9)
    assert isinstance(told(out)[-1], JobFailed) and agent.core.is_ending


def test_a_question_that_nobody_answers_is_no_good_end() -> None:
    agent = connected()
    agent.assign("0", "1")
    agent.exits("1", -9)
    agent.exits("1", -9)
    agent.on(LighthouseGone("cut"))
    assert agent.core.given_up() != ()  # sent again to the next lighthouse
    agent.exits("0", 0)
    assert ended(agent.wait(2.0)) == EndAgent(137, given_up(agent, "1").reason, "script")


@pytest.mark.parametrize(
    ("rules", "script_raises", "elsewhere"),
    [
        (RestartRules(max_restarts=0), False, False),  # people want no restart at all
        (RestartRules(max_restarts=9), True, False),  # the script would raise there too
        (RestartRules(max_restarts=9, strikes_max=2), False, True),
    ],
)
def test_another_node_may_try_what_may_be_the_fault_of_this_one(
    rules: RestartRules, script_raises: bool, elsewhere: bool
) -> None:
    agent = connected(restarts=rules, replicas=1, alone=False)
    agent.assign("0")
    found: list[ReplicaGivenUp] = []
    while not found:
        out = agent.raises("0", step=4) if script_raises else agent.exits("0", -11)
        found = [word for word in told(out) if isinstance(word, ReplicaGivenUp)]
        agent.wait(5.0)
    assert found[0].elsewhere == elsewhere


def test_a_replica_whose_node_is_not_well_is_given_up_while_it_waits() -> None:
    agent = connected(health_check="true")
    agent.assign("0", "1")
    agent.exits("1", -9)
    out = agent.on(HealthChecked(agent.incarnations["1"], "exit code 4"))
    assert isinstance(told(out)[-1], ReplicaGivenUp)
    assert agent.core.summary()[1].outcome is Outcome.BUDGET_SPENT
    assert starts(agent.wait(100.0)) == []


def test_a_job_without_other_replicas_and_nodes_ends_at_once() -> None:
    for changes in ({"replicas": 1}, {"restarts": RestartRules(max_restarts=1, as_torchrun=True)}):
        agent = connected(**changes)
        agent.assign("0")
        agent.exits("0", -9)
        assert isinstance(told(agent.exits("0", -9))[-1], JobFailed)


def test_steps_of_its_peers_are_not_a_newcomers_own() -> None:
    """A replica waits for a quorum, joins one that is far ahead, and fails before its heal."""
    agent = Agent(replicas=2)
    agent.assign("0", "1")
    for step in (100, 200, 300):
        agent.says("1", Progress(0, 0, Activity.QUORUM))
        agent.says("1", Progress(step, 0, Activity.HEALING))
        out = agent.raises("1")
        agent.wait(5.0)
    assert "restarting will not help: replica 1 has failed twice" in said(out)


# ---------------------------------------------------------------- failures at the start


def test_a_wrong_usage_ends_a_job_in_which_nobody_has_trained() -> None:
    agent = Agent()
    agent.assign("0", is_at_start=True)
    out = agent.exits("0", 2)
    assert "Restart 1 of 10 in 1 s, unless no replica has trained yet." in said(out)


def test_a_script_that_fails_at_its_start_is_told_as_one_and_tried_again_a_little_later() -> None:
    """During the delay the lighthouse may end the job, if all replicas fail alike."""
    agent = Agent()
    agent.assign("0", is_at_start=True)
    out = agent.raises("0")
    lost = told(out)[0]
    assert lost.start_failure == StartFailure(lost.start_failure.signature, 1, "ValueError: no")
    assert starts(out) == []
    assert "Restart 1 of 10 in 1 s, unless all replicas fail so." in said(out)
    assert starts(agent.wait(1.0)) == [("0", 1)]
    again = told(agent.exits("0", 2))[0].start_failure
    assert (again.exit_code, again.words) == (2, "exit code 2")
    assert again.signature != lost.start_failure.signature


@pytest.mark.parametrize("progress", ["a step", "a quorum", "an optimizer of its own", "a kill"])
def test_who_has_trained_or_is_killed_does_not_fail_at_the_start(progress: str) -> None:
    agent = Agent()
    agent.assign("0", is_at_start=progress != "an optimizer of its own")
    if progress == "a step":
        agent.says("0", Progress(1, 1, Activity.STEP))
    elif progress == "a quorum":
        agent.says("0", InForce(NO_ATTEMPT, 0))
    out = agent.exits("0", -9 if progress == "a kill" else 1)
    assert told(out)[0].start_failure is None
    assert starts(out) == [("0", 1)]


# ---------------------------------------------------------------- without a Manager


def test_groups_that_train_apart_are_told_once_and_in_the_report() -> None:
    agent = Agent(replicas=2, target="train.py")
    agent.assign("0", "1", is_at_start=True)
    assert not agent.core.ran_apart
    keys = [WorkerKey(slot, agent.incarnations[slot], 0) for slot in "01"]
    text = said(agent.on(NoManagerMade(keys[0], True)))
    assert text.startswith("train.py trains without a Manager: its 2 replica groups")
    assert "--workers-per-replica" in text
    assert said(agent.on(NoManagerMade(keys[1], False))) == ""
    assert agent.core.ran_apart
    agent.failure_reports("0")
    assert not agent.core.ran_apart  # it was made later


def test_a_replica_that_has_diverged_is_killed_without_its_stacks() -> None:
    agent = Agent(replicas=2)
    agent.assign("0", "1")
    first = agent.incarnations["1"]
    out = agent.on(RestartAsked("1", first, "has diverged at step 7: its optimizer has lr 1"))
    assert not [x for x in out if isinstance(x, TakeStacks)]
    assert [x.number for x in out if isinstance(x, SignalReplica)] == [SIGKILL]
    out = agent.exits("1", -SIGKILL)
    assert "was given up: has diverged at step 7" in said(out)
    assert starts(out) == [("1", 1)]


# ---------------------------------------------------------------- another form


@pytest.mark.parametrize("form", list(Form))
def test_a_script_that_needs_another_form_begins_again(form: Form) -> None:
    agent = Agent(replicas=2)
    agent.assign("0", "1", is_at_start=True)
    keys = [WorkerKey(slot, agent.incarnations[slot], 0) for slot in "01"]
    out = agent.on(FormWanted(keys[0], form.value, "train.py:3: no"))
    assert said(out).startswith("train.py:3: no. ftrun begins again ")
    killed = [x.replica_id for x in out if isinstance(x, SignalReplica) and x.number == SIGKILL]
    assert killed == ["0", "1"]
    assert agent.on(FormWanted(keys[1], form.value, "train.py:3: no")) == []  # once
    agent.exits("0", -SIGKILL)
    out = agent.exits("1", -SIGKILL)
    assert [x for x in out if isinstance(x, EndAgent)] == [EndAgent(0, "train.py:3: no", "", form)]


def test_on_several_nodes_a_script_that_needs_another_form_ends_the_job() -> None:
    agent = Agent(replicas=2, alone=False)
    agent.assign("0", is_at_start=True)
    key = WorkerKey("0", agent.incarnations["0"], 0)
    out = agent.on(FormWanted(key, "world", "train.py:3: no"))
    assert "one world of workers on several nodes is not offered" in said(out)
    out = agent.exits("0", 1)
    ending = next(x for x in out if isinstance(x, EndAgent))
    assert (ending.exit_code, ending.again) == (2, None)


def test_on_several_nodes_one_that_was_started_again_does_not_end_the_others() -> None:
    agent = Agent(replicas=2, alone=False)
    agent.assign("0")
    assert starts(agent.exits("0", -SIGKILL)) == [("0", 1)]
    key = WorkerKey("0", agent.incarnations["0"], 0)
    out = agent.on(FormWanted(key, "world", "train.py:3: no"))
    assert "replica 0 cannot join the others: train.py:3: no" in said(out)
    assert not any(isinstance(x, EndAgent) for x in agent.exits("0", 1))


def test_a_form_that_nobody_knows_changes_nothing() -> None:
    agent = Agent(replicas=2)
    agent.assign("0", is_at_start=True)
    key = WorkerKey("0", agent.incarnations["0"], 0)
    assert agent.on(FormWanted(key, "other", "no")) == []
    assert agent.on(FormWanted(WorkerKey("0", "unknown", 0), "world", "no")) == []


def test_one_group_needs_no_manager() -> None:
    agent = Agent(replicas=1)
    agent.assign("0", is_at_start=True)
    assert said(agent.on(NoManagerMade(WorkerKey("0", agent.incarnations["0"], 0), True))) == ""
    assert not agent.core.ran_apart


def apart(out: Iterable[Any]) -> list[tuple[str, float]]:
    """Which replicas are reported as running without a Manager, and since when."""
    heartbeats = [x.message if isinstance(x, SendToLighthouse) else x for x in out]
    lines = [line for x in heartbeats if isinstance(x, Heartbeat) for line in x.progress]
    assert all(line.progress.phase is Activity.APART for line in lines)
    return [(line.replica_id, line.progress.since_s) for line in lines]


def test_the_lighthouse_is_told_that_a_script_has_no_manager_and_a_new_one_again() -> None:
    agent = Agent(replicas=3)
    agent.assign("0", "1", "2", is_at_start=True)
    agent.now += 5.0
    keys = [WorkerKey(slot, agent.incarnations[slot], 0) for slot in "012"]
    assert apart(agent.on(NoManagerMade(keys[0], True))) == [("0", 0.0)]
    assert apart(agent.on(NoManagerMade(keys[1], False))) == [("1", 5.0)]
    assert apart(agent.core.apart()) == [("0", 0.0)]
    agent.says("0", Leaving(LeaveReason.FINISHED))  # it has made one after all
    assert agent.core.apart() == ()
    agent.says("2", Leaving(LeaveReason.FINISHED))
    assert apart(agent.on(NoManagerMade(keys[2], True))) == []


def test_one_that_trains_without_a_manager_has_lost_what_its_restart_took() -> None:
    agent = Agent(replicas=1)
    agent.assign("0")
    agent.exits("0", -9)
    agent.now += 2.0
    agent.on(NoManagerMade(WorkerKey("0", agent.incarnations["0"], 0), True))
    agent.now += 50.0
    assert agent.core.summary()[0].lost_s == pytest.approx(2.0)


def test_an_error_at_the_start_of_a_group_of_several_is_the_first_ones_to_end() -> None:
    """A worker is killed, and another worker's exception arrives before its exit."""
    agent = Agent(replicas=1, workers_per_replica=2)
    agent.assign("0", is_at_start=True)
    key = WorkerKey("0", agent.incarnations["0"], 0)
    assert told(agent.on(FailureReported(key, RAISED))) == []
    (lost,) = told(agent.exits("0", -9, rank=1))
    assert lost.cause == "died: SIGKILL" and lost.start_failure is None


# ---------------------------------------------------------------- lost time


def test_seconds_in_which_a_replica_cannot_train_are_lost() -> None:
    agent = Agent()
    agent.assign("0")
    agent.says("0", Progress(0, 0, Activity.QUORUM, since_s=5.0))
    agent.says("0", InForce(NO_ATTEMPT, 0))
    agent.now = 10.0
    agent.says("0", Progress(5, 5, Activity.STEP))
    assert agent.core.summary()[0].lost_s == 0.0  # nothing is lost before it has begun
    agent.now = 20.0
    agent.says("0", Progress(6, 6, Activity.WAITING, since_s=2.0))
    agent.now = 30.0
    agent.says("0", Progress(7, 7, Activity.STEP))
    assert agent.core.summary()[0].lost_s == 12.0
    agent.now = 40.0
    agent.says("0", Progress(8, 8, Activity.STOPPED, since_s=4.0))
    agent.says("0", Progress(8, 8, Activity.OUTSIDE, since_s=1.0))
    assert agent.core.summary()[0].lost_s == 16.0


def test_who_hangs_has_lost_all_the_time_since_its_last_word() -> None:
    agent = Agent(hang_timeout_s=40.0, isolation_limit_s=1000.0)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.says("0", InForce(NO_ATTEMPT, 0))
    key = WorkerKey("0", agent.incarnations["0"], 0)
    for _ in range(3):
        agent.now = agent.core.next_deadline() or 0.0
        assert AskWorker(key) in agent.on(TimerFired())
        agent.on(WorkerUsed(key, 1000, 0.0))
    assert agent.now == 40.0
    agent.exits("0", -9)
    agent.now += 1.0
    agent.says("0", InForce(NO_ATTEMPT, 0))
    assert agent.core.summary()[0].lost_s == 41.0


def test_training_that_stands_for_want_of_a_lighthouse_is_said_once() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.says("0", InForce(NO_ATTEMPT, 0))
    agent.says("0", Progress(1023, 1023, Activity.STEP))
    agent.now = 10.0
    out = agent.on(LighthouseGone("cut"))
    assert "The lighthouse is gone (cut); training goes on until a replica is lost" in said(out)
    assert "and for 60 s at most (--isolation-limit)." in said(out)
    assert said(agent.wait(5.0)) == ""
    agent.says("0", Progress(1023, 1023, Activity.QUORUM, since_s=1.0))
    assert agent.core.next_deadline() == 17.0
    text = said(agent.wait(2.0))
    assert "There is no new quorum without the lighthouse: training stands at step 1023" in text
    assert "since 3 s" in text
    assert said(agent.wait(20.0)) == ""
    assert "The lighthouse is back." in said(agent.on(LighthouseSent(agent.now)))


def test_a_lighthouse_that_stays_away_is_waited_for_by_name_and_not_for_ever() -> None:
    agent = Agent(alone=False, lighthouse_at="head:29510", lighthouse_timeout_s=700.0)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0", is_at_start=True)
    agent.says("0", InForce(NO_ATTEMPT, 0))
    gone = agent.on(LighthouseGone("cut"))
    assert "The lighthouse is gone (head:29510: cut); training goes on" in said(gone)
    texts = []
    while not (asked_now := asked(out := agent.on(TimerFired()))):
        texts += [said(out)] if said(out) else []
        agent.now = agent.core.next_deadline() or 0.0
    assert [text.partition(": ")[0] for text in texts] == [
        "No word from the lighthouse at head:29510 for 60 s",
        "No word from the lighthouse at head:29510 for 360 s",
        "No word from the lighthouse at head:29510 for 660 s",
    ]
    assert "training stands, and goes on when it is back" in texts[-1]
    assert "within 40 s (--lighthouse-timeout)" in texts[-1] and "exit code 71" in texts[-1]
    assert (agent.now, asked_now) == (700.0, ["0"])  # its script may save
    reason = "no word from the lighthouse at head:29510 for 700 s (--lighthouse-timeout)"
    assert ended(agent.exits("0", -15)) == EndAgent(71, reason)


def test_a_lighthouse_that_comes_back_after_an_isolation_ends_the_wait() -> None:
    agent = Agent(alone=False, lighthouse_timeout_s=700.0)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0", is_at_start=True)
    agent.on(LighthouseGone("cut"))
    assert "No word from the lighthouse for 60 s" in said(agent.wait(60.0))
    agent.on(LighthouseSent(None))  # it accepts the stream, and its answer is still to come
    assert "No word" in said(agent.wait(300.0))
    agent.on(LighthouseSent(agent.now))
    assert agent.core.next_deadline() == 420.0
    assert "No word from the lighthouse for 60 s" in said(agent.wait(60.0))


def test_a_script_without_a_manager_runs_on_without_a_lighthouse() -> None:
    agent = Agent(alone=False, lighthouse_timeout_s=700.0)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.on(LighthouseGone("cut"))
    text = said(agent.wait(60.0))
    assert "The script has no Manager, so it runs on" in text
    for _ in range(10):
        agent.now = agent.core.next_deadline() or 0.0
        agent.on(TimerFired())
    assert agent.now == 60.0 + 10 * REMIND_S
    assert not agent.core.is_ending


def test_a_node_without_replicas_says_so_once() -> None:
    agent = Agent(alone=False)
    assert "All replicas have a node: this one stands by." in said(agent.assign())
    assert said(agent.assign()) == ""


def timer_set(
    agent: Agent, left_s: float, number: int, scope: str = "train.py#3"
) -> ScriptTimerSet:
    key = WorkerKey("0", agent.incarnations["0"], 0)
    return ScriptTimerSet(key, 1000, scope, left_s, number)


def test_a_timer_of_the_script_that_runs_out_gives_the_replica_up_with_its_stacks() -> None:
    agent = Agent()
    agent.assign("0")
    first = agent.incarnations["0"]
    agent.on(timer_set(agent, 5.0, SIGKILL))
    agent.now = agent.core.next_deadline() or 0.0
    assert agent.now == 5.0 + SECOND_LOOK_S
    assert TakeStacks("0", first) in agent.on(TimerFired())
    agent.on(timer_set(agent, 0.0, SIGKILL, "another"))
    assert agent.wait(1.0) == []
    out = agent.on(StacksTaken(first, ((0, "File f, line 3"),)))
    cause = "hangs: the timer 'train.py#3' of its script has expired"
    assert told(out) == [ReplicaLost("0", first, cause, kind="hang")]
    assert signals(out) == [("0", SIGKILL)]
    assert starts(agent.exits("0", -9)) == [("0", 1)]
    assert agent.on(ScriptTimerReleased(WorkerKey("0", first, 0), 1000, "train.py#3")) == []


def test_a_released_timer_and_the_end_of_its_worker_turn_it_off() -> None:
    agent = Agent(workers_per_replica=2)
    agent.assign("0")
    first = agent.incarnations["0"]
    agent.on(timer_set(agent, 5.0, SIGKILL))
    agent.on(ScriptTimerReleased(WorkerKey("0", first, 0), 1000, "train.py#3"))
    agent.on(timer_set(agent, 5.0, SIGKILL))
    agent.exits("0", 0)
    agent.on(timer_set(agent, 5.0, SIGKILL))
    assert agent.wait(10.0) == []


def test_a_timer_may_want_another_signal_or_none() -> None:
    agent = Agent()
    agent.assign("0")
    first = agent.incarnations["0"]
    agent.on(timer_set(agent, 1.0, SIGTERM))
    out = agent.wait(2.0)
    assert SignalWorker(WorkerKey("0", first, 0), SIGTERM) in out
    assert "the timer 'train.py#3' of its script has expired; it is sent SIGTERM" in said(out)
    out = agent.exits("0", -SIGTERM)
    assert "hangs: the timer 'train.py#3' of its script has expired" in said(out)
    assert evidence(out)[0].workers[0].kind == "hang"
    agent.on(timer_set(agent, 1.0, 0))
    out = agent.wait(2.0)
    assert said(out).endswith("has expired; it asked for nothing.")
    assert signals(out) == []


def test_the_lighthouse_may_give_a_group_up() -> None:
    agent = Agent()
    agent.assign("0")
    first = agent.incarnations["0"]
    out = agent.on(RestartAsked("0", first, "it did not answer"))
    assert out == [TakeStacks("0", first)]
    assert agent.on(RestartAsked("0", first, "it did not answer")) == []
    out = agent.on(StacksTaken(first, ((0, "File f, line 3"),)))
    assert told(out) == [ReplicaLost("0", first, "was given up: it did not answer", kind="hang")]
    assert signals(out) == [("0", SIGKILL)]
    out = agent.exits("0", -9)
    assert starts(out) == [("0", 1)]
    assert evidence(out)[0].workers[0].stacks == "File f, line 3"


def test_stacks_that_do_not_come_are_not_waited_for() -> None:
    agent = Agent()
    agent.assign("0")
    first = agent.incarnations["0"]
    agent.on(RestartAsked("0", first, "it did not answer"))
    assert agent.core.next_deadline() == STACKS_WAIT_S
    assert signals(agent.wait(STACKS_WAIT_S)) == [("0", SIGKILL)]
    assert agent.on(StacksTaken(first, ())) == []


def test_a_worker_that_dies_while_its_stacks_are_taken_has_died_by_itself() -> None:
    agent = Agent()
    agent.assign("0")
    first = agent.incarnations["0"]
    agent.on(RestartAsked("0", first, "it did not answer"))
    out = agent.exits("0", -11)
    assert evidence(out)[0].workers[0].kind == "signal"
    assert agent.on(StacksTaken(first, ((0, "late"),))) == []


def test_the_first_cause_is_the_earliest_but_a_lost_peer_comes_after_what_it_follows_from() -> None:
    agent = Agent(workers_per_replica=3)
    agent.assign("0")
    lost_peer = FailureReport("RuntimeError", "Connection closed by peer [::1]:99", TRACE)
    agent.on(FailureReported(WorkerKey("0", agent.incarnations["0"], 2), lost_peer))
    agent.now = 0.1
    agent.exits("0", 1, rank=2)
    agent.now = 0.2
    agent.exits("0", -11, rank=1)
    out = agent.exits("0", -9, rank=0)
    assert "worker 1 (pid 1001) died: SIGSEGV" in said(out)
    found = evidence(out)[0].workers
    assert [(x.group_rank, x.kind) for x in found] == [(1, "signal"), (2, "peer lost")]
    assert [x.age_s for x in found] == [0.0, 0.2]


def test_evidence_is_sent_again_until_there_is_a_final_record() -> None:
    agent = Agent()
    agent.assign("0")
    first = agent.incarnations["0"]
    agent.exits("0", -9)
    at = agent.now
    assert [x.incarnation for x in agent.core.unconfirmed(at)] == [first]
    agent.on(IncidentRecorded(("another",), 6))
    (again,) = agent.core.unconfirmed(at + 4.0)
    assert (again.incarnation, again.incident, again.workers[0].age_s) == (first, 0, 4.0)
    agent.on(IncidentRecorded((first,), 7, is_open=True))
    assert [x.incident for x in agent.core.unconfirmed(at)] == [7]
    agent.on(IncidentRecorded((first,), 7))
    assert agent.core.unconfirmed(at) == ()
    assert agent.core.last_incident == 7


def test_a_job_that_fails_waits_a_moment_for_the_record_of_its_failure() -> None:
    agent = Agent(restarts=RestartRules(max_restarts=0))
    agent.on(LighthouseSent(0.0))
    agent.assign("0")
    first = agent.incarnations["0"]
    assert ended(agent.exits("0", -9)) is None
    assert ended(agent.on(IncidentRecorded((first,)))) is not None
    silent = Agent(restarts=RestartRules(max_restarts=0))
    silent.on(LighthouseSent(0.0))
    silent.assign("0")
    assert ended(silent.exits("0", -9)) is None
    end = ended(silent.wait(RECORDS_WAIT_S))
    assert end is not None
    assert (end.exit_code, end.kind) == (137, "script")


def test_heartbeats_do_not_prolong_the_wait_for_a_record() -> None:
    agent = Agent(restarts=RestartRules(max_restarts=0))
    agent.on(LighthouseSent(0.0))
    agent.assign("0")
    assert ended(agent.exits("0", -9)) is None
    agent.now += RECORDS_WAIT_S / 2
    assert ended(agent.on(LighthouseSent(agent.now))) is None
    agent.now += RECORDS_WAIT_S / 2
    assert ended(agent.on(LighthouseSent(agent.now))) is not None


def test_a_second_request_to_stop_waits_for_no_record() -> None:
    agent = Agent(restarts=RestartRules(max_restarts=0))
    agent.on(LighthouseSent(0.0))
    agent.assign("0")
    assert ended(agent.exits("0", -9)) is None
    assert ended(agent.on(StopAsked())) is not None


def test_a_node_that_is_not_well_restarts_nothing() -> None:
    agent = Agent(restarts=RestartRules(max_restarts=2), health_check="check")
    agent.assign("0")
    first = agent.incarnations["0"]
    out = agent.exits("0", -9)
    assert CheckHealth("0", first) in out
    assert starts(out) == []
    out = agent.on(HealthChecked(first, "--health-check ended with exit code 1: no GPU"))
    assert "no GPU" in said(out)
    assert evidence(out)[0].workers[-1].kind == "unhealthy node"
    assert CheckHealth("0", first) in agent.wait(1.0)
    assert starts(agent.on(HealthChecked(first, ""))) == [("0", 1)]
    again = agent.incarnations["0"]
    agent.exits("0", -9)
    assert agent.on(HealthChecked(first, "late")) == []
    assert agent.on(HealthChecked(again, "no GPU")) == []  # it is not asked yet: it waits


def test_a_health_check_without_an_answer_is_one_that_fails() -> None:
    agent = Agent(restarts=RestartRules(max_restarts=1), health_check="check")
    agent.assign("0")
    agent.exits("0", -9)
    out = agent.wait(100.0)
    assert "gave no answer" in said(out)
    assert ended(out) is not None


def test_a_script_that_has_raised_is_lost_before_its_interpreter_has_ended() -> None:
    agent = Agent()
    agent.assign("0")
    first = agent.incarnations["0"]
    key = WorkerKey("0", first, 0)
    assert told(agent.on(FailureReported(key, RAISED))) == [
        ReplicaLost("0", first, f"failed: {RAISED.error_type}: {RAISED.message}", kind="exception")
    ]
    assert agent.on(FailureReported(key, RAISED)) == []
    out = agent.exits("0", 1)
    assert told(out) == [ReplicaStarted("0", agent.incarnations["0"], 1)]
    assert "(pid 1000) failed: " in said(out)


def test_a_failure_is_told_also_if_the_slot_is_taken_away_before_the_interpreter_has_ended() -> (
    None
):
    """Chaos, seed 1164: a restarted lighthouse gave the slot away for a moment."""
    agent = Agent()
    agent.assign("0")
    agent.on(FailureReported(WorkerKey("0", agent.incarnations["0"], 0), RAISED))
    out = agent.assign()
    assert signals(out) == [("0", SIGKILL)]
    agent.assign("0")
    out = agent.exits("0", -9)
    assert f"failed: {RAISED.error_type}" in said(out)
    assert starts(out) == [("0", 1)]
    assert agent.core.summary()[0].restarts == 1


def test_a_script_that_has_raised_has_failed_whatever_its_exit_code() -> None:
    agent = Agent()
    agent.assign("0")
    agent.on(FailureReported(WorkerKey("0", agent.incarnations["0"], 0), RAISED))
    assert starts(agent.exits("0", 0)) == [("0", 1)]
    assert agent.core.summary()[0].status == 1


def test_what_a_worker_has_recorded_counts_after_its_own_report() -> None:
    recorded = FailureReport("KeyError", "inner", "")
    agent = Agent()
    agent.assign("0", "1")
    out = agent.on(WorkerExited(agent.incarnations["0"], 0, 1000, 5, recorded=recorded))
    assert "replica 0 (pid 1000) failed: KeyError: inner" in said(out)
    agent.on(FailureReported(WorkerKey("1", agent.incarnations["1"], 0), RAISED))
    out = agent.on(WorkerExited(agent.incarnations["1"], 0, 1000, 1, recorded=recorded))
    assert "failed: ValueError: no" in said(out)
    assert "KeyError" not in said(out)


def test_a_script_that_has_raised_and_hangs_at_exit_is_killed_after_the_grace() -> None:
    agent = Agent(workers_per_replica=2)
    agent.assign("0")
    key = WorkerKey("0", agent.incarnations["0"], 1)
    out = agent.on(FailureReported(key, RAISED))
    assert isinstance(told(out)[0], ReplicaLost)
    agent.on(FailureReported(WorkerKey("0", agent.incarnations["0"], 0), RAISED))
    assert agent.core.next_deadline() == 10.0
    out = agent.wait(10.0)
    assert told(out) == []
    assert signals(out) == [("0", SIGKILL)]
    agent.exits("0", -9, rank=1)
    assert starts(agent.exits("0", -9, rank=0)) == [("0", 1)]


def test_the_same_before_its_first_step_also_while_the_agent_is_drained() -> None:
    """A worker of several raised at the start: its peers are judged with it, but it has a limit."""
    agent = Agent(workers_per_replica=2)
    agent.assign("0", is_at_start=True)
    key = WorkerKey("0", agent.incarnations["0"], 1)
    assert told(agent.on(FailureReported(key, RAISED))) == []
    agent.on(DrainAsked("SIGTERM", 75))
    assert signals(agent.wait(10.0)) == [("0", SIGKILL)]


# ---------------------------------------------------------------- ends


def test_a_drain_lets_managers_leave_and_ends_with_its_own_code() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0", "1")
    agent.failure_reports("0")
    out = agent.on(DrainAsked("SIGTERM", 75))
    lives = tuple(RunningReplica(x, agent.incarnations[x]) for x in ("0", "1"))
    assert told(out) == [AgentLeaving("SIGTERM", lives)]
    assert asked(out) == ["0", "1"]
    assert leaving(out) == []  # by an agreement, or where it stands at half of the grace
    agent.says("0", Leaving(LeaveReason.DRAINED))
    agent.exits("1", 143)
    out = agent.exits("0", 75)
    assert ended(out) == EndAgent(75, "SIGTERM")
    assert [slot.outcome for slot in agent.core.summary()] == [Outcome.DRAINED] * 2
    assert [loss.cause for loss in agent.core.dead()] == ["drained", "drained"]


def test_who_does_not_leave_is_pressed_and_then_killed_and_called_so() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0", "1")
    agent.failure_reports("0")
    agent.failure_reports("1")
    agent.on(DrainAsked("SIGTERM", 75))
    agent.says("1", Leaving(LeaveReason.DRAINED))
    assert agent.core.next_deadline() == 5.0
    out = agent.wait(5.0)
    assert asked(out) == ["0", "1"]
    assert leaving(out) == [("0", True)]  # the other has left, and saves
    assert signals(out) == []
    for at in (6.25, 7.5, 8.75):  # the requests may have reached its script as one
        assert agent.core.next_deadline() == at
        out = agent.wait(1.25)
        assert asked(out) == ["0"] and signals(out) == []
    out = agent.wait(1.25)
    assert signals(out) == [("0", SIGKILL), ("1", SIGKILL)]
    cause = "did not end within --grace 10 s and was killed; its checkpoint may be unfinished"
    assert f"replica 0 {cause}." in said(out) and f"replica 1 {cause}." in said(out)
    assert [(lost.replica_id, lost.killed, lost.cause) for lost in told(out)] == [
        ("0", True, cause),
        ("1", True, cause),
    ]
    agent.exits("1", -9)
    out = agent.wait(5.0)
    assert "stuck in the kernel" in said(out)
    assert ended(out) == EndAgent(75, "SIGTERM")
    assert [(x.outcome, x.killed) for x in agent.core.summary()] == [(Outcome.KILLED, cause)] * 2


def test_a_drain_without_a_lighthouse_leaves_at_the_next_boundary() -> None:
    agent = Agent(alone=False)
    agent.assign("0", "1")
    agent.failure_reports("0")
    out = agent.on(DrainAsked("SIGTERM", 75))
    assert asked(out) == ["0", "1"]
    assert leaving(out) == [("0", True)]
    assert signals(out) == []


def test_a_drain_whose_lighthouse_dies_meanwhile_goes_on_without_it() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.failure_reports("0")
    agent.on(DrainAsked("SIGTERM", 75))
    assert leaving(agent.on(LighthouseGone("cut"))) == [("0", True)]
    assert leaving(agent.on(LighthouseGone("cut"))) == []


def test_a_job_of_one_node_leaves_at_once_where_no_quorum_stands() -> None:
    agent = Agent()
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.failure_reports("0")
    assert leaving(agent.on(DrainAsked("SIGTERM", 75))) == [("0", False)]


def test_a_script_that_fails_while_it_leaves_has_not_drained() -> None:
    agent = Agent()
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.failure_reports("0")
    agent.on(DrainAsked("SIGTERM", 75))
    agent.says("0", Leaving(LeaveReason.DRAINED))
    agent.on(FailureReported(WorkerKey("0", agent.incarnations["0"], 0), RAISED))
    out = agent.exits("0", 1)
    assert "replica 0 failed: ValueError: no. That was while it left" in said(out)
    assert ended(out) == EndAgent(75, "SIGTERM")
    (slot,) = agent.core.summary()
    assert (slot.outcome, slot.status) == (Outcome.FAILED, 1)


def test_slots_are_not_taken_from_an_agent_that_leaves() -> None:
    """The slots are another agent's already; their scripts save, and are in this report."""
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.failure_reports("0")
    agent.on(DrainAsked("SIGTERM", 75))
    agent.says("0", Leaving(LeaveReason.DRAINED))
    assert signals(agent.assign()) == []
    agent.exits("0", 75)
    assert [slot.outcome for slot in agent.core.summary()] == [Outcome.DRAINED]


def test_a_replica_that_moves_has_its_grace_too() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0", "1")
    agent.failure_reports("1")
    first = agent.incarnations["1"]
    agent.says("1", Leaving(LeaveReason.DRAINED))
    out = agent.assign("0")
    assert (signals(out), asked(out)) == ([], ["1"])
    out = agent.exits("1", 75)
    assert told(out) == [ReplicaLost("1", first, "its slot was given to another agent")]
    assert [slot.replica_id for slot in agent.core.summary()] == ["0"]


def test_a_replica_that_has_left_is_started_again_if_its_slot_stays_here() -> None:
    agent = Agent(alone=False)
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    agent.failure_reports("0")
    first = agent.incarnations["0"]
    agent.says("0", Leaving(LeaveReason.DRAINED))
    out = agent.exits("0", 75)
    assert told(out) == [ReplicaLost("0", first, "it has left")]
    assert starts(agent.wait(1.0)) == [("0", 1)]
    assert agent.core.summary()[0].failures == ()


def test_a_group_that_waits_for_its_restart_does_not_come_back_in_a_drain() -> None:
    agent = Agent()
    agent.assign("0")
    agent.exits("0", -9)
    agent.exits("0", -9)
    assert ended(agent.on(DrainAsked("SIGINT", 130))) == EndAgent(130, "SIGINT")
    assert agent.core.summary()[0].outcome is Outcome.FAILED


def test_a_second_ctrl_c_kills_and_keeps_the_first_ones_code() -> None:
    agent = Agent()
    agent.assign("0")
    agent.on(DrainAsked("SIGINT", 130))
    assert agent.core.is_ending
    assert signals(agent.on(StopAsked())) == [("0", SIGKILL)]
    assert ended(agent.exits("0", -9)) == EndAgent(130, "SIGINT")
    assert agent.core.summary()[0].outcome is Outcome.KILLED


def test_a_stop_alone_has_a_code_of_its_own() -> None:
    agent = Agent()
    agent.assign("0")
    agent.on(StopAsked())
    assert ended(agent.exits("0", -9)) == EndAgent(143, "stopped")


def test_the_lighthouse_ends_the_job() -> None:
    agent = Agent()
    agent.assign("0")
    assert asked(agent.on(JobEnded(0, "all members have finished"))) == ["0"]
    assert ended(agent.exits("0", -15)) == EndAgent(0, "all members have finished")


def test_a_failure_while_the_job_ends_is_not_restarted() -> None:
    agent = Agent(workers_per_replica=2)
    agent.assign("0")
    agent.exits("0", -11, rank=0)
    agent.on(JobEnded(9, "elsewhere"))
    assert ended(agent.exits("0", -9, rank=1)) == EndAgent(9, "elsewhere")
    assert agent.core.summary()[0].outcome is Outcome.FAILED


def test_slots_that_come_when_the_job_ends_are_not_started() -> None:
    agent = Agent()
    agent.assign("0")
    agent.on(JobEnded(0, "done"))
    assert starts(agent.assign("0", "1")) == []


def test_without_a_spawner_everything_ends() -> None:
    agent = Agent()
    agent.assign("0", "1")
    agent.exits("1", 0)
    out = agent.on(SpawnerLost("the spawner has ended", 70))
    assert told(out)[0] == ReplicaLost("0", agent.incarnations["0"], "the spawner has ended")
    assert ended(out) == EndAgent(70, "the spawner has ended")


# ---------------------------------------------------------------- slots that move


def test_a_slot_that_is_taken_away_is_killed_and_forgotten() -> None:
    agent = Agent()
    agent.assign("0", "1")
    agent.exits("1", 0)
    out = agent.assign()
    assert signals(out) == [("0", SIGKILL)]
    out = agent.exits("0", -9)
    assert told(out) == [
        ReplicaLost("0", agent.incarnations["0"], "its slot was given to another agent")
    ]
    assert agent.core.summary() == ()
    assert starts(agent.assign("0")) == [("0", 0)]


def test_a_slot_that_is_given_back_while_it_is_killed_starts_again() -> None:
    agent = Agent()
    agent.assign("0")
    agent.assign()
    agent.assign("0")
    assert starts(agent.exits("0", -9)) == [("0", 1)]


def test_a_stuck_worker_holds_its_slot_while_the_job_runs() -> None:
    agent = Agent(workers_per_replica=2)
    agent.assign("0")
    agent.exits("0", -9, rank=0)
    out = agent.wait(5.0)
    assert "worker 1 was killed and does not end" in said(out)
    assert ended(out) is None
    assert starts(agent.exits("0", -9, rank=1)) == [("0", 1)]


# ---------------------------------------------------------------- the lighthouse's silence


def test_no_lighthouse_in_all_the_join_timeout_ends_with_71() -> None:
    agent = Agent()
    assert agent.core.next_deadline() == 30.0
    agent.on(LighthouseGone("refused"))
    assert ended(agent.wait(29.9)) is None
    assert ended(agent.wait(0.1)) == EndAgent(71, "no lighthouse has answered")


def test_imports_that_take_long_are_no_silence_of_the_lighthouse() -> None:
    agent = Agent(is_ready=False)
    assert agent.core.next_deadline() == 20.0
    assert "still being imported after 20 s" in said(agent.wait(20.0))
    assert agent.wait(180.0) == []
    assert agent.core.gives_up_at is None
    agent.on(SpawnerReady())
    assert agent.core.gives_up_at == 230.0
    assert ended(agent.wait(29.9)) is None
    assert ended(agent.wait(0.1)) == EndAgent(71, "no lighthouse has answered")


def test_imports_that_never_end_end_the_job() -> None:
    agent = Agent(is_ready=False)
    agent.wait(20.0)
    assert agent.core.next_deadline() == 900.0
    assert ended(agent.wait(879.9)) is None
    end = ended(agent.wait(0.1))
    assert end is not None and end.exit_code == 2 and "imported within 900 s" in end.reason


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (DrainAsked("SIGTERM", 75), 75),
        (StopAsked(), 143),
        (JobEnded(76, "the token was refused"), 76),
        (SpawnerLost("the spawner has ended", 70), 70),
    ],
)
def test_what_ends_a_job_ends_it_while_it_imports_too(event: Event, code: int) -> None:
    agent = Agent(is_ready=False)
    end = ended([*agent.on(event), *agent.on(SpawnerReady()), *agent.wait(1000.0)])
    assert end is not None and end.exit_code == code
    assert agent.core.next_deadline() is None


def test_a_long_join_timeout_is_one_for_imports_too() -> None:
    agent = Agent(is_ready=False, join_timeout_s=1800.0)
    agent.wait(20.0)
    assert agent.core.next_deadline() == 1800.0


def test_silence_isolates_the_workers_until_a_word_comes() -> None:
    agent = Agent()
    agent.on(LighthouseSent(agent.now))
    agent.assign("0")
    out = agent.on(LighthouseGone("cut"))
    assert "training goes on" in said(out)
    out = agent.wait(60.0)
    assert SendToWorkers(Lease(60.0)) in out, "the same again, now that it is over"
    assert agent.core.isolated
    assert agent.wait(1.0) == []
    out = agent.on(LighthouseSent(agent.now))
    assert out == [
        ShowNotice("lighthouse", (), "The lighthouse is back."),
        SendToWorkers(Lease(121.0)),
    ]
    assert not agent.core.isolated


def questions(agent: Agent, cpu_share: float = 0.0, until_s: float = 200.0) -> list[float]:
    """When the agent asks slot 0's worker, which uses this share of a core and answers nothing."""
    key = WorkerKey("0", agent.incarnations["0"], 0)
    asked = []
    while agent.now < until_s and (at := agent.core.next_deadline()) is not None:
        if AskWorker(key) in agent.wait(at - agent.now):
            asked.append(agent.now)
            out = agent.on(WorkerUsed(key, 1234, cpu_share * agent.now))
            if signals(out):
                assert signals(out) == [("0", SIGKILL)]
                assert [type(message) for message in told(out)] == [ReplicaLost]
                assert "replica 0 (pid 1234) hangs: it has answered nothing for 60 s" in said(out)
                assert starts(agent.exits("0", -9)) == [("0", 1)]
                break
    return asked


def heard_agent(**changes: Any) -> Agent:
    agent = Agent(standbys=StandbyRules(0), **changes)
    agent.assign("0")
    agent.on(LighthouseSent(1e9))  # for this time it is in contact
    agent.failure_reports("0")
    return agent


def test_a_worker_that_answers_nothing_and_does_nothing_is_replaced() -> None:
    assert questions(heard_agent()) == [30.0, 45.0, 60.0]


def test_a_worker_that_computes_is_left_alone_though_it_does_not_answer() -> None:
    agent = heard_agent()
    assert len(questions(agent, cpu_share=1.0)) > 10
    assert agent.core.running()


def test_who_has_never_spoken_has_left_or_hung_up_is_not_asked() -> None:
    silent = Agent(standbys=StandbyRules(0))
    silent.assign("0")
    silent.on(LighthouseSent(1e9))
    left, gone, off = heard_agent(), heard_agent(), heard_agent(hang_timeout_s=0.0)
    left.says("0", Leaving(LeaveReason.FINISHED))
    left.says("0", Progress(3, 3, Activity.LEFT))
    gone.on(WorkerDisconnected(WorkerKey("0", gone.incarnations["0"], 0)))
    for agent in (silent, left, gone, off):
        assert questions(agent) == []
        assert agent.core.running()


def test_a_late_word_on_a_worker_that_runs_no_more_is_nothing() -> None:
    agent = heard_agent()
    key = WorkerKey("0", agent.incarnations["0"], 0)
    agent.exits("0", -9)
    assert agent.on(WorkerUsed(key, 1234, 1.0)) == []
    assert agent.on(WorkerDisconnected(key)) == []


def test_time_is_lost_only_after_a_loss() -> None:
    agent = Agent()
    agent.assign("0")
    agent.now += 5.0
    agent.says("0", InForce(NO_ATTEMPT, 0))
    assert agent.core.summary()[0].lost_s == 0.0


def test_check_tells_the_story_of_what_is_wrong() -> None:
    agent = Agent()
    agent.assign("0")
    slot = agent.core._slots.get("0")
    assert slot is not None
    slot.alive.clear()
    with pytest.raises(AssertionError, match="started as"):
        agent.core.check()


# ---------------------------------------------------------------- any order of events

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["assign", "exit", "crash", "raise", "restart", "wait", "drain", "stop", "end",
             "spoke", "gone", "spawner", "progress"]
        ),
        st.integers(0, 3),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=examples(150))
@given(EVENTS)
def test_in_any_order_the_invariants_hold_and_an_end_comes(events: list[tuple[str, int]]) -> None:
    agent = Agent(workers_per_replica=2, restarts=RestartRules(max_restarts=2))
    agent.assign("0", "1")
    ends: list[EndAgent] = []
    for name, number in events:
        ends += [i for i in _one(agent, name, number) if isinstance(i, EndAgent)]
    for _ in range(20):
        ends += [i for i in agent.on(StopAsked()) if isinstance(i, EndAgent)]
        for slot in agent.incarnations:
            for rank in (0, 1):
                ends += [i for i in agent.exits(slot, -9, rank) if isinstance(i, EndAgent)]
    assert len(ends) == 1


def _one(agent: Agent, name: str, number: int) -> list[Instruction]:
    slot, rank = str(number % 2), number // 2
    key = WorkerKey(slot, agent.incarnations.get(slot, ""), rank)
    events: dict[str, Event] = {
        "assign": SlotsAssigned((("0",), ("1",), ("0", "1"), ())[number]),
        "exit": WorkerExited(key.incarnation, rank, 1, 0),
        "crash": WorkerExited(key.incarnation, rank, 1, -9),
        "raise": FailureReported(key, RAISED),
        "restart": RestartAsked(slot, key.incarnation, "silent"),
        "wait": TimerFired(),
        "drain": DrainAsked("SIGTERM", 75),
        "stop": StopAsked(),
        "end": JobEnded(0, "done"),
        "spoke": LighthouseSent(agent.now - number),
        "gone": LighthouseGone("cut"),
        "spawner": SpawnerLost("gone", 70),
        "progress": WorkerSent(key, Progress(number, number, Activity.STEP)),
    }
    if name == "wait":
        agent.now += (0.1, 1.0, 10.0, 100.0)[number]
    return agent.on(events[name])


def test_every_answer_tells_the_workers_how_long_they_may_go_on() -> None:
    """The limit counts from the request, because a stopped agent cannot warn its workers (Q3)."""
    agent = Agent()
    assert agent.core.lease is None
    agent.now = 2.0
    assert agent.on(LighthouseSent()) == []
    assert agent.on(LighthouseSent(1.5)) == [SendToWorkers(Lease(61.5))]
    assert agent.core.lease == Lease(61.5)


# ---------------------------------------------------------------- standbys


def standbys(out: list[Instruction]) -> list[str]:
    return [i.name for i in out if isinstance(i, StartStandby)]


def parts(out: list[Instruction]) -> list[tuple[str, ...]]:
    return [i.standbys for i in out if isinstance(i, StartReplica)]


def with_standbys(**changes: Any) -> Agent:
    """Two slots run, and two standbys wait."""
    agent = Agent(standbys=StandbyRules(wanted=2, deaths_max=2), **changes)
    agent.on(SpawnerWarmed())
    assert parts(agent.assign("0", "1")) == [(), ()]
    assert agent.core.next_deadline() == 0.5
    assert standbys(agent.wait(0.5)) == ["standby-1", "standby-2"]
    return agent


def test_without_slots_no_standby_is_kept() -> None:
    agent = Agent(standbys=StandbyRules(wanted=2))
    assert standbys(agent.on(SpawnerWarmed())) == []
    assert agent.core.next_deadline() == 30.0
    assert standbys(agent.wait(5.0)) == []


def test_standbys_are_started_when_the_spawner_is_warm() -> None:
    agent = Agent(standbys=StandbyRules(wanted=1))
    agent.assign("0")
    assert standbys(agent.wait(5.0)) == []
    assert standbys(agent.on(SpawnerWarmed())) == ["standby-1"]


def test_a_standby_takes_the_place_of_a_dead_worker_and_is_replaced() -> None:
    agent = with_standbys()
    out = agent.exits("0", -9)
    assert parts(out) == [("standby-1",)]
    assert standbys(out) == []
    assert agent.core.standbys_used == 1
    assert standbys(agent.wait(0.5)) == ["standby-3"]


def test_a_group_takes_as_many_as_there_are() -> None:
    agent = with_standbys(workers_per_replica=3)
    for rank in range(3):
        out = agent.exits("0", -9, rank)
    assert parts(out) == [("standby-1", "standby-2")]


def test_standbys_that_only_die_are_given_up_and_the_job_goes_on() -> None:
    agent = with_standbys()
    assert said(agent.on(StandbyExited("standby-1", -9))) == ""
    assert standbys(agent.wait(0.5)) == ["standby-3"]
    out = agent.on(StandbyExited("standby-2", 1))
    assert "A standby has ended 2 times before it was used, at last with status 1" in said(out)
    assert standbys(agent.wait(9.0)) == []
    assert parts(agent.exits("0", -9)) == [("standby-3",)]


def test_a_job_that_ends_starts_no_standby() -> None:
    agent = with_standbys()
    agent.exits("0", -9)
    agent.on(DrainAsked("SIGTERM", 75))
    assert standbys(agent.wait(0.5)) == []


def test_an_event_without_a_case_is_refused() -> None:
    with pytest.raises(Bug, match="no case"):
        Agent().core.handle("no event", 0.0)  # type: ignore[arg-type]
