"""What is logged of each kind of call."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.core.ids import Attempt
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import (
    CALLED,
    Keeps,
    Misses,
    begins,
    free_parts,
    is_in_vain,
    is_of_one_size,
    is_over,
    keeps,
    may_be_made,
    may_take,
    needed,
    of_all,
    roomy,
)
from ftrun.core.replay.settling import Generation, Logged


@pytest.mark.parametrize(
    ("kind", "root", "other"),
    [
        ("allreduce", Keeps.ALIKE, Keeps.ALIKE),
        ("_allgather_base", Keeps.INPUT, Keeps.INPUT),
        ("broadcast", Keeps.ALIKE, Keeps.ALIKE),
        ("gather", Keeps.RESULT, Keeps.NOTHING),
        ("scatter", Keeps.RESULT, Keeps.RESULT),
        ("barrier", Keeps.NOTHING, Keeps.NOTHING),
        ("send", None, None),
    ],
)
def test_what_is_logged(kind: str, root: Keeps | None, other: Keeps | None) -> None:
    assert keeps(kind, is_root=True) is root
    assert keeps(kind, is_root=False) is other


def test_members_may_give_unlike_sizes_to_a_gather() -> None:
    assert is_of_one_size("allreduce") and is_of_one_size("broadcast")
    assert not is_of_one_size("gather") and not is_of_one_size("_allgather_base")


def test_each_reason_has_words_and_a_number_that_is_not_0() -> None:
    assert all(reason.words and reason for reason in Fall)
    assert len({reason.words for reason in Fall}) == len(Fall)
    assert Fall.CALL.because("") == Fall.CALL.words
    assert Fall.CALL.because("send at a.py:3") == f"{Fall.CALL.words} (send at a.py:3)"
    assert Fall.SCRIPT.because("no loader") == "ftrun cannot follow this script: no loader"


def test_ranks_take_turns_in_what_is_alike() -> None:
    assert [of_all(call, (1, 4, 5)) for call in range(5)] == [1, 4, 5, 1, 4]


def test_a_log_begins_where_nothing_is() -> None:
    assert free_parts([], 9) == [(0, 9)]
    free = free_parts([(6, 8), (0, 2)], 9)
    assert free == [(0, 0), (2, 6), (8, 9)]
    assert roomy(free, 1) == roomy(free, 4) == (2, 6)
    assert roomy(free, 5) == (2, 6), "the largest"
    assert roomy([(0, 2), (3, 9)], 2) == (0, 2), "the first one, if it just fits"
    assert roomy([(5, 6), (7, 9)], 2) == (7, 9)


def at(place: int, copied: int) -> Generation:
    return Generation(0, 0, {1: copied}, {1: place})


def test_no_generation_is_made_after_calls_that_a_full_log_lacks() -> None:
    assert may_be_made(whole_from=3, since=3, begun=5)
    assert may_be_made(whole_from=None, since=5, begun=5), "no call is between place and copy"
    assert not may_be_made(whole_from=None, since=3, begun=4)
    assert not may_be_made(whole_from=4, since=3, begun=4)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_log_begins_at_the_place_of_a_step_that_is_due(is_full: bool) -> None:
    logs, made = [Logged(0, 4), Logged(4, 9)], [at(0, 0), at(5, 6)]
    fine: dict[str, Any] = {"begun": 9, "is_full": is_full, "is_behind": False, "spans": False}
    assert begins(logs, made, **fine)
    assert not begins(logs, made, **{**fine, "is_behind": True})
    assert begins(logs, made, **{**fine, "spans": True}) is not is_full
    assert begins(logs, made[:1], **fine) is is_full, "unused"
    assert begins(logs, [at(4, 4)], **fine), "at its first call"
    assert begins([], [], **fine) is is_full


def test_a_replacement_goes_on_in_the_log_that_its_predecessor_has_begun() -> None:
    made = [at(0, 0), at(4, 6)]
    fine: dict[str, Any] = {"begun": 4, "is_full": False, "is_behind": False, "spans": False}
    assert begins([Logged(0, 4)], made, **fine)
    assert not begins([Logged(0, 4), Logged(4, 4)], made, **fine)
    assert not begins([Logged(0, 4), Logged(4, 5)], made, **fine), "of one that is not counted"
    assert begins([Logged(0, 4), Logged(4, 4)], made, **{**fine, "is_full": True})


def test_of_a_log_with_a_gap_what_all_that_begin_again_need_is_kept() -> None:
    log = Logged(10, 20)
    assert needed(log, [at(12, 15)]) == 5
    assert needed(log, [at(12, 15), at(17, 18)]) == 8
    assert needed(log, [at(12, 12), at(9, 13), at(19, 21)]) == 0


def test_steps_that_are_due_are_missed_three_times_in_a_row_at_most() -> None:
    misses = Misses()
    fine = {"is_logged": True, "is_known": True, "is_settled": True}
    lacking = {"is_logged": Fall.LOG_FULL, "is_known": Fall.SCRIPT, "is_settled": Fall.IN_FLIGHT}
    for name, why in lacking.items():
        for row in range(1, 5):
            assert misses.look(**{**fine, name: False}) is why
            assert misses.are_too_many is (row == 3)
        assert misses.look(**fine) is None and not misses.are_too_many


def test_what_is_kept_is_in_vain_once_a_log_of_the_same_generation_is_full() -> None:
    assert is_in_vain([0, 4, 0], [1, 3])
    assert not is_in_vain([0, 4, 0], [3, 5]), "a rank that has a newer one goes on"
    assert not is_in_vain([0, 0, 0], [])


def test_a_log_is_over_when_nobody_begins_at_its_generation() -> None:
    assert is_over([3, 6], 7, [6, 3])
    assert not is_over([3, 6], 7, [6, 2]), "one has no newer generation"
    assert not is_over([3, 6], 6, [6, 6]), "another may be in the step before"
    assert not is_over([3], 7, [6, 6])


def test_of_which_calls_all_members_give_as_much() -> None:
    alike = [kind for kind in CALLED if is_of_one_size(kind)]
    assert alike == ["allreduce", "allreduce_coalesced", "broadcast"]
    assert all(keeps(kind, is_root=True) for kind in CALLED[1:])


def test_a_result_of_another_replica_is_taken_if_no_quorum_can_rely_on_its_absence() -> None:
    in_force, later = Attempt(3, 4), Attempt(3, 5)
    assert may_take(in_force, in_force)
    assert may_take(later, in_force)  # the other replica knew more
    assert not may_take(in_force, later)
