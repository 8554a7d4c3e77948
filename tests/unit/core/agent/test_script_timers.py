"""Timers that a script sets: the earliest is found, released ones never are, the table is small."""

from __future__ import annotations

from ftrun.core.agent.script_timers import SECOND_LOOK_S, TIMERS_MAX, Expired, ScriptTimers


def test_a_timer_runs_out_at_the_second_look_and_is_found_once() -> None:
    timers = ScriptTimers()
    timers.set(0, 7, "a", 10.0, 9)
    assert list(timers.deadlines()) == [10.0 + SECOND_LOOK_S]
    assert timers.expired(10.0) is None
    assert timers.expired(10.0 + SECOND_LOOK_S) == Expired(0, 7, "a", 9)
    assert timers.expired(1e9) is None


def test_the_earliest_counts_and_takes_the_others_of_its_process_along() -> None:
    timers = ScriptTimers()
    timers.set(0, 7, "late", 11.0, 9)
    timers.set(0, 7, "early", 10.0, 15)
    timers.set(0, 8, "of a child", 12.0, 9)
    assert timers.expired(100.0) == Expired(0, 7, "early", 15)
    assert timers.expired(100.0) == Expired(0, 8, "of a child", 9)
    assert timers.expired(100.0) is None


def test_a_released_or_renewed_timer_and_one_of_an_ended_worker_do_not_run_out() -> None:
    timers = ScriptTimers()
    timers.set(0, 7, "released", 1.0, 9)
    timers.release(0, 7, "released")
    timers.release(0, 7, "never set")
    timers.set(0, 7, "renewed", 1.0, 9)
    timers.set(0, 7, "renewed", 50.0, 9)
    timers.set(1, 8, "ended", 1.0, 9)
    timers.gone(1)
    assert timers.expired(10.0) is None
    assert timers.expired(51.0) == Expired(0, 7, "renewed", 9)


def test_of_too_many_timers_the_oldest_is_dropped() -> None:
    timers = ScriptTimers()
    for number in range(TIMERS_MAX + 1):
        timers.set(0, 7, f"{number}", 10_000.0 - number, 9)
    assert len(list(timers.deadlines())) == TIMERS_MAX
    timers.set(0, 8, "0", 0.0, 9)
    assert timers.expired(1.0) == Expired(0, 8, "0", 9)


def test_only_the_signal_that_was_sent_is_a_timers_doing() -> None:
    timers = ScriptTimers()
    timers.signalled(0, 15, "hangs")
    assert timers.cause(0, -15) == "hangs"
    assert timers.cause(0, 1) == timers.cause(1, -15) == timers.cause(1, 0) == ""
