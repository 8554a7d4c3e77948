"""The last lines of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ftrun.agent.summary import summary_lines
from ftrun.core.agent.events import EndAgent
from ftrun.core.agent.failures import Failure
from ftrun.core.agent.slot_state import Outcome, SlotPhase, SlotSummary
from ftrun.core.messages import FailureReport, JobAccount, SlotAccount

SLOT = SlotSummary("0", SlotPhase.ENDED, Outcome.DRAINED, 12, 1, 0.0, 75, ())
LOGS = Path("logs/job")


def test_one_line_for_each_replica() -> None:
    killed = "did not end within --grace 1 s and was killed; its checkpoint may be unfinished"
    slots = (
        SLOT,
        replace(SLOT, replica_id="1", outcome=Outcome.KILLED, restarts=0, killed=killed, status=-9),
        replace(
            SLOT, replica_id="2", phase=SlotPhase.WAITING, outcome=None, lost_s=2.04, status=None
        ),
    )
    assert summary_lines(slots, EndAgent(75, "SIGTERM"), 3.21, LOGS) == [
        "The job has ended with exit code 75 (SIGTERM) after 3.2 s. Logs: logs/job",
        "  replica 0: drained, 12 steps, 1 restart, last exit status 75",
        f"  replica 1: killed, 12 steps, 0 restarts, last exit status -9: it {killed}",
        "  replica 2: waiting, 12 steps, 1 restart, 2.0 s lost",
    ]
    first = summary_lines(slots, EndAgent(75, "SIGTERM"), 3.21, LOGS, is_part=True)[0]
    assert first == "This node has ended with exit code 75 (SIGTERM) after 3.2 s. Logs: logs/job"
    first = summary_lines((), EndAgent(72, "a crash loop"), 3.21, LOGS, is_part=True)[0]
    assert first.startswith("The job has ended with exit code 72")


def test_the_first_cause_of_a_bad_end_comes_first_with_the_end_of_its_traceback() -> None:
    trace = "\n".join(f"line {number}" for number in range(30))
    failure = Failure("1", 0, 812, 2, 1, FailureReport("ValueError", "no", trace))
    others = Failure("0", 0, 811, 2, -9)
    slots = (
        replace(SLOT, outcome=Outcome.FAILED, failures=(others,)),
        replace(SLOT, replica_id="1", outcome=Outcome.CRASH_LOOP, failures=(others, failure)),
    )
    first, *traced = summary_lines(slots, EndAgent(72, "a crash loop"), 1.0, LOGS)
    assert first == (
        "The cause: replica 1, worker 0 (pid 812) failed: ValueError: no. "
        "Log: logs/job/replica_1/rank_0/2.log"
    )
    assert traced[:12] == [f"  | line {number}" for number in range(18, 30)]
    assert traced[12].startswith("The job has ended with exit code 72 (a crash loop)")


def test_a_good_end_has_no_cause() -> None:
    slots = (replace(SLOT, outcome=Outcome.FINISHED, failures=(Failure("0", 0, 1, 0, -9),)),)
    lines = summary_lines(slots, EndAgent(0, "all replicas have finished"), 1.0, LOGS)
    assert lines[0] == "The job has finished after 1.0 s. Logs: logs/job"
    assert len(lines) == 2


def test_the_lost_time_is_the_lighthouses_if_it_has_told_it() -> None:
    slots = (replace(SLOT, lost_s=7.0), replace(SLOT, replica_id="1", lost_s=2.0))
    told = JobAccount(60.0, 4.24, 0.9567, 1, (SlotAccount("0", 4.2), SlotAccount("9", 3.0)))
    lines = summary_lines(slots, EndAgent(0, ""), 61.0, LOGS, None, told)
    assert lines[1:] == [
        "Summary: 1 step in 60.0 s, goodput 95.7 %, 4.2 replica-seconds lost.",
        "  replica 0: drained, 12 steps, 1 restart, 4.2 s lost, last exit status 75",
        "  replica 1: drained, 12 steps, 1 restart, 2.0 s lost, last exit status 75",
    ]
    lines = summary_lines(slots, EndAgent(0, ""), 61.0, LOGS, None, replace(told, steps_lost=2))
    assert lines[1].startswith("Summary: 1 step in 60.0 s, 2 steps lost, goodput 95.7 %, ")
    nothing = JobAccount(0.5, 0.0, None, 0, (SlotAccount("0", 0.0),))
    lines = summary_lines(slots, EndAgent(0, ""), 1.0, LOGS, None, nothing)
    assert len(lines) == 3 and "7.0 s lost" in lines[1], "of a script without a Manager"


def test_a_degraded_end_says_what_allows_it_unless_the_code_is_the_script_s() -> None:
    slots = (replace(SLOT, outcome=Outcome.FINISHED, left_early=21, status=0),)
    reason = "1 of 2 replicas has finished: replica 0 left"
    first, line = summary_lines(slots, EndAgent(77, reason), 1.0, LOGS)
    assert first.startswith(f"The job has finished degraded, with exit code 77 ({reason}; if fewer")
    assert line.startswith("  replica 0: left early at step 21, 12 steps")
    first, _ = summary_lines(slots, EndAgent(77, "it says so", "script"), 1.0, LOGS)
    assert first.startswith("The job has ended with exit code 77 (it says so)")
