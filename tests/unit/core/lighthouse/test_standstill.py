"""A member that all others wait for is replaced when it stands still, and nobody else ever is."""

from __future__ import annotations

import pytest

from ftrun.core.activity import Activity
from ftrun.core.lighthouse.standstill import FACTOR, FIRST_TIMES, OUTSIDE_TIMES
from tests.transcripts.replay import Replay

LIMIT_S = 60.0


def training(steps: int = 5, step_s: float = 1.0, limit_s: float = LIMIT_S) -> Replay:
    """Three replicas that train: the last report has one step fewer than ``steps``."""
    replay = Replay()
    names = "0a 1a 2a"
    for line in (f"job replicas=3 hang={limit_s:g}", "start", "A attached", "+0.2"):
        replay.line(line)
    for number in range(3):
        replay.line(f"A says started {number}a")
    replay.line(f"{names}: report 0/shared")
    replay.line(f"{names}: built 1.1#1")
    for step in range(steps):
        replay.line(f"+{step_s}")
        replay.line(f"{names}: progress {step} step: {step} steps of {step_s} s")
    return replay


def replaced(lines: list[str]) -> list[str]:
    """The replicas that are to be killed and started again."""
    return [x for x in lines if x.startswith("A <- RestartReplica") and "no answer" not in x]


def passes(replay: Replay, seconds: float) -> list[str]:
    """Let this time pass; the replicas that are replaced."""
    found: list[str] = []
    while seconds > 0:  # its agent lives, and has no more timers than a transcript may have
        found += replaced(replay.line(f"+{min(seconds, 200.0)}"))
        replay.line("A says heartbeat")
        seconds -= 200.0
    return found


def test_the_one_that_all_others_wait_for_is_replaced_after_the_limit() -> None:
    replay = training()
    replay.line("0a 2a: progress 4 waiting")
    assert passes(replay, LIMIT_S - 1.0) == []
    (line,) = passes(replay, 5.0)
    assert " 1a" in line
    assert "stands still in step 4: the others have waited for it for" in line


def test_the_status_calls_it_hung_and_the_account_books_the_time_as_stopped() -> None:
    replay = training()
    replay.line("0a 2a: progress 4 waiting")
    assert replay.lighthouse is not None
    passes(replay, LIMIT_S / 2 - 1.0)
    status = replay.lighthouse.snapshot(replay.now)
    assert not any(replica["is_hung"] for replica in status["replicas"])
    passes(replay, 2.0)
    status = replay.lighthouse.snapshot(replay.now)
    assert [replica["is_hung"] for replica in status["replicas"]] == [False, True, False]
    assert len(passes(replay, LIMIT_S)) == 1
    status = replay.lighthouse.snapshot(replay.now)
    seconds = status["replicas"][1]["seconds"]
    assert LIMIT_S - 1.0 <= seconds["stopped"] <= LIMIT_S + 5.0
    assert seconds["training"] == 5.0
    (incident,) = status["incidents"]
    assert incident["cost_s"] >= 3 * (LIMIT_S - 1.0), "all three stood for its sake"


def test_a_slow_loop_has_ten_times_its_own_step() -> None:
    replay = training(step_s=20.0)
    replay.line("0a 2a: progress 4 waiting")
    assert passes(replay, FACTOR * 20.0 - 1.0) == []
    assert len(passes(replay, 20.0)) == 1


def test_between_two_steps_it_has_ten_times_as_long() -> None:
    replay = training()
    replay.line("1a: progress 4 outside step: 4 steps of 1 s")
    replay.line("0a 2a: progress 4 waiting")
    assert passes(replay, OUTSIDE_TIMES * LIMIT_S - 1.0) == []
    (line,) = passes(replay, LIMIT_S)
    assert "stands still between two steps" in line


@pytest.mark.parametrize(
    "activity",
    [x for x in Activity if x not in (Activity.STEP, Activity.OUTSIDE, Activity.TOO_FEW)],
)
def test_one_that_heals_starts_pauses_or_waits_itself_is_left_alone(activity: Activity) -> None:
    replay = training()
    replay.line("0a 2a: progress 4 waiting")
    replay.line(f"1a: progress 4 {activity.value}")
    assert passes(replay, 20 * LIMIT_S) == []


def test_while_two_do_not_wait_nobody_is_replaced() -> None:
    replay = training()
    replay.line("0a: progress 4 waiting")
    assert passes(replay, 20 * LIMIT_S) == []


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_before_it_has_timed_its_steps_it_has_ten_times_as_long(steps: int) -> None:
    replay = training(steps)
    replay.line(f"0a 2a: progress {steps - 1} waiting")
    assert passes(replay, FIRST_TIMES * LIMIT_S - 1.0) == []
    (line,) = passes(replay, LIMIT_S)
    assert f"stands still in step {steps - 1}: the others have waited for it for" in line
    assert ("it has made no step yet" in line) == (steps == 1)


