"""Who counts in a step: the same answer at every member, without asking (C4)."""

from __future__ import annotations

import pytest

from ftrun.core.quorum import contributors
from tests.unit.core.worker.step_script import quorum_of

QUORUM = quorum_of("1.1#1", "5/A", "0 1 2 10", "1 10")


def test_newcomers_add_zeros_in_the_first_step() -> None:
    assert contributors(QUORUM, step=5) == (0, 2)


def test_everybody_counts_from_the_second_step_on() -> None:
    assert contributors(QUORUM, step=6) == (0, 1, 2, 3)


def test_who_heals_before_the_forward_pass_counts_at_once() -> None:
    assert contributors(QUORUM, step=5, heal_first=True) == (0, 1, 2, 3)


def test_at_step_0_everybody_heals_before_the_forward_pass() -> None:
    assert contributors(quorum_of("1.1#1", "0/A", "0 1 2", "1 2"), step=0) == (0, 1, 2)


@pytest.mark.parametrize(
    ("step", "at_most", "ranks"),
    [(5, 1, (0,)), (5, 2, (0, 2)), (5, 3, (0, 2)), (6, 3, (0, 1, 2)), (6, 9, (0, 1, 2, 3))],
)
def test_the_rest_are_spares(step: int, at_most: int, ranks: tuple[int, ...]) -> None:
    assert contributors(QUORUM, step, at_most=at_most) == ranks


def test_the_members_are_the_same_until_one_joins_or_leaves() -> None:
    again = quorum_of("2.7#3", "9/A", "0 1 2 10", "2")  # another lighthouse, and 2 heals
    assert QUORUM.has_same_members(again)
    assert not QUORUM.has_same_members(quorum_of("1.1#2", "6/A", "0 1 2", ""))
