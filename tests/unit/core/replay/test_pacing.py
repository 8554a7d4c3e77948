"""How often the workers of a group copy their states."""

from __future__ import annotations

import pytest

from ftrun.core.replay.pacing import (
    AHEAD,
    CARRIED_S,
    REPEAT_S,
    SHARE,
    Pace,
    ahead_of,
    fills,
    fits,
    is_due,
    newest,
)

COPY_S = 0.1


def run(
    steps: int, step_s: float, behind: int = 0, full: int = -9, repeat_s: float = 1.0
) -> list[int]:
    """The steps that begin with a generation, of those that all take so long."""
    pace, word, found = Pace(), 0, []
    for step in range(steps):
        if is_due(word, step):
            found.append(step)
        fills = step in (full, full + 1)
        is_behind = step < behind
        word = pace.begins(step, word, step_s, COPY_S, repeat_s, fills=fills, is_behind=is_behind)
    return found


@pytest.mark.parametrize(
    ("copies", "found"),
    [
        (1.01, [2, 3, 4, 5, 6, 7, 8, 9]),
        (5.0, [2, 3, 4, 5, 6, 7, 8, 9]),
        (0.51, [3, 5, 7, 9]),
        (0.26, [5, 9]),
    ],
)
def test_generations_take_a_share_of_the_time(copies: float, found: list[int]) -> None:
    """``copies``: so many are earned by a step."""
    assert run(10, copies * COPY_S / SHARE) == found


@pytest.mark.parametrize(
    ("share", "found"), [(1.0, [2, 3, 4, 5, 6]), (0.5, [3, 5]), (0.26, [5]), (0.1, [])]
)
def test_none_is_made_that_spares_a_replacement_too_little(share: float, found: list[int]) -> None:
    """``share``: of the least that is worth one, in each step."""
    assert run(7, COPY_S / SHARE * 5, repeat_s=share * REPEAT_S) == found
    assert run(7, COPY_S / SHARE * 0.9, full=2, repeat_s=0.0) == [4], "else the log would be full"


@pytest.mark.parametrize("every", [2, 10])
def test_a_pause_between_two_steps_earns_nothing(every: int) -> None:
    pace = Pace()
    assert pace.lasted(0.1, 5.0) == 5.0, "the first step tells how long one is"
    lasted = [pace.lasted(0.1, 0.3 if step % every else 30.0) for step in range(1000)]
    assert sum(lasted[300:]) == pytest.approx(700 * 0.3, rel=0.1)
    assert pace.lasted(20.0, 30.0) == 20.0, "an evaluation takes its own share"


def test_steps_that_become_longer_are_no_pauses_for_long() -> None:
    pace = Pace()
    lasted = [pace.lasted(0.0, 0.1) for _ in range(50)] + [pace.lasted(0.0, 1.0) for _ in range(50)]
    assert lasted[:50] == [0.1] * 50
    assert lasted[75:] == [1.0] * 25


def test_one_is_made_earlier_where_the_log_would_be_full() -> None:
    assert run(10, COPY_S / SHARE / 9, full=4) == [6]


def test_a_log_that_is_too_large_is_made_shorter_if_that_helps() -> None:
    assert not fills(100.0, 700, 3)
    assert fills(100.0, 699, 3)
    assert fills(100.0, 500, 3)
    assert not fills(100.0, 499, 3), "not even one of two steps fits"
    assert not fills(0.0, 500, 3)


def test_a_log_that_is_too_small_for_a_step_costs_no_more_than_twice_the_share() -> None:
    pace, word, found = Pace(), 0, 0
    for step in range(1000):
        found += is_due(word, step)
        step_s = COPY_S / SHARE / 20
        word = pace.begins(step, word, step_s, COPY_S, 0.0, fills=True, is_behind=False)
    assert found == 90


def test_one_with_the_states_of_optimizers_is_made_at_once() -> None:
    assert newest(Pace().begins(0, 0, 1e-6, 0.0, 0.0, fills=False, is_behind=False)) == AHEAD


def test_copies_take_no_memory_that_the_script_may_need() -> None:
    assert fits(800, more=100, peak=0, workers=4)
    assert not fits(799, more=100, peak=0, workers=4)
    assert not fits(800, more=100, peak=1, workers=4)


def test_a_replacement_announces_nothing_while_it_repeats() -> None:
    assert run(10, COPY_S / SHARE * 1.01, behind=5) == [5 + AHEAD, 8, 9]


def test_what_others_come_to_later_stays_announced() -> None:
    pace, word = Pace(), 0
    for step in range(6):
        word = pace.begins(step, word, 1e6, COPY_S, 1.0, fills=False, is_behind=False)
    assert [step for step in range(20) if is_due(word, step)] == [2, 3, 4, 5, 6, 7]
    word = pace.begins(1000, word, 1e6, COPY_S, 1.0, fills=False, is_behind=False)
    assert [step for step in range(1100) if is_due(word, step)] == [1002]


def test_other_nodes_hear_of_a_step_in_time_and_of_one_at_a_time() -> None:
    assert (ahead_of(CARRIED_S), ahead_of(CARRIED_S / 10), ahead_of(0.0)) == (AHEAD, 10, 250)
    pace = Pace(earned_s=1.0)

    def begins(step: int, said: int) -> int:
        return pace.begins(step, said, 1.0, 1e-9, 1.0, fills=False, is_behind=False, ahead=10)

    said = begins(1, 0)
    assert (newest(said), is_due(said, 11)) == (11, True)
    assert begins(10, said) == said
    assert newest(begins(11, said)) == 21
