"""Which columns have room, and their widths."""

from __future__ import annotations

from ftrun.tools.status.screen.layout import Column, widths

COLUMNS = (
    Column("name", 4, 0, None, most=20, eager=True),
    Column("node", 6, 2, None, most=9),
    Column("step", 5, 1, None),
)


def test_all_that_fit_are_there_in_their_order_and_share_the_rest() -> None:
    assert widths(COLUMNS, (6, 12, 5), 40) == {0: 6, 1: 12, 2: 5}
    assert widths(COLUMNS, (6, 12, 5), 24) == {0: 6, 1: 7, 2: 5}


def test_the_highest_rank_is_left_out_first() -> None:
    assert widths(COLUMNS, (6, 9, 5), 22) == {0: 6, 2: 5}
    assert widths(COLUMNS, (6, 9, 5), 12) == {0: 6}


def test_an_eager_one_gets_what_it_wants_before_the_others() -> None:
    assert widths(COLUMNS, (14, 9, 5), 24) == {0: 14, 2: 5}


def test_one_is_always_there() -> None:
    assert widths(COLUMNS, (6, 9, 5), 1) == {0: 6}
