"""Workers of a group that hold the same parameters: which differ, since when, and what is left."""

from __future__ import annotations

from itertools import permutations

import pytest

from ftrun.core.replay.alike import NEVER, Unlike, unlike
from ftrun.core.replay.settling import Generation, Mark, are_alike, common

DDP = 7


def rank(*parameters: int, mates: int = DDP, settings: int = 1, first: int = 0) -> list[Generation]:
    """A worker's generations of every 10th step, from ``first`` on; 0: one without a mark."""
    return [
        Generation(first + at, (first + at) * 10, mark=Mark(mates, x, settings) if x else None)
        for at, x in enumerate(parameters)
    ]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(1, 2, 3), rank(1, 2, 3)], None),
        ([rank(1, 2, 3), rank(1, 2, 4)], Unlike(20, 10, (), (0, 1))),
        ([rank(1, 2, 3), rank(1, 2, 4), rank(1, 2, 3)], Unlike(20, 10, (1,), (0, 1, 2))),
        ([rank(1, 2, 3), rank(1, 2, 4), rank(1, 2, 5)], Unlike(20, 10, (), (0, 1, 2))),
        ([rank(1, 2, 3, 9), rank(1, 2, 4, 8)], Unlike(20, 10, (), (0, 1))),  # the first step
        ([rank(1, 2, 3), rank(1, 2)], None),  # the other one writes it
        ([rank(1, 2, 3), rank(1, 2, 0)], None),  # it has taken no mark
        ([rank(1, 2, 3, first=1), rank(1, 2, 4)], Unlike(10, NEVER, (), (0, 1))),
        (
            [rank(1, 2), rank(1, 3)],
            Unlike(10, NEVER, (), (0, 1)),
        ),  # the first is no proof
        ([rank(5, 6, mates=1), rank(5, 6, mates=1), rank(7, 8, mates=2)], None),
        ([rank(1, 2, 3), rank(1, 2, 4, settings=2)], None),  # the script trains them unlike
        ([rank(0, 0), rank(0, 0)], None),
        ([], None),
    ],
)
def test_those_that_were_equal_and_differ_are_named(
    ranks: list[list[Generation]], expected: Unlike | None
) -> None:
    assert unlike(ranks) == expected


def test_after_unlike_settings_nothing_is_known_to_have_been_equal() -> None:
    ranks = [rank(1, 2, 3, 4), [*rank(1, 2), *rank(5, settings=2, first=2), *rank(6, first=3)]]
    assert unlike(ranks) == Unlike(30, NEVER, (), (0, 1))


def test_mates_elsewhere_in_the_mesh_have_other_parameters() -> None:
    """Two replicas of two shards: workers 0 and 2 hold the same, and 1 and 3."""
    ranks = [rank(1, 2, 3), rank(5, 6, 7, mates=8), rank(1, 2, 3), rank(5, 6, 8, mates=8)]
    assert unlike(ranks) == Unlike(20, 10, (), (1, 3))


def test_a_step_at_which_they_differ_is_no_place_to_resume_from() -> None:
    ranks = [rank(1, 2, 3), rank(1, 2, 4), rank(1, 2, 3)]
    for order in permutations(ranks):
        assert common(order) == 10
    assert common([rank(1, 2, 3), rank(1, 2, 3)]) == 20
    assert common([rank(1, 2, 0), rank(1, 2, 4)]) == 20
    assert common([rank(1, 2, 3), rank(1, 2, 4, settings=2)]) == 20


def test_only_what_should_be_equal_is_compared() -> None:
    assert are_alike([Mark(1, 5, 0), Mark(1, 5, 0), Mark(2, 6, 0), None])
    assert not are_alike([Mark(1, 5, 0), Mark(1, 6, 0)])
    assert are_alike([Mark(1, 5, 0), Mark(1, 6, 1)])
