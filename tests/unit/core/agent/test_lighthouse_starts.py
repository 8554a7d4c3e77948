"""When an agent's own lighthouse is started again."""

from __future__ import annotations

from ftrun.core.agent.lighthouse_starts import (
    BACKOFF_LAST_S,
    HEALTHY_S,
    SHORT_LIVES_MAX,
    STARTS_MAX,
    AgentStarts,
    LighthouseStarts,
)


def delays(starts: LighthouseStarts, count: int, **how: bool) -> list[float | None]:
    facts = {"was_ready": False, "is_hopeless": False, **how}
    return [starts.ended(0.1, **facts) for _ in range(count)]


def test_one_that_never_comes_up_is_given_up() -> None:
    starts = LighthouseStarts()
    *before, last = delays(starts, STARTS_MAX)
    assert before == [0.05, 0.1, 0.2, 0.4]
    assert last is None
    assert starts.then(None) == "It does not restart, so the job ends here"


def test_what_is_hopeless_is_not_tried_again() -> None:
    assert delays(LighthouseStarts(), 1, is_hopeless=True) == [None]


def test_one_that_has_served_has_more_tries_and_they_end_too() -> None:
    starts = LighthouseStarts()
    assert starts.ended(HEALTHY_S, was_ready=True, is_hopeless=False) == 0.05
    *before, last = delays(starts, SHORT_LIVES_MAX - 1, is_hopeless=True)
    assert None not in before and before[-1] == BACKOFF_LAST_S
    assert last is None


def test_a_healthy_life_begins_the_count_again() -> None:
    starts = LighthouseStarts()
    for _ in range(3 * SHORT_LIVES_MAX):
        assert starts.ended(HEALTHY_S, was_ready=True, is_hopeless=False) == 0.05


def test_words_are_true_before_and_after_it_has_served() -> None:
    starts = LighthouseStarts()
    starts.ended(0.1, was_ready=False, is_hopeless=False)
    assert starts.then(0.05) == f"It restarts: start 2 of {STARTS_MAX}"
    starts.ended(0.1, was_ready=True, is_hopeless=False)
    assert "training continues" in starts.then(0.1)


def test_an_agent_that_was_killed_has_a_successor_and_any_other_end_is_its_own() -> None:
    starts = AgentStarts()
    for status, was_asked in ((0, False), (75, False), (-9, True)):
        assert starts.ended(status, 1.0, was_asked=was_asked) is None
    assert starts.ended(-9, HEALTHY_S, was_asked=False) == 0.05
    assert starts.ended(-9, 1.0, was_asked=False) == 0.1


def test_an_agent_that_is_killed_at_each_start_is_given_up() -> None:
    starts = AgentStarts()
    found = [starts.ended(-9, 1.0, was_asked=False) for _ in range(STARTS_MAX)]
    assert found[-1] is None
    assert None not in found[:-1]
