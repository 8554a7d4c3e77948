"""An activity is reported when it differs from the last one that was, whoever reported that one."""

from __future__ import annotations

from ftrun.core.activity import Activity, Pause
from ftrun.core.worker.shown import ShownActivity


def test_a_tick_reports_what_has_changed() -> None:
    shown = ShownActivity()
    assert shown.tick(Activity.STEP, 4.0, 5.0) == [(Activity.STEP, 1.0)]
    assert shown.tick(Activity.STEP, 4.0, 6.0) == []
    assert shown.tick(Activity.WAITING, 4.0, 7.0) == [(Activity.WAITING, 3.0)]


def test_a_report_between_two_ticks_is_compared_with_as_well() -> None:
    shown = ShownActivity()
    shown.tick(Activity.STEP, 4.0, 5.0)
    shown.reported(Activity.TOO_FEW)
    assert shown.tick(Activity.STEP, 5.5, 6.0) == [(Activity.STEP, 0.5)]


def test_what_was_reported_between_two_ticks_is_not_repeated() -> None:
    shown = ShownActivity()
    shown.tick(Activity.STEP, 4.0, 5.0)
    shown.pause, shown.beats = Pause("eval", 5.0), 1
    shown.reported(Activity.PAUSED)
    assert shown.tick(Activity.PAUSED, 5.0, 6.0) == []


def test_a_tick_that_had_to_wait_for_a_copy_of_the_state_did_not_stand_still() -> None:
    shown = ShownActivity()
    shown.tick(Activity.STEP, 4.0, 5.0)
    assert shown.tick(Activity.STEP, 4.0, 15.0, waited_s=9.0) == []
    assert shown.tick(Activity.STEP, 4.0, 25.0, waited_s=4.0) == [
        (Activity.STOPPED, 6.0),
        (Activity.STEP, 21.0),
    ]
