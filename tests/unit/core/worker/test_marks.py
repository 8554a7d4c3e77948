"""What a worker shows of its last steps."""

from __future__ import annotations

from ftrun.core.ids import StateId
from ftrun.core.messages import Mark
from ftrun.core.worker.marks import TEXT_CHARS_MAX, Marks


def test_the_newest_step_of_each_power_of_ten_is_shown_oldest_first() -> None:
    marks = Marks()
    assert marks.shown() == ()
    for step in range(1, 2346):
        marks.note(StateId(step, f"l{step}"), lambda: "s", "p" if step % 100 == 0 else "")
    assert marks.shown() == (
        Mark(2000, "l2000", "s", "p"),
        Mark(2300, "l2300", "s", "p"),
        Mark(2340, "l2340", "s"),
        Mark(2345, "l2345", "s"),
    )


def test_one_step_is_shown_once() -> None:
    marks = Marks()
    marks.note(StateId(1000, "l"), lambda: "x" * 9999, "")
    assert marks.shown() == (Mark(1000, "l", "x" * TEXT_CHARS_MAX),)
