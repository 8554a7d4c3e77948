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
    is_back,
    missing,
    needed_from,
    next_step,
    others_are_ahead,
    source,
)


def board(number: int, published: list[int]) -> Board:
    return Board(number, published, [{0: 5, 1: 9}, {0: 7, 2: 4}], [False, False])


def test_a_decree_is_cut_published_awaited_and_connected_in_this_order() -> None:
    assert next_step(board(1, [0, 0]), 0, cut=0, group=0) is Step.CUT
    assert next_step(board(1, [0, 0]), 0, cut=1, group=-1) is Step.PUBLISH
    assert next_step(board(1, [1, 0]), 0, cut=1, group=-1) is Step.WAIT
    assert missing(board(1, [1, 0])) == [1]
    assert next_step(board(1, [1, 1]), 0, cut=1, group=-1) is Step.CONNECT
    assert in_all_logs(board(1, [1, 1]).done) == {0: 5, 1: 9, 2: 4}
    assert next_step(board(1, [1, 1]), 0, cut=1, group=1) is Step.GO_ON


def test_a_newer_decree_begins_with_a_cut() -> None:
    assert next_step(board(2, [1, 1]), 0, cut=1, group=1) is Step.CUT


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


def test_all_calls_from_the_first_ones_on_are_issued_again_in_the_program_s_order() -> None:
    first, kept = {0: 3, 1: 1, 2: 0}, [(0, 2), (1, 0), (0, 3), (1, 1), (0, 4)]
    assert again(first, {0: 5, 1: 2}, kept) == [(0, 3), (1, 1), (0, 4)]
    assert again(first, {0: 5, 1: 2}, kept[:-1]) is Fall.INPUT
    assert again(first, {0: 3, 1: 1}, kept[:2]) == []
    assert again(first, {0: 0, 1: 0}, []) == []  # a replacement that has not begun


def test_others_are_ahead_that_have_a_result_of_a_call_not_begun_here() -> None:
    begun = {0: 10, 1: 2}
    assert not others_are_ahead(begun, [{0: 10, 1: 2}, {0: 10, 2: 9}, {0: 7}])
    assert others_are_ahead(begun, [{0: 10, 1: 2}, {0: 11, 2: 9}, {0: 7}])
    assert others_are_ahead(begun, [{0: 12, 1: 2}, {0: 10}])  # its own log


def test_a_replacement_is_back_at_the_first_call_of_each_of_its_groups() -> None:
    first = {0: 3, 1: 1, 2: 8}
    assert is_back(first, {0: 3, 1: 2})
    assert not is_back(first, {0: 4, 1: 0})


def made(number: int, calls: dict[int, int], before: dict[int, int] | None = None) -> Generation:
    return Generation(number, number, calls, before or calls)


def test_a_replacement_begins_before_the_first_call_of_each_group() -> None:
    known = [made(x, {0: 10 * x, 1: x}) for x in (2, 3, 1)]
    logs = [Logged(33, 37), Logged(22, 33), Logged(11, 22)]
    done = {0: 33, 1: 4}
    assert begin(known, logs, [{0: 30, 2: 0}, done], 1) == known[1]
    assert begin(known, logs, [{0: 29}, done], 1) == known[0]
    assert begin(known, logs, [{0: 30}, done, {1: 2}], 1) == known[0]
    assert begin(known, logs, [{0: 20}, done, {1: 1}], 1) == known[2]


def test_the_log_must_have_the_calls_from_the_place_to_the_copy() -> None:
    known, done = [made(3, {0: 30, 1: 2}, {0: 29, 1: 1})], [{0: 33, 1: 2}] * 2
    assert begin(known, [Logged(30, 35)], done, 1) == known[0]
    assert begin(known, [Logged(31, 35)], done, 1) is Fall.LOG_FULL
    assert begin(known, [Logged(30, 35)], done, 1, [0, 0]) == known[0]
    assert begin(known, [Logged(30, 35)], done, 1, [4, 0]) is Fall.LOG_FULL, "another's"


def test_why_a_replacement_cannot_begin() -> None:
    third, second = made(3, {0: 30}), made(2, {0: 20})
    done = {0: 33}
    assert begin([], [], [{0: 0}, {0: 0}], 0) is Fall.NO_GENERATION
    assert begin([third], [Logged(30, 33)], [{0: 29}, done], 1) is Fall.TOO_NEW
    assert begin([third], [Logged(30, 32)], [done, done], 1) is Fall.LOG_FULL
    assert begin([third], [Logged(31, 33)], [done, done], 1) is Fall.LOG_FULL
    assert begin([second, third], [Logged(30, 33)], [{0: 29}, done], 1) is Fall.TOO_NEW


def test_all_begin_again_at_the_newest_step_at_whose_begin_all_have_a_generation() -> None:
    def at(number: int, step: int, before: dict[int, int]) -> Generation:
        return Generation(number, step, {}, before)

    first = [at(2, 5, {0: 20}), at(3, 6, {0: 30, 1: 4})]
    other = [at(7, 6, {0: 30}), at(6, 5, {0: 20}), at(8, 7, {0: 40})]
    assert common([first, other]) == 6  # each counts its own
    assert common([first, [*other, at(9, 6, {0: 31})]]) == 5  # that is another step
    assert common([first, other], until=5) == 5, "what came later is not sound"
    assert common([first, other], until=4) is None
    assert common([first, [at(8, 7, {0: 40})]]) is None
    assert common([first, []]) is None


def test_all_begin_again_where_their_logs_have_what_their_states_show() -> None:
    def at(step: int, place: int, copied: int) -> Generation:
        return Generation(step, step, {0: copied}, {0: place})

    one, other = [at(5, 20, 20), at(6, 30, 32)], [at(5, 20, 20), at(6, 30, 32)]
    whole = [Logged(18, 32)]
    assert common([one, other], [whole, [Logged(30, 40)]]) == 6
    assert common([one, other], [whole, [Logged(30, 31)]]) == 5
    assert common([one, other], [whole, [Logged(31, 40)]]) == 5
    assert common([one, other]) == 6, "the states go where no log is"
    assert common([one, [*other[:1], at(6, 30, 31)]], [whole, whole]) == 5, "not one and the same"
