"""Membership where a transcript would be a bad test: crowds, broken states, bounds.

The cases are in tests/transcripts.
"""

from __future__ import annotations

import pytest

from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.phases import TRANSITIONS, Phase
from tests.transcripts.replay import Replay


def play(*lines: str) -> tuple[Replay, list[str]]:
    """Play event lines as in a transcript; what the last one gives."""
    replay = Replay()
    out: list[str] = []
    for line in lines:
        out = replay.line(line)
    return replay, out


def core(replay: Replay) -> Lighthouse:
    assert replay.lighthouse is not None
    return replay.lighthouse


def crowd(count: int) -> tuple[str, ...]:
    """A quorum of so many replicas, all but the first of which heal."""
    names = [f"{index}a" for index in range(count)]
    return (
        f"job replicas={count}",
        "start",
        f"A attached capacity={count}",
        "+0.2",
        *(f"A says started {name}" for name in names),
        *(f"{name}: report {5 if name == '0a' else 0}/x" for name in names),
        f"{' '.join(names)}: built 1.1#1",
    )


def test_a_heal_is_told_and_a_crowd_that_heals_is_not() -> None:
    _, few = play(*crowd(3), "1a: healed 1.1#1@5 from 0")
    assert few == [
        "A <- healed: Replica 1 healed from replica 0: step 5, 12.3 MB in 0.042 s.",
    ]
    _, many = play(*crowd(20), "1a: healed 1.1#1@5 from 0")
    assert many == []


HALF_HEALED = (
    "job replicas=2 workers=2",
    "start",
    "A attached",
    "+0.2",
    "A says started 0a",
    "A says started 1a",
    "0a.0 0a.1: report 5/x",
    "1a.0 1a.1: report 0/fresh",
    "0a.0 0a.1 1a.0 1a.1: built 1.1#1",
    "A says lost 0a: killed",
    "1a.0: report 5/x interrupted=1.1#1",
)


def test_a_replica_that_has_half_healed_is_replaced_when_nobody_can_help_it() -> None:
    replay, out = play(*HALF_HEALED, "1a.1: report 0/fresh interrupted=1.1#1")
    assert out[0].startswith("A <- RestartReplica 1a: its state is incomplete")
    assert core(replay).state.phase is Phase.FENCE


def test_a_newcomer_that_is_drained_is_lost_to_a_switch_under_way() -> None:
    replay, out = play(
        "job replicas=2",
        "start",
        "A attached",
        "+0.2",
        "A says started 0a",
        "0a: report 0/x",
        "+60",
        "0a: built 1.1#1",
        "A says started 1a",
        "1a: report 0/fresh",
        "+0.05",
        "drain 1",
    )
    assert out == [
        "A <- lost: Replica 1 lost: it was drained before it joined.",
        "A <- 0a: Cancel 1.2#1",
        "= steady",
    ]
    assert core(replay).state.replicas.get("1") is None


def test_whoever_finishes_while_the_lighthouse_listens_is_struck_when_it_knows_enough() -> None:
    replay, out = play(
        "job replicas=2",
        "start",
        "A attached",
        "+0.2",
        "A says started 0a",
        "A says started 1a",
        "0a 1a: report 0/x",
        "0a 1a: built 1.1#1",
        "restart",
        "A attached running=0a,1a",
        "1a: report 9/y in=1.1#1",
        "1a: leaving finished",
        "0a: report 9/y in=1.1#1",
    )
    assert out[-1] == "= steady"
    assert replay.line("+0.1")[0] == "A <- 0a: Interrupt 2.0#0"


def test_rules_that_go_round_in_circles_are_caught() -> None:
    replay, _ = play("job replicas=1", "start", "A attached")
    lighthouse = core(replay)
    lighthouse.membership._rules[Phase.EMPTY] = lambda: True
    with pytest.raises(AssertionError, match="do not come to an end"):
        replay.line("+1")


def test_every_phase_but_the_last_can_end_the_job_and_none_comes_after_it() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert TRANSITIONS[Phase.ENDED] == frozenset()
    for phase in set(Phase) - {Phase.ENDED}:
        assert Phase.ENDED in TRANSITIONS[phase]


def test_a_forbidden_transition_is_a_bug() -> None:
    replay, _ = play("job replicas=1", "start", "A attached")
    with pytest.raises(AssertionError, match=r"EMPTY → Phase\.SWITCH"):
        core(replay).state.enter(Phase.SWITCH)
