"""How often the workers of a group copy their states."""

from __future__ import annotations

import pytest

from ftrun.core.replay.pacing import AHEAD, LONG_S, SHARE, Spent, due

COPY_S = 0.1
ENOUGH_S = COPY_S / SHARE * 1.01


@pytest.mark.parametrize(
    ("spent", "is_due"),
    [
        (Spent(ENOUGH_S, 0.0, COPY_S), True),
        (Spent(ENOUGH_S / 2, 0.0, COPY_S), False),
        (Spent(0.0, max(LONG_S, ENOUGH_S), COPY_S), True),  # it waits for most of the time
        (Spent(0.0, LONG_S / 2, COPY_S / 100), False),
        (Spent(ENOUGH_S, LONG_S * 2, COPY_S), True),  # many threads: the wall's clock is behind
        (Spent(0.0, 0.0, COPY_S, is_half_full=True), True),
    ],
)
def test_generations_take_a_share_of_the_time(spent: Spent, is_due: bool) -> None:
    assert due(5, 3, spent, is_behind=False) == (5 + AHEAD if is_due else None)


def test_a_step_is_announced_until_all_have_begun_it() -> None:
    spent = Spent(ENOUGH_S, 0.0, COPY_S)
    assert [due(5, said, spent, is_behind=False) for said in (7, 6, 5)] == [None] * 3
    assert due(5, 4, spent, is_behind=False) == 7


def test_a_replacement_announces_nothing_while_it_repeats() -> None:
    assert due(5, 0, Spent(ENOUGH_S, 0.0, COPY_S), is_behind=True) is None
