"""The choice of a quorum's state, checked against a deliberately dumb second implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.ids import Attempt, StateId, Tag
from ftrun.core.lighthouse.choice import (
    Choice,
    Standing,
    can_repair,
    choose,
    standing,
)
from ftrun.core.messages import Report
from ftrun.core.quorum import Endpoint
from tests.suite.properties import examples

TAG = Tag(Attempt(1, 1), 5)
OTHER_TAG = Tag(Attempt(1, 2), 5)
STATE = StateId(5, "x")

states = st.builds(StateId, st.integers(0, 3), st.sampled_from(["x", "y", "z"]))
names = st.sampled_from([str(index) for index in range(12)])


def report(state: StateId, reduced: Tag | None = None, voted: Tag | None = None) -> Report:
    return Report(state, Endpoint("h", "h:1"), reduced=reduced, voted=voted)


def test_a_group_repairs_if_all_its_workers_can_and_are_in_the_same_step() -> None:
    def mate(local_step_index: int, repairable: bool = True) -> Report:
        return Report(
            STATE, Endpoint("h", "h:1"), local_step_index=local_step_index, repairable=repairable
        )

    assert can_repair([mate(7), mate(7)], STATE)
    assert not can_repair([mate(7), mate(7, repairable=False)], STATE)
    assert not can_repair([mate(7), mate(8)], STATE)
    before = StateId(4, "y")
    ends = replace(mate(6, repairable=False), state=before, reduced=Tag(TAG.attempt, 4))
    assert can_repair([mate(7), ends], before.committed(Tag(TAG.attempt, 4)))
    assert not can_repair([mate(7), ends], STATE)
    assert not can_repair([mate(8), ends], before.committed(Tag(TAG.attempt, 4)))


# ---------------------------------------------------------------- choose


def dumb_choose(group_states: dict[str, StateId | None]) -> Choice | None:
    """Ask of every replica whether nobody is a better donor than it."""

    def beats(one: str, other: str) -> bool:
        a, b = group_states[one], group_states[other]
        if a is None or b is None:
            return b is None and a is not None
        if a.step != b.step:
            return a.step > b.step
        holders = list(group_states.values())
        if holders.count(a) != holders.count(b):
            return holders.count(a) > holders.count(b)
        return int(one) < int(other)

    for name, state in group_states.items():
        if state is not None and not any(beats(other, name) for other in group_states):
            ids = sorted(group_states, key=int)
            donors = tuple(i for i in ids if group_states[i] == state)
            return Choice(state, donors, tuple(i for i in ids if i not in donors))
    return None


@settings(max_examples=examples(500))
@given(st.dictionaries(names, st.none() | states, max_size=8))
def test_choose_agrees_with_the_dumb_one(group_states: dict[str, StateId | None]) -> None:
    assert choose(group_states) == dumb_choose(group_states)


def test_the_highest_step_wins_over_the_many() -> None:
    low, high = StateId(4, "x"), StateId(5, "y")
    choice = choose({"0": low, "1": low, "2": high})
    assert choice == Choice(high, donors=("2",), newcomers=("0", "1"))


def test_of_equal_steps_the_lineage_that_most_hold_wins() -> None:
    x, y = StateId(5, "x"), StateId(5, "y")
    choice = choose({"0": x, "1": y, "2": y})
    assert choice == Choice(y, donors=("1", "2"), newcomers=("0",))


def test_of_equal_crowds_the_lowest_replica_wins() -> None:
    x, y = StateId(5, "x"), StateId(5, "y")
    choice = choose({"10": x, "9": y})
    assert choice == Choice(y, donors=("9",), newcomers=("10",))


def test_there_is_no_choice_without_a_whole_state() -> None:
    assert choose({"0": None, "1": None}) is None
    assert choose({}) is None


# ---------------------------------------------------------------- standing

BEFORE = StateId(5, "x")


def in_step(handed: int, done: int, under: Tag | None = TAG, **more: Any) -> Report:
    here = Endpoint("h", "h:1")
    return replace(
        Report(BEFORE, here, under=under, handed=handed, done=done, local_step_index=6), **more
    )


NONE, ONE, TWO = in_step(0, 0), in_step(1, 1), in_step(2, 2)
SEEN, UNSEEN = in_step(1, 2), in_step(0, 2)
VOTED = in_step(2, 2, reduced=TAG, voted=TAG)


@pytest.mark.parametrize(
    ("groups", "kept"),
    [
        ([[NONE, TWO], [NONE, TWO]], (0, 2)),
        ([[TWO, ONE], [TWO, SEEN]], (2, 1)),
        ([[UNSEEN, TWO], [SEEN, TWO]], (1, 2)),
        ([[ONE], [UNSEEN]], (1,)),
        ([[UNSEEN], [NONE]], None),  # nobody has seen any: all of it goes out again
        ([[ONE, TWO], [NONE, TWO]], None),
        ([[VOTED, TWO], [TWO, VOTED]], (2, 2)),
        ([[VOTED, VOTED], [TWO, TWO]], None),  # it is over: this group may commit it
        ([[ONE, TWO], [ONE, in_step(2, 2, OTHER_TAG)]], None),
        ([[ONE, NONE], [ONE, in_step(0, 1, OTHER_TAG)]], (1, 0)),  # nobody has seen that
        ([[ONE, TWO], [in_step(0, 1, OTHER_TAG), TWO]], None),
        ([[ONE, TWO], [ONE, in_step(0, 0, None)]], None),
        ([[ONE, TWO], [ONE, in_step(2, 2, refused_tries=1)]], None),
        ([[ONE, TWO], [ONE, in_step(2, 2, local_step_index=7)]], None),
        ([[ONE, TWO], [ONE, in_step(2, 2, state=BEFORE.committed(TAG))]], None),
    ],
)
def test_what_stands_of_a_step(groups: list[list[Report]], kept: tuple[int, ...] | None) -> None:
    found = standing([dict(enumerate(group)) for group in groups])
    assert found == (None if kept is None else Standing(BEFORE, TAG.attempt, kept))
