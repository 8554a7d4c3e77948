"""Waits are shown: as JSON at any time, and by notices, of which the last one is true.

The words of each wait are in tests/transcripts (waits.txt and others).
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.activity import FOR_PEERS, REACHES_NO_LATER, Activity
from ftrun.core.lighthouse.waits import NOTICE_AFTER_S
from ftrun.core.lighthouse.words import replicas, sentence
from tests.transcripts.replay import Replay

REPLICAS = ("0", "1", "2")


def formed() -> Replay:
    """A lighthouse whose three replicas train."""
    replay = Replay()
    for line in ("job replicas=3", "start", "A attached", "+0.2"):
        replay.line(line)
    for line in ("A says started 0a", "A says started 1a", "A says started 2a"):
        replay.line(line)
    replay.line("0a 1a 2a: report 0/shared")
    replay.line("0a 1a 2a: built 1.1#1")
    return replay


def told(lines: list[str]) -> list[str]:
    """The notices of waits."""
    return [line for line in lines if line.startswith(("A <- waiting: ", "A <- goes_on: "))]


def dumb_whom(activities: dict[str, str]) -> set[str]:
    """The replicas that are waited for, found by looking at all."""
    waits = {activity.value for activity in FOR_PEERS}
    waiting = {name for name, activity in activities.items() if activity in waits}
    return (set(REPLICAS) - waiting or waiting) if waiting else set()


acts = st.tuples(
    st.sampled_from(REPLICAS),
    st.sampled_from([activity.value for activity in Activity if activity not in REACHES_NO_LATER]),
    st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.0]),
)


@settings(deadline=None)
@given(st.lists(acts, max_size=30))
def test_what_was_told_last_is_true_after_a_while(schedule: list[tuple[str, str, float]]) -> None:
    replay = formed()
    activities = dict.fromkeys(REPLICAS, "step")
    lines: list[str] = []
    for name, activity, pause_s in schedule:
        activities[name] = activity
        lines += told(replay.line(f"{name}a: progress 5 {activity}"))
        lines += told(replay.line(f"+{pause_s}"))
    lines += told(replay.line(f"+{2 * NOTICE_AFTER_S}"))
    whom = dumb_whom(activities)
    last = lines[-1] if lines else ""
    assert ("<- waiting: " in last) == bool(whom), lines
    if whom:
        ours = (f"for {replicas(whom)}", f": {sentence(replicas(whom))} wait for each other's data")
        assert any(words in last for words in ours), lines
    assert told(replay.line("+60")) == [], "once, as long as nothing changes"


def test_the_status_shows_a_wait_before_it_is_worth_a_word() -> None:
    replay = formed()
    assert replay.lighthouse is not None
    replay.line("0a: progress 5 waiting")
    replay.line("2a: progress 5 healing")
    assert replay.lighthouse.snapshot(replay.now + 1.0)["waiting"] == {
        "for": "replica 0 waits for replicas 1 and 2",
        "whom": ["1", "2"],
        "since_s": 1.0,
        "at_most_s": None,
    }
    replay.line("0a: progress 5 step")
    assert replay.lighthouse.snapshot(replay.now)["waiting"] is None


def test_those_that_have_come_to_the_end_wait_for_the_others() -> None:
    replay = formed()
    assert replay.lighthouse is not None
    replay.line("0a: progress 5 at its end")
    replay.line("2a: progress 5 at its end")
    picture: Any = replay.lighthouse.snapshot(replay.now + 1.0)["waiting"]
    words = "replicas 0 and 2 have reached the end of the script, and wait for replica 1"
    assert (picture["for"], picture["whom"]) == (words, ["1"])
    replay.line("1a: progress 5 at its end")
    picture = replay.lighthouse.snapshot(replay.now + 1.0)["waiting"]
    assert picture["for"].endswith("wait for each other") and picture["whom"] == []


def test_one_that_comes_to_the_end_after_the_others_waits_for_nobody() -> None:
    """Seen: a worker was replaced inside its replica after the others had finished."""
    replay = formed()
    assert replay.lighthouse is not None
    for line in ("0a 2a: leaving finished", "A says finished 0a", "A says finished 2a"):
        replay.line(line)
    for line in ("report 5/shared interrupted=1.1#1", "built 1.2#1", "progress 5 at its end"):
        replay.line(f"1a: {line}")
    picture: Any = replay.lighthouse.snapshot(replay.now + 1.0)["waiting"]
    assert picture["for"] == "replica 1 has reached the end of the script, and waits to leave"
