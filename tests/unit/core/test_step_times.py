"""A loop's own step times, and the limit that follows from them."""

from __future__ import annotations

import pytest

from ftrun.core.step_times import StepTimes


def loop(*times_s: float) -> StepTimes:
    """A loop whose steps took so long."""
    found, now = StepTimes(), 0.0
    found.reached(0, now)
    for step, time_s in enumerate(times_s, 1):
        now += time_s
        found.reached(step, now)
    return found


def test_too_few_steps_give_no_limit() -> None:
    assert loop(1.0, 1.0).limit_s(10.0, 5.0) is None


@pytest.mark.parametrize(
    ("times_s", "limit_s"),
    [
        ((0.1, 0.1, 0.1), 5.0),  # at least
        ((1.0, 1.0, 1.0), 10.0),  # ten times the usual one
        ((1.0, 1.0, 1.0, 40.0), 80.0),  # twice the longest one
    ],
)
def test_the_longest_of_three_limits_counts(times_s: tuple[float, ...], limit_s: float) -> None:
    assert loop(*times_s).limit_s(10.0, 5.0) == pytest.approx(limit_s)


def test_steps_between_two_reports_took_equally_long_and_count_each() -> None:
    times = StepTimes()
    times.reached(5, 0.0)
    times.reached(9, 8.0)
    assert times.is_known and times.steps == 4
    assert times.median == 2.0


def test_what_was_no_step_is_left_out() -> None:
    times = loop(1.0, 1.0, 1.0)
    times.skip()
    times.reached(4, 1000.0)
    times.reached(5, 1001.0)
    assert times.limit_s(10.0, 5.0) == 10.0


def test_a_step_that_goes_back_begins_a_new_measurement() -> None:
    times = loop(1.0, 1.0, 1.0)
    times.reached(1, 100.0)
    times.reached(2, 101.0)
    assert times.limit_s(10.0, 5.0) == 10.0
