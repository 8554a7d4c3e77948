"""What a process of a group does at a decree, and where a replacement begins."""

from __future__ import annotations

import pytest

from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import (
    Board,
    Generation,
    Logged,
    Source,
    Step,
    again,
    begin,
    common,
    in_all_logs,
    missing,
    needed_from,
    next_step,
    source,
)


def board(number: int, published: list[int], over: tuple[bool, bool] = (False, False)) -> Board:
    return Board(number, published, [5, 7], list(over))


def test_a_decree_is_cut_published_awaited_and_connected_in_this_order() -> None:
    assert next_step(board(1, [0, 0]), 0, cut=0, group=0) is Step.CUT
    assert next_step(board(1, [0, 0]), 0, cut=1, group=-1) is Step.PUBLISH
    assert next_step(board(1, [1, 0]), 0, cut=1, group=-1) is Step.WAIT
    assert missing(board(1, [1, 0])) == [1]
    assert next_step(board(1, [1, 1]), 0, cut=1, group=-1) is Step.CONNECT
    assert in_all_logs(board(1, [1, 1]).done) == 5
    assert next_step(board(1, [1, 1]), 0, cut=1, group=1) is Step.GO_ON


def test_a_newer_decree_begins_with_a_cut() -> None:
    assert next_step(board(2, [1, 1]), 0, cut=1, group=1) is Step.CUT


def test_all_leave_when_all_scripts_are_over() -> None:
    assert next_step(board(1, [1, 0], (True, True)), 0, cut=1, group=-1) is Step.LEAVE
    assert next_step(board(1, [1, 0], (True, False)), 0, cut=1, group=-1) is Step.WAIT


@pytest.mark.parametrize(
    ("call", "first", "is_open", "expected"),
    [
        (4, None, False, Source.LOG),
        (5, None, False, Source.WAIT),
        (3, 4, False, Source.LOG),
        (4, 4, False, Source.WAIT),  # although all have it: the group may be in force elsewhere
        (4, 4, True, Source.LIVE),
    ],
)
def test_where_a_result_comes_from(
    call: int, first: int | None, is_open: bool, expected: Source
) -> None:
    assert source(call, first, [5, 7], is_open=is_open) is expected


def test_inputs_are_needed_until_all_have_the_result() -> None:
    assert needed_from(None, [5, 7], is_open=False) == 5
    assert needed_from(4, [5, 7], is_open=False) == 4
    assert needed_from(4, [5, 7], is_open=True) == 5


def test_all_calls_from_the_first_one_on_are_issued_again() -> None:
    assert again(3, 6, {2, 3, 4, 5}) == [3, 4, 5]
    assert again(6, 6, {5}) == []
    assert again(6, 0, set()) == []  # a replacement that has not begun
    assert again(3, 6, {4, 5}) is Fall.INPUT


def test_a_replacement_begins_before_the_first_call() -> None:
    known = [Generation(2, 20), Generation(3, 30), Generation(1, 10)]
    logs = [Logged(30, 33), Logged(20, 30), Logged(10, 20)]
    assert begin(known, logs, [30, 33], 1) == Generation(3, 30)
    assert begin(known, logs, [29, 33], 1) == Generation(2, 20)


def test_why_a_replacement_cannot_begin() -> None:
    assert begin([], [], [0, 0], 0) is Fall.NO_GENERATION
    assert begin([Generation(3, 30)], [Logged(30, 33)], [29, 33], 1) is Fall.TOO_NEW
    assert begin([Generation(3, 30)], [Logged(30, 32)], [33, 33], 1) is Fall.LOG_FULL
    assert begin([Generation(3, 30)], [Logged(31, 33)], [33, 33], 1) is Fall.LOG_FULL
    known = [Generation(2, 20), Generation(3, 30)]
    assert begin(known, [Logged(30, 33)], [29, 33], 1) is Fall.TOO_NEW


def test_all_begin_again_at_the_newest_call_before_which_all_have_a_generation() -> None:
    first = [Generation(2, 20), Generation(3, 30)]
    other = [Generation(7, 30), Generation(6, 20), Generation(8, 40)]  # each counts its own
    assert common([first, other]) == 30
    assert common([first, [Generation(8, 40)]]) is None
    assert common([first, []]) is None