def test_one_report_suffices_because_it_times_its_steps_itself() -> None:
    replay = training(steps=0)
    replay.line("1a: progress 9 step: 9 steps of 0.1 s")
    replay.line("0a 2a: progress 9 waiting")
    assert passes(replay, LIMIT_S - 1.0) == []
    assert len(passes(replay, 5.0)) == 1


def test_a_new_step_ends_the_suspicion() -> None:
    replay = training()
    replay.line("0a 2a: progress 4 waiting")
    assert passes(replay, LIMIT_S - 1.0) == []
    replay.line("1a: progress 5 step: 5 steps of 1 s")
    assert passes(replay, LIMIT_S - 1.0) == []


def test_members_that_give_up_and_try_again_still_wait_for_the_same_one() -> None:
    replay = training()
    replay.line("0a 2a: progress 4 waiting")
    assert passes(replay, LIMIT_S - 10.0) == []
    replay.line("0a: errored 1.1#1@4: no operation completed for 50 s")
    replay.line("0a 1a 2a: report 4/x interrupted=1.1#1 in=1.1#1")
    replay.line("0a 1a 2a: built 1.1#2")
    replay.line("1a: progress 4 step: 4 steps of 1 s")
    replay.line("0a 2a: progress 4 waiting")
    assert len(passes(replay, 15.0)) == 1


def test_a_lighthouse_that_was_stopped_looks_twice() -> None:
    replay = training()
    replay.line("0a 2a: progress 4 waiting")
    replay.line("+1")
    assert replaced(replay.line("stopped 1000")) == []
    replay.line("0a 1a 2a: progress 5 step")
    assert passes(replay, 10 * LIMIT_S) == []


def test_with_a_limit_of_0_nobody_is_replaced() -> None:
    replay = training(limit_s=0.0)
    replay.line("0a 2a: progress 4 waiting")
    assert passes(replay, 20 * LIMIT_S) == []


def test_the_replica_that_is_waited_for_is_blamed_not_the_one_that_gives_up() -> None:
    replay = training(steps=1)
    assert replay.lighthouse is not None
    replay.line("0a 2a: progress 0 waiting")
    replay.line("0a: errored 1.1#1@0: no operation completed for 60 s")
    forming = replay.lighthouse.membership.forming
    assert forming._blame is not None and dict(forming._blame.errors) == {"1": 1}


def test_a_pause_that_others_wait_for_blames_nobody_and_counts_no_try() -> None:
    replay = training()
    assert replay.lighthouse is not None
    forming = replay.lighthouse.membership.forming
    before = forming._tries
    replay.line("1a: progress 4 paused")
    replay.line("0a 2a: progress 4 waiting")
    replay.line("0a: errored 1.1#1@4: no operation completed for 60 s")
    assert forming._blame is None
    assert forming._tries == max(0, before - 1)


def leaving(progress: str) -> tuple[Replay, list[str]]:
    """Replica 1 is to leave after step 4, to which all have agreed."""
    replay = training()
    printed = replay.line("asks drain 1")
    assert any("Prepare 1.2#1 [0a 2a]" in line for line in printed), printed
    replay.line("0a 1a 2a: built 1.2#1")
    replay.line("0a 1a 2a: promised 1.2#1@5")
    return replay, replay.line(progress)


def test_one_that_is_to_leave_and_stands_still_is_found_by_those_that_wait_for_its_step() -> None:
    replay, _ = leaving("0a 2a: progress 4 waiting")
    assert passes(replay, LIMIT_S - 1.0) == []
    (line,) = passes(replay, 5.0)
    assert " 1a" in line and "stands still in step 4: it was to leave after it" in line


def test_those_that_have_come_to_the_step_of_a_switch_wait_for_the_one_that_has_not() -> None:
    replay, _ = leaving("0a 2a: progress 5 no quorum")
    assert passes(replay, LIMIT_S - 1.0) == []
    assert len(passes(replay, 5.0)) == 1


def test_one_that_does_not_leave_is_found_though_the_others_train_on() -> None:
    replay, _ = leaving("0a 2a: inforce 1.2#1@5")
    for step in range(5, 5 + int(LIMIT_S) - 2):
        replay.line(f"0a 2a: progress {step} step: {step} steps of 1 s")
        assert passes(replay, 1.0) == []
    assert len(passes(replay, 5.0)) == 1
