"""The account: what time is booked as, what failures cost, and what outlives the lighthouse."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.core import failure_kinds as kinds
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import StateId
from ftrun.core.lighthouse.events import (
    JournalState,
    LighthouseSettings,
    OperatorAsked,
    Request,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.quorum import Endpoint
from tests.unit.core.books.booked_job import BookedJob


def test_a_job_from_its_first_agent_to_its_first_steps() -> None:
    job = BookedJob()
    job.wait(1.0)
    job.start("0")
    job.start("1")
    goodputs = [job.status()["account"]["goodput"]]
    job.wait(2.0)
    job.report("0")
    job.wait(3.0)
    job.report("1")
    goodputs.append(job.status()["account"]["goodput"])
    job.build("0", "1")
    goodputs.append(job.status()["account"]["goodput"])
    job.wait(4.0)
    assert goodputs == [None, None, 0.0]
    assert job.seconds("0") == {"training": 4.0, "starting": 3.0, "no quorum": 3.0}
    assert job.seconds("1") == {"training": 4.0, "starting": 6.0}
    account = job.status()["account"]
    assert account["goodput"] == 0.4
    assert account["lost_s"] == 0.0, "nothing is lost before the first quorum"
    assert job.status()["job"]["uptime_s"] == account["wall_s"] == 10.0
    assert job.replica("0")["use"] == "training" and job.replica("0")["use_s"] == 4.0
    assert job.replica("0")["restarts_left"] == 3
    assert job.replica("0")["host"] == "host-0"


def test_the_job_began_with_its_first_agent_and_not_with_its_message() -> None:
    job = BookedJob(age_s=3.0)
    job.form()
    job.wait(1.0)
    assert job.seconds("0") == {"training": 1.0, "starting": 3.0}


def test_a_death_costs_the_dead_its_absence_and_the_survivor_the_repair() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.progress("0", 100)
    job.progress("1", 100)
    job.lose("1")
    job.wait(0.5)
    job.report("0", 100)
    job.wait(0.25)
    job.build("0")
    job.wait(2.0)
    job.start("1", "j1")
    job.wait(3.0)
    assert job.seconds("0") == {"training": 12.0 + 3.0, "repairing": 0.75}
    assert job.seconds("1") == {"training": 10.0, "starting": 3.0, "absent": 2.75}
    (incident,) = job.status()["incidents"]
    assert incident["is_open"]
    assert incident["cost_s"] == 0.75 + 2.75 + 3.0
    assert job.status()["account"]["lost_s"] == incident["cost_s"]
    change = job.status()["history"][-1]
    assert (change["kind"], change["cost_s"]) == ("shrink", 0.75)


def test_an_incident_costs_nothing_more_once_its_replica_is_back() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.progress("0", 100)
    job.lose("1")
    job.wait(1.0)
    job.report("0", 100)
    job.build("0")
    job.start("1", "j1")
    job.wait(1.0)
    job.report("1")
    switch(job, at=200)
    job.wait(0.5)
    attempt = quorum(job).attempt
    job.say("1", m.Healed(attempt, 200, ("0",), 1, 0.5))
    job.wait(10.0)
    job.progress("0", 300)
    (incident,) = job.status()["incidents"]
    assert not incident["is_open"]
    assert incident["cost_s"] == 1.0 + 1.0 + 1.0 + 0.5  # repairing, absent, starting, healing
    assert job.seconds("1")["healing"] == 0.5
    assert job.seconds("1")["training"] == 20.0
    assert job.status()["account"]["lost_s"] == incident["cost_s"]


def quorum(job: BookedJob) -> Any:
    assert job.core.state.quorum is not None
    return job.core.state.quorum


def switch(job: BookedJob, at: int) -> None:
    """Replica 1 joins replica 0 at a step."""
    job.wait(0.0)
    plan = job.core.membership.switching.plan
    assert plan is not None
    for name in ("0", "1"):
        job.say(name, m.Built(plan.attempt))
    for name in ("0", "1"):
        job.say(name, m.Promised(plan.attempt, plan.step))
    assert job.core.state.phase is Phase.SWITCH
    assert job.replica("1")["use"] == "no quorum"
    for name in ("0", "1"):
        job.say(name, m.InForce(plan.attempt, at))
    assert job.replica("1")["use"] == "healing"


def test_a_wait_is_booked_from_when_it_began() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.progress("0", 5, Activity.WAITING, since_s=3.0)
    job.wait(1.0)
    assert job.seconds("0") == {"training": 7.0, "waiting": 4.0}
    job.progress("0", 5, Activity.STEP, since_s=9.0)  # of the same step: it tells no end
    assert job.seconds("0") == {"training": 7.0, "waiting": 4.0}
    job.wait(5.0)
    job.progress("0", 6, Activity.OUTSIDE, since_s=2.0)
    job.wait(8.0)
    job.progress("0", 6, Activity.STEP, since_s=1.0)  # that began after the evaluation
    assert job.seconds("0") == {"training": 7.0 + 3.0 + 1.0, "outside": 9.0, "waiting": 4.0}


def test_a_quorum_that_comes_to_stand_overtakes_what_a_worker_last_said() -> None:
    job = BookedJob()
    job.form()
    job.wait(1.0)
    job.lose("1")
    job.wait(1.0)
    job.progress("0", 3, Activity.QUORUM, since_s=0.9)
    job.report("0", 3)
    job.build("0")
    job.wait(2.0)
    assert job.seconds("0") == {"training": 3.0, "repairing": 1.0}


def test_steps_that_were_committed_since_the_last_moment_without_a_quorum_were_training() -> None:
    job = BookedJob()
    job.form()
    job.wait(0.01)
    job.progress("0", 0, Activity.QUORUM, since_s=0.005)  # it was on its way when the quorum stood
    job.progress("1", 0, Activity.HEALING, since_s=0.005)
    job.wait(1.0)
    steps = {"steps": 9, "usual_s": 0.1}
    job.progress("0", 9, Activity.STEP, since_s=0.05, **steps)
    job.progress("1", 9, Activity.OUTSIDE, since_s=0.05, **steps)
    assert job.seconds("0") == pytest.approx({"training": 0.005 + 0.95, "no quorum": 0.055})
    assert job.seconds("1") == pytest.approx({"training": 0.005, "outside": 0.95, "healing": 0.055})
    job.progress("0", 9, Activity.QUORUM, since_s=0.0, **steps)
    job.wait(1.0)
    job.progress("0", 9, Activity.STEP, since_s=0.25, **steps)  # the first one since: not before
    assert job.seconds("0")["no quorum"] == pytest.approx(0.055 + 0.75)
    job.progress("0", 9, Activity.QUORUM, since_s=0.0, **steps)
    job.wait(1.0)
    job.progress("0", 29, Activity.STEP, since_s=0.05, steps=29, usual_s=0.1)  # too long to be so
    assert job.seconds("0")["no quorum"] == pytest.approx(0.055 + 0.75)


def test_a_loop_that_is_given_up_stood_still_since_the_others_waited() -> None:
    job = BookedJob(3)
    job.form()
    job.wait(10.0)
    for name in ("0", "1"):
        job.progress(name, 5, Activity.WAITING, since_s=2.0)
    job.wait(4.0)
    job.lose("2", kinds.HANG)
    assert job.seconds("2") == {"training": 8.0, "stopped": 6.0}
    assert job.seconds("0") == {"training": 8.0, "waiting": 6.0}
    (incident,) = job.status()["incidents"]
    assert incident["cost_s"] == 3 * 6.0


def test_a_second_failure_takes_the_rest_of_the_first_ones_cost() -> None:
    job = BookedJob(3)
    job.form()
    job.wait(10.0)
    job.progress("0", 5)
    job.lose("2")
    job.wait(1.0)
    job.lose("1")
    job.wait(2.0)
    job.report("0", 5)
    job.build("0")
    job.start("2", "j2")
    job.wait(4.0)
    job.lose("2", kinds.EXCEPTION)
    job.wait(8.0)
    costs = [incident["cost_s"] for incident in job.status()["incidents"]]
    # The first: replica 2 until it failed again, 0 until a quorum stood, 1 until it failed itself.
    assert costs == [(3.0 + 4.0) + 3.0 + 1.0, 2.0 + 4.0 + 8.0, 8.0]
    assert job.status()["account"]["lost_s"] == sum(costs)


def test_a_process_that_stood_still_is_booked_so() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.progress("0", 5, Activity.STOPPED, since_s=4.0)
    job.wait(1.0)
    job.progress("0", 6)
    assert job.seconds("0") == {"training": 7.0, "stopped": 4.0}


def test_a_step_that_is_computed_again_was_no_training() -> None:
    job = BookedJob(workers=2)
    job.form()
    job.wait(10.0)
    job.progress("0", 7)  # step 7 begins
    job.progress("1", 7)
    job.wait(3.0)
    job.lose("1")
    job.wait(0.5)
    job.report("0", 7, repairable=False)
    assert quorum(job).recomputes == ("0",)
    job.build("0")
    assert job.seconds("0") == {"training": 10.0, "repairing": 3.5}
    (incident,) = job.status()["incidents"]
    assert incident["cost_s"] == 3.5 + 0.5


def test_after_a_rollback_the_steps_since_then_were_no_training() -> None:
    job = BookedJob()
    job.form()
    for step in range(1, 11):
        job.wait(2.0)
        job.progress("0", step)
        job.progress("1", step)
    assert job.status()["account"]["steps"] == 10
    job.lose("0")
    job.report("1", 7)  # it is back with an older state
    assert quorum(job).step == 7
    job.build("1")
    seconds = job.seconds("1")
    assert seconds == {"training": 16.0, "repairing": 4.0}
    job.wait(2.0)
    job.progress("1", 9)
    assert job.status()["account"]["steps"] == 10, "a step counts once"
    job.wait(2.0)
    job.progress("1", 12)
    assert job.status()["account"]["steps"] == 12


def test_who_was_asked_to_leave_and_who_has_finished_owes_nothing() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.feed(OperatorAsked(1, Request("drain", "1")))
    job.say("1", m.Leaving(m.LeaveReason.DRAINED))
    job.report("0", 9)
    job.build("0")
    job.wait(10.0)
    assert job.seconds("1") == {"training": 10.0, "drained": 10.0}
    job.say("0", m.Leaving(m.LeaveReason.FINISHED))
    job.wait(5.0)
    assert job.seconds("0")["finished"] == 5.0
    assert job.status()["account"]["goodput"] == 1.0
    assert job.status()["account"]["lost_s"] == 0.0


def test_the_books_are_closed_at_the_end_and_the_agents_are_told() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.progress("0", 50)
    job.lose("1")
    job.wait(1.0)
    job.send("0", m.JobFailed(1, "budget spent"))
    job.wait(100.0)
    account = job.status()["account"]
    assert account["wall_s"] == 11.0
    (end,) = [x for x in job.sent if isinstance(x, m.EndJob)][:1]
    told = end.account
    assert told is not None
    assert (told.wall_s, told.lost_s, told.steps) == (11.0, 2.0, 50)
    assert told.goodput == account["goodput"] == pytest.approx(20 / 22, abs=1e-6)
    assert {x.replica_id: x.lost_s for x in told.slots} == {"0": 1.0, "1": 1.0}
    assert job.saved is not None and job.saved.document["has_ended"]


def test_steps_that_only_a_join_has_made_are_none_of_the_scripts() -> None:
    """Seen: 26 steps of a job of 25, because a replica had joined between two steps."""
    job = BookedJob()
    job.form()
    for step, empty in ((10, 0), (30, 1)):
        job.wait(1.0)
        for name in ("0", "1"):
            job.progress(name, step, empty=empty)
    assert job.core.books.account.of_job(job.now, 0).steps == 29
    job.saved = job.core.books.account.record(job.now)
    former = quorum(job)
    job.restart_lighthouse(0.0)
    for name in ("0", "1"):
        job.attach(name, m.RunningReplica(name, f"i{name}"))
        endpoint = former.members[int(name)].endpoints[0]
        job.say(name, m.Report(StateId(40, "x"), endpoint, in_force=former))
    job.progress("0", 40, empty=4)
    assert job.core.books.account.of_job(job.now, 0).steps == 39


def test_a_job_that_resumes_does_not_count_those_before() -> None:
    job = BookedJob()
    for name in ("0", "1"):
        job.start(name)
    for name in ("0", "1"):
        job.report(name, 10)
    job.build("0", "1")
    for step, empty in ((20, 3), (30, 4)):
        job.wait(1.0)
        job.progress("0", step, empty=empty)
    assert job.core.books.account.of_job(job.now, 0).steps == 19


def test_the_rate_is_of_the_last_half_minute_and_of_the_run() -> None:
    job = BookedJob()
    job.form()
    assert job.status()["rate"] == {"now": None, "run": None}
    for number in range(1, 61):
        job.wait(1.0)
        job.progress("0", number if number <= 20 else 20 + 10 * (number - 20))
    rate = job.status()["rate"]
    assert rate["now"] == 10.0
    assert rate["run"] == 7.0
    assert job.status()["scalars"] == {"loss": 0.5}
    assert sum(job.status()["account"]["bands"]["steps"]) == 420


# ------------------------------------------------------------ a lighthouse that is killed


def trained(gap_s: float, step: int | None, **more: bool) -> BookedJob:
    """Ten seconds of training, then the lighthouse dies; replica 0 comes back at ``step``."""
    job = BookedJob()
    job.form()
    job.wait(10.0)
    for name in ("0", "1"):
        job.progress(name, 10)
    assert job.saved is not None
    former = quorum(job)
    job.restart_lighthouse(gap_s, **more)
    if step is not None:
        job.attach("0", m.RunningReplica("0", "i0"))
        endpoint = former.members[0].endpoints[0]
        job.say("0", m.Report(StateId(step, "x"), endpoint, in_force=former))
    return job


def test_the_gap_without_a_lighthouse_is_booked_when_the_workers_have_reported() -> None:
    job = trained(4.0, 14)
    assert job.seconds("0") == {"training": 14.0}
    assert job.seconds("1") == {"training": 10.0, "absent": 4.0}
    assert job.status()["account"]["wall_s"] == 14.0


def test_what_incidents_have_cost_is_kept() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.lose("1")
    job.wait(1.0)
    job.report("0", 5)
    job.build("0")
    for _ in range(10):
        job.wait(1.0)
        job.progress("0", 6)
    assert job.saved is not None
    cost_s = job.saved.document["costs"]["1"] / 1e6
    assert cost_s > 2.0
    job.restart_lighthouse(4.0)
    assert job.core.books.account.cost_s(1, job.now) == cost_s, "the gap is charged to none"


def test_one_that_made_no_step_went_on_with_what_it_did() -> None:
    assert trained(4.0, 10).seconds("0") == {"training": 14.0}


def test_another_incarnation_was_not_there_in_the_gap() -> None:
    job = trained(4.0, None)
    job.attach("0", m.RunningReplica("0", "other"))
    job.wait(1.0)
    assert job.seconds("0") == {"training": 10.0, "starting": 1.0, "absent": 4.0}


def test_one_that_gave_its_quorum_up_had_none() -> None:
    job = trained(4.0, None)
    job.attach("0", m.RunningReplica("0", "i0"))
    job.say("0", m.Report(StateId(10, "x"), quorum(job).members[0].endpoints[0]))
    assert job.seconds("0") == {"training": 10.0, "no quorum": 4.0}


def test_without_its_record_the_account_begins_anew() -> None:
    job = trained(4.0, 14, loses_account=True)
    job.wait(1.0)
    assert job.seconds("0") == {"training": 1.0}
    assert job.status()["job"]["uptime_s"] == 1.0


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("schema",), "other"),
        (("job_id",), "other"),
        (("wall",), -1),
        (("wall",), 10**30),
        (("wall",), None),
        (("slots", 0, "spent", "training"), 5),
        (("slots", 0, "use"), "sleeping"),
        (("slots", 0, "slot"), "17"),
        (("bands", "training"), [1] * 1000),
        (("width",), 0.5),
        (("slots",), {}),
    ],
)
def test_a_damaged_record_is_refused(where: tuple[Any, ...], value: Any) -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.progress("0", 1)
    assert job.saved is not None
    place: Any = job.saved.document
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    job.restart_lighthouse(4.0)
    job.wait(1.0)
    assert job.seconds("0") == {"absent": 1.0}
    assert bool(job.core.books.account.refusal) == (value != "other"), (
        "another job's is none of ours"
    )


def test_the_record_is_written_seldom_and_never_while_a_quorum_is_broken() -> None:
    job = BookedJob()
    job.form()
    saves: list[Any] = []
    for number in range(100):
        job.wait(0.25)
        job.saved = None
        job.progress("0", number)
        if job.saved is not None:
            saves.append(job.now)
    assert len(saves) == 4  # in 25 s, after the one as the quorum stood
    job.lose("1")
    job.saved = None
    job.wait(10.0)
    job.progress("0", 100)
    assert job.core.state.phase is not Phase.STEADY and job.saved is None


def test_the_first_steps_are_known_to_a_lighthouse_that_is_started_again() -> None:
    job = BookedJob()
    job.form()
    job.restart_lighthouse(0.4)
    for name in "01":
        job.attach(name, m.RunningReplica(name, f"i{name}"))
        job.report(name, 20)
    job.build("0", "1")
    job.progress("0", 30)
    assert job.core.books.account.stood_at is not None
    assert job.core.books.account.steps == 30


def test_what_a_failure_has_cost_is_written_as_soon_as_the_quorum_stands() -> None:
    """A lighthouse that dies then would otherwise book the lost time as training."""
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.progress("0", 10)
    job.wait(1.0)
    job.lose("1")
    job.wait(0.6)
    job.report("0", 10)
    job.build("0")
    assert job.saved is not None
    job.restart_lighthouse(0.0)
    assert job.seconds("0")["repairing"] == pytest.approx(0.6)
    assert job.core.books.account.cost_s(1, job.now) == pytest.approx(1.2)


def test_a_script_without_a_manager_runs_and_owes_nothing() -> None:
    job = BookedJob()
    for name in "01":
        job.start(name)
    job.wait(3.0)
    job.progress("0", 0, Activity.APART)
    job.wait(4.0)
    job.progress("1", 0, Activity.APART, since_s=7.0)  # it has ended well, without a step
    job.send("1", m.ReplicaFinished("1", "i1"))
    assert job.seconds("0") == {"starting": 3.0, "running": 4.0}
    assert job.seconds("1") == {"running": 7.0}
    account = job.status()["account"]
    assert (account["goodput"], account["lost_s"]) == (None, 0.0)


def test_a_script_that_makes_its_manager_late_is_like_any_other_from_then_on() -> None:
    job = BookedJob()
    for name in "01":
        job.start(name)
        job.progress(name, 0, Activity.APART)
    job.wait(2.0)
    job.form()
    job.wait(1.0)
    assert job.seconds("0") == {"running": 2.0, "training": 1.0}


def test_a_script_without_a_manager_ran_on_without_a_lighthouse() -> None:
    job = BookedJob()
    for name in "01":
        job.start(name)
        job.progress(name, 0, Activity.APART)
    job.wait(10.0)
    job.progress("0", 0, Activity.APART)
    job.restart_lighthouse(4.0)
    for name in "01":
        job.attach(name, m.RunningReplica(name, f"i{name}"))
    job.wait(1.0)
    job.progress("0", 0, Activity.APART)
    assert job.seconds("0") == {"running": 15.0}


def test_a_process_that_stood_still_until_after_the_end_changes_no_figure() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    job.send("0", m.JobFailed(1, "broken"))
    job.wait(1.0)
    job.progress("0", 5, Activity.STOPPED, since_s=4.0)
    assert job.seconds("0") == {"training": 10.0}


def test_evidence_of_a_slot_that_the_job_does_not_have_is_booked_nowhere() -> None:
    job = BookedJob()
    job.form()
    job.wait(2.0)
    worker = m.FailedWorker(0, 7, -9, kinds.SIGNAL, "died", 0.0)
    job.send("0", m.FailureEvidence("9", "i9", 0, (worker,), restart_in_s=3.0))
    assert [job.seconds(name) for name in "01"] == [{"training": 2.0}] * 2


def test_before_the_job_is_known_there_is_no_account() -> None:
    core = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    assert core.books.account.record(5.0) is None


def test_a_job_whose_end_was_about_to_be_written_ends_without_figures() -> None:
    """Its scripts have no Manager. The lighthouse was killed after the last one had finished."""
    journal = JournalState(1, spec=m.JobSpec("job", 1, 1, 1, 5.0, 5.0, 20.0), finished=("0",))
    core = Lighthouse(LighthouseSettings(), journal, 0.0)
    core.handle(TimerFired(), 0.0)
    assert core.state.outcome == m.EndJob(0, "all replicas have finished")
    core.check()


def test_one_that_trained_on_and_lost_its_quorum_had_none_since_then() -> None:
    job = BookedJob()
    job.form()
    job.wait(10.0)
    word = m.Progress(10, 10, Activity.STEP, steps=10, usual_s=0.5, longest_s=0.5)
    job.send("0", m.Heartbeat((m.ReplicaProgress("0", "i0", word),)))
    job.restart_lighthouse(4.0)
    job.attach("0", m.RunningReplica("0", "i0"))
    job.say("0", m.Report(StateId(14, "x"), Endpoint("h", "h:1")))
    assert job.seconds("0") == {"training": 10.0 + 4 * 0.5, "no quorum": 2.0}


def test_one_that_was_healing_and_had_said_nothing_trained_on() -> None:
    """It heals in the first step, and the lighthouse dies before its first Progress."""
    job = BookedJob()
    for name in job.incarnations:
        job.start(name)
    job.report("0")
    job.say("1", m.Report(StateId(0, "other"), Endpoint("h", "h:1")))
    job.build("0", "1")
    job.wait(0.1)
    assert job.replica("1")["use"] == "healing"
    former, saved = quorum(job), job.core.books.account.record(job.now)
    assert saved is not None
    job.saved = saved
    job.restart_lighthouse(5.0)
    job.attach("1", m.RunningReplica("1", "i1"))
    job.say("1", m.Report(StateId(41, "x"), Endpoint("h", "h:1"), in_force=former))
    assert job.seconds("1") == {"healing": 0.1, "training": 5.0}
