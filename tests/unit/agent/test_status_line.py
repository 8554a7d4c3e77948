"""The line's words for each width, and what it shows of a job."""

from __future__ import annotations

import re

import pytest

from ftrun.agent import job_view
from ftrun.agent.job_view import JobView
from ftrun.agent.status_line import Bar, LineFacts, StatusLine
from ftrun.agent.watch import WorkerStarted
from ftrun.base import clock
from ftrun.core.activity import Activity
from ftrun.core.agent.events import WorkerExited, WorkerSent
from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.messages import HealProgress, JobGlance, NoManager, Progress, Report
from ftrun.core.quorum import Endpoint

FACTS = LineFacts("digits", 1234, 12.34, 2, 3, 4.06, None, "Replica 1 joined at step 117.", 75)
HEALS = Bar("replica 1 heals", 41, 100, "41 % of 1.2 GB")


def words(facts: LineFacts, columns: int) -> str:
    return StatusLine(colours=False).render(facts, columns).decode()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            120,
            "digits  step 1,234  12.3/s  2 of 3 replicas  up 75 s  4.1 s lost  "
            "Replica 1 joined at step 117.",
        ),
        (
            90,
            "digits  step 1,234  12.3/s  2 of 3 replicas  up 75 s  4.1 s lost  "
            "Replica 1 joined at st…",
        ),
        (80, "digits  step 1,234  12.3/s  2 of 3 replicas  up 75 s  4.1 s lost"),
        (60, "digits  step 1,234  12.3/s  2 of 3  up 75 s  4.1 s lost"),
        (50, "digits  step 1,234  12.3/s  2 of 3  4.1 s lost"),
        (40, "step 1,234  12.3/s  2 of 3  4.1 s lost"),
        (30, "step 1,234  12.3/s  2 of 3"),
        (20, "step 1,234  2 of 3"),
        (11, "step 1,234"),
        (10, "step 1,2…"),
    ],
)
def test_what_has_no_room_is_left_out(columns: int, expected: str) -> None:
    assert words(FACTS, columns) == expected
    assert len(words(FACTS, columns)) < columns


def test_a_heal_has_a_bar_that_is_as_full_as_the_heal_is_far() -> None:
    facts = LineFacts("digits", 7, None, 3, 3, None, HEALS)
    wide = words(facts, 100)
    assert wide.startswith("digits  step 7  3 of 3 replicas  replica 1 heals ")
    assert wide.endswith("41 % of 1.2 GB  up 0.0 s")
    assert words(facts, 60).startswith("digits  step 7  3 of 3  replica 1 heals ")
    assert words(facts, 30) == "step 7  3 of 3"
    full = StatusLine().render(LineFacts("x", bar=Bar("starting", 3, 3, "")), 60).decode()
    empty = StatusLine().render(LineFacts("x", bar=Bar("starting", 0, 3, "")), 60).decode()
    assert re.sub(r"\x1b\[[0-9;]*m", "", full) == re.sub(r"\x1b\[[0-9;]*m", "", empty)
    assert full != empty, "the colour tells"


def test_no_character_of_a_text_comes_to_the_terminal_as_a_code() -> None:
    facts = LineFacts("a\x1b[2Jb\n", 1, event="x\x1b]0;title\x07y\r\n[red]z[/red] :smile:")
    line = StatusLine(colours=False).render(facts, 100)
    assert b"\x1b" not in line and b"\r" not in line and b"\n" not in line
    assert b"[red]z[/red] :smile:" in line


def test_wide_characters_count_as_two_cells_and_a_poor_terminal_gets_ascii() -> None:
    facts = LineFacts("訓練" * 10, 1)
    assert words(facts, 30) == "step 1"
    poor = StatusLine(colours=False, utf8=False)
    assert poor.render(LineFacts("a", bar=HEALS), 80).isascii()


def test_colours_are_reset_at_the_end() -> None:
    line = StatusLine().render(FACTS, 120)
    assert line.startswith(b"\x1b[1m") and line.endswith(b"\x1b[0m")


# ---------------------------------------------------------------- the facts


def key(slot: int, incarnation: str = "a", rank: int = 0) -> WorkerKey:
    return WorkerKey(str(slot), f"{incarnation}{slot}", rank)


def started(view: JobView, slot: int, incarnation: str = "a") -> None:
    view.watch(WorkerStarted(key(slot, incarnation), 1))


def reports(view: JobView, slot: int, incarnation: str = "a") -> None:
    report = Report(StateId(0, "x"), Endpoint("h", "h:1"))
    view.watch(WorkerSent(key(slot, incarnation), report))


def progress(view: JobView, slot: int, step: int, heal: HealProgress | None = None) -> None:
    word = Progress(step, step, Activity.STEP, heal=heal)
    view.watch(WorkerSent(key(slot), word))


def test_a_job_starts_trains_heals_and_loses_its_lighthouse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = JobView("digits", 3, 3)
    assert view.facts("").bar == Bar("starting", 0, 3, "0 of 3 ready")
    for slot in range(3):
        started(view, slot)
    reports(view, 0)
    view.note_glance(JobGlance(0, 0, 0.0))
    facts = view.facts("")
    assert (facts.bar, facts.live) == (Bar("starting", 1, 3, "1 of 3 ready"), None)
    reports(view, 1)
    reports(view, 2)
    progress(view, 0, 41)
    view.note_glance(JobGlance(40, 3, 1.5, 12.0))
    facts = view.facts("news")
    assert facts.bar is None
    assert (facts.step, facts.live, facts.lost_s, facts.steps_per_s) == (41, 3, 1.5, 12.0)
    assert facts.event == "news"

    view.watch(WorkerExited("a1", 0, 7, -9))
    progress(view, 1, 99)  # late, of a dead worker
    assert view.facts("").step == 41
    started(view, 1, "b")
    view.watch(
        WorkerSent(key(1, "b"), Progress(41, 41, Activity.HEALING, heal=HealProgress(0, None)))
    )
    assert view.facts("").bar == Bar("replica 1 heals", 0, 0, "")
    progress(view, 2, 42, HealProgress(3, 10))
    assert view.facts("").bar == Bar("2 replicas heal", 0, 0, "3 B")
    view.watch(
        WorkerSent(key(1, "b"), Progress(41, 41, Activity.HEALING, heal=HealProgress(2, 10)))
    )
    assert view.facts("").bar == Bar("2 replicas heal", 5, 20, "25 % of 20 B")

    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + job_view.GLANCE_S + 1.0)
    facts = view.facts("")
    assert (facts.step, facts.live, facts.lost_s, facts.steps_per_s) == (42, None, None, None)


def test_a_script_without_a_manager_has_no_step_and_no_bar() -> None:
    view = JobView("digits", 3, 3)
    started(view, 0)
    view.note_glance(JobGlance(0, 0, 0.0))
    view.watch(WorkerSent(key(0), NoManager(True)))
    facts = view.facts("")
    assert (facts.step, facts.live, facts.bar) == (None, None, None)
    assert JobView("alone", 1, 1).facts("").bar is None
