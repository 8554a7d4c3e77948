"""Loops that stand still by their own steps: found, and never a loop that rests for a reason."""

from __future__ import annotations

import pytest

from ftrun.core.activity import Activity
from ftrun.core.agent.loop_watch import LEAST_S, SECOND_LOOK_S, LoopWatch
from ftrun.core.messages import Progress

USUAL_S = 2.0
FACTOR = 10.0
LIMIT_S = FACTOR * USUAL_S


def stepped(factor: float = FACTOR, steps: int = 5) -> tuple[LoopWatch, float]:
    """A loop of a worker with a Manager, and the time of its last step."""
    watch, now = LoopWatch(factor), 100.0
    for step in range(steps):
        now += USUAL_S
        watch.progress(0, Progress(step, step, Activity.STEP), now)
    return watch, now


def found_at(watch: LoopWatch, now: float) -> tuple[int, str] | None:
    """Look at ``now`` and once more, as at its deadlines."""
    watch.standing(now)
    return watch.standing(now + SECOND_LOOK_S)


def test_a_loop_that_stands_still_is_found_after_its_limit_at_the_second_look() -> None:
    watch, last_at = stepped()
    assert found_at(watch, last_at + LIMIT_S - 2 * SECOND_LOOK_S) is None
    assert list(watch.deadlines()) == [last_at + LIMIT_S]
    assert watch.standing(last_at + LIMIT_S) is None
    assert list(watch.deadlines()) == [last_at + LIMIT_S + SECOND_LOOK_S]
    assert watch.standing(last_at + LIMIT_S + SECOND_LOOK_S / 2) is None
    found = watch.standing(last_at + LIMIT_S + SECOND_LOOK_S)
    assert found is not None
    assert found == (0, "hangs: its loop has stood still for 21 s, and a step usually takes 2 s")


def test_an_agent_that_was_stopped_hears_the_steps_before_its_second_look() -> None:
    watch, last_at = stepped()
    assert watch.standing(last_at + 1000.0) is None
    watch.progress(0, Progress(9, 9, Activity.STEP), last_at + 1000.0)
    assert watch.standing(last_at + 1000.0 + SECOND_LOOK_S) is None


@pytest.mark.parametrize(
    "phase",
    [activity for activity in Activity if activity not in (Activity.STEP, Activity.OUTSIDE)],
)
def test_a_worker_that_rests_for_a_reason_is_not_watched(phase: Activity) -> None:
    watch, last_at = stepped()
    watch.progress(0, Progress(4, 4, phase), last_at)
    assert list(watch.deadlines()) == []
    assert found_at(watch, last_at + 1e6) is None


def test_after_a_rest_the_limit_begins_anew() -> None:
    watch, last_at = stepped()
    watch.progress(0, Progress(4, 4, Activity.PAUSED), last_at)
    watch.progress(0, Progress(4, 4, Activity.STEP), last_at + 500.0)
    assert list(watch.deadlines()) == [last_at + 500.0 + LIMIT_S]


def test_a_heartbeat_within_a_step_is_a_beat_and_a_repeated_report_is_none() -> None:
    watch, last_at = stepped()
    watch.progress(0, Progress(4, 4, Activity.OUTSIDE), last_at + 5.0)
    assert list(watch.deadlines()) == [last_at + LIMIT_S]
    watch.progress(0, Progress(4, 4, Activity.OUTSIDE, beats=1), last_at + 5.0)
    assert list(watch.deadlines()) == [last_at + 5.0 + LIMIT_S]


def test_before_three_steps_and_without_a_factor_nobody_is_found() -> None:
    for watch, last_at in (stepped(steps=3), stepped(factor=0.0)):
        assert list(watch.deadlines()) == []
        assert found_at(watch, last_at + 1e6) is None


def test_a_worker_that_has_ended_is_not_watched() -> None:
    watch, last_at = stepped()
    watch.gone(0)
    assert found_at(watch, last_at + 1e6) is None


def test_a_script_without_a_manager_is_watched_by_its_beats() -> None:
    watch = LoopWatch(2.0)
    for second in range(5):
        watch.beat(3, float(second))
    assert list(watch.deadlines()) == [4.0 + LEAST_S]
    found = found_at(watch, 4.0 + LEAST_S)
    assert found is not None
    assert found[0] == 3


def test_its_pause_ends_by_its_limit_or_by_the_next_beat() -> None:
    watch = LoopWatch(2.0)
    for second in range(5):
        watch.beat(0, float(second))
    watch.paused(0, 60.0, 4.0)
    assert list(watch.deadlines()) == [64.0 + LEAST_S]
    watch.beat(0, 20.0)
    assert list(watch.deadlines()) == [20.0 + LEAST_S]
