"""Members that wait for each other at unlike places: the newcomer is given up, or the job ends."""

from __future__ import annotations

import pytest

from ftrun.core.lighthouse.standstill import FACTOR
from tests.transcripts.replay import Replay
from tests.unit.core.lighthouse.test_standstill import LIMIT_S, passes, replaced, training

CALL = "in a collective: since {} s, barrier at train.py:9"


def with_newcomer(**options: float) -> Replay:
    """Three replicas at step 8, of which replica 1 was started again and joined at step 6."""
    replay = training(**options)  # type: ignore[arg-type]
    for line in (
        "A says lost 1a: killed",
        "0a 2a: report 5/x interrupted=1.1#1 in=1.1#1",
        "0a 2a: built 1.2#1",
        "A says started 1b restarts=1",
        "1b: report 0/fresh",
        "+0.05",
        "0a 1b 2a: built 1.3#1",
        "0a 1b 2a: promised 1.3#1@6",
        "0a 1b 2a: inforce 1.3#1@6",
        "1b: healed 1.3#1@6 from 0",
        "0a 1b 2a: progress 8 step: 8 steps of 1 s",
    ):
        replay.line(line)
    assert replay.lighthouse is not None
    assert replay.lighthouse.membership.state.live == {"0", "1", "2"}
    return replay


def test_a_newcomer_that_trains_on_while_the_others_are_in_a_collective_is_replaced() -> None:
    replay = with_newcomer()
    replay.line("1b: progress 8 waiting")
    replay.line(f"0a 2a: progress 8 {CALL.format(0)}")
    assert passes(replay, LIMIT_S - 1.0) == []
    (line,) = passes(replay, 5.0)
    assert " 1b" in line
    assert (
        "waits in the reductions of step 8 while replicas 0 and 2 reached barrier at train.py:9: "
        "they have waited for each other for" in line
    )


def test_a_newcomer_in_a_collective_while_the_others_train_on_is_replaced() -> None:
    replay = with_newcomer()
    replay.line(f"1b: progress 8 {CALL.format(0)}")
    replay.line("0a 2a: progress 8 waiting")
    assert passes(replay, LIMIT_S - 1.0) == []
    (line,) = passes(replay, 5.0)
    assert " 1b" in line
    assert "waits in barrier at train.py:9 while replicas 0 and 2 reached the reductions" in line


def test_if_nobody_can_tell_who_is_wrong_the_job_ends_with_both_places() -> None:
    replay = training()
    replay.line(f"1a: progress 4 {CALL.format(0)}")
    replay.line("0a 2a: progress 4 waiting: since 0 s, batch 5 of the loader")
    replay.line(f"+{LIMIT_S}")
    (line,) = [x for x in replay.line("+5") if "EndJob" in x]
    assert "EndJob 1" in line
    assert "1 and replicas 0 and 2 have waited for each other" in line
    assert "in barrier at train.py:9 and in the reductions of step 4 (batch 5 of the load" in line


@pytest.mark.parametrize("newcomer", ["0a", "1b"])
def test_a_newcomer_on_the_side_of_others_is_not_given_up_for_them(newcomer: str) -> None:
    """Replica 2 alone is in the collective, or replica 2 with the newcomer: both sides are old."""
    replay = with_newcomer()
    apart = {"2a", "1b"} if newcomer == "1b" else {"2a"}
    replay.line(f"{' '.join(sorted(apart))}: progress 8 {CALL.format(0)}")
    replay.line(f"{' '.join(sorted({'0a', '1b', '2a'} - apart))}: progress 8 waiting")
    replay.line(f"+{LIMIT_S}")
    assert any("EndJob 1" in x for x in replay.line("+5"))


def test_tries_that_time_out_and_begin_again_do_not_begin_the_limit_again() -> None:
    """The operations' own timeout is shorter than the limit: without end otherwise."""
    replay = with_newcomer()
    waited_s = 0.0
    found: list[str] = []
    for attempt in range(1, 5):
        replay.line("1b: progress 8 waiting")
        replay.line(f"0a 2a: progress 8 {CALL.format(waited_s)}")
        found += passes(replay, LIMIT_S / 2)
        waited_s += LIMIT_S / 2
        if found:
            break
        tag = f"1.3#{attempt}"
        replay.line(f"1b: errored {tag}@8: no operation completed for {LIMIT_S / 2} s")
        replay.line(f"0a 1b 2a: report 8/x interrupted={tag} in={tag}")
        replay.line(f"0a 1b 2a: built 1.3#{attempt + 1}")
        replay.line("0a 1b 2a: progress 8 step: 8 steps of 1 s")
        found += passes(replay, 5.0)
        waited_s += 5.0
    (line,) = found
    assert " 1b" in line and waited_s <= 2 * LIMIT_S


@pytest.mark.parametrize(
    "goes_on",
    [
        "1b: progress 9 waiting",
        f"0a: progress 8 {CALL.format(0)}",  # another collective: its wait has begun just now
        "2a: progress 8 step",
        "2a: progress 8 outside step",
        "2a: progress 8 paused",
        "2a: progress 8 healing",
    ],
)
def test_whoever_goes_on_ends_it(goes_on: str) -> None:
    replay = with_newcomer()
    replay.line("1b: progress 8 waiting")
    replay.line(f"0a 2a: progress 8 {CALL.format(0)}")
    assert passes(replay, LIMIT_S - 5.0) == []
    replay.line(goes_on)
    assert passes(replay, LIMIT_S - 5.0) == []


def test_long_steps_have_a_longer_limit_and_0_is_none() -> None:
    replay = with_newcomer(step_s=20.0)
    replay.line("1b: progress 8 waiting: 8 steps of 20 s")
    replay.line(f"0a 2a: progress 8 {CALL.format(0)}")
    assert passes(replay, FACTOR * 20.0 - 1.0) == []
    assert len(passes(replay, 20.0)) == 1
    replay = with_newcomer(limit_s=0.0)
    replay.line("1b: progress 8 waiting")
    replay.line(f"0a 2a: progress 8 {CALL.format(0)}")
    assert passes(replay, 20 * LIMIT_S) == []


def test_a_lighthouse_that_was_stopped_looks_twice() -> None:
    replay = with_newcomer()
    replay.line("1b: progress 8 waiting")
    replay.line(f"0a 2a: progress 8 {CALL.format(0)}")
    replay.line("+1")
    assert replaced(replay.line("stopped 1000")) == []
    replay.line("0a 1b 2a: progress 9 step")
    assert passes(replay, 10 * LIMIT_S) == []
