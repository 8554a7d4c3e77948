"""The choice of a quorum's state, checked against a deliberately dumb second implementation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.ids import Attempt, StateId, Tag
from ftrun.core.lighthouse.choice import (
    Choice,
    can_repair,
    choose,
    group_state,
    standing,
    under_way,
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

    assert can_repair([mate(7), mate(7)])
    assert not can_repair([mate(7), mate(7, repairable=False)])
    assert not can_repair([mate(7), mate(8)])


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


def test_one_worker_stands_where_its_results_will_take_it() -> None:
    assert group_state([report(STATE)]) == STATE
    assert group_state([report(STATE, reduced=TAG)]) == STATE.committed(TAG)


def test_a_vote_whose_outcome_nobody_knows_is_no_commit() -> None:
    assert group_state([report(STATE, voted=TAG), report(STATE, voted=TAG)]) == STATE


def test_all_workers_must_have_their_results() -> None:
    assert group_state([report(STATE, reduced=TAG), report(STATE, reduced=TAG)]) == (
        STATE.committed(TAG)
    )
    assert group_state([report(STATE, reduced=TAG), report(STATE)]) == STATE


def test_results_of_unlike_attempts_are_no_common_state() -> None:
    assert group_state([report(STATE, reduced=TAG), report(STATE, reduced=OTHER_TAG)]) == STATE


def test_one_has_committed_and_the_other_has_voted() -> None:
    after = STATE.committed(TAG)
    assert group_state([report(after), report(STATE, voted=TAG)]) == after
    assert group_state([report(after), report(STATE, reduced=TAG, voted=TAG)]) == after


def test_half_a_heal_is_no_state() -> None:
    assert group_state([report(StateId(9, "x")), report(StateId(0, "fresh"))]) is None


def test_a_torn_state_is_no_state() -> None:
    torn = Report(StateId(9, "x"), Endpoint("h", "h:1"), torn=True)
    assert group_state([torn]) is None
    assert group_state([report(STATE), torn]) is None
    assert choose({"0": group_state([torn]), "1": STATE}) == Choice(STATE, ("1",), ("0",))


def test_results_of_a_former_step_say_nothing() -> None:
    assert group_state([report(StateId(6, "x"), reduced=TAG)]) == StateId(6, "x")


tags = st.builds(Tag, st.builds(Attempt, st.just(1), st.integers(1, 2)), st.integers(0, 3))
reports = st.builds(report, states, st.none() | tags, st.none() | tags)


@given(st.lists(reports, min_size=1, max_size=3))
def test_a_standing_is_certain_for_every_worker(group: list[Report]) -> None:
    """Each worker holds it, or has results or a vote that lead to it; and one can prove it."""
    found = group_state(group)
    if found is None:
        return
    for one in group:
        leads = [t for t in (one.reduced, one.voted) if t is not None and t.step == one.state.step]
        assert found == one.state or found in [one.state.committed(tag) for tag in leads]
    held = any(one.state == found for one in group)
    assert held or all(one.reduced is not None for one in group)


@given(reports, st.permutations(range(3)))
def test_the_order_of_the_workers_does_not_matter(one: Report, order: list[int]) -> None:
    group = [one, report(STATE, reduced=TAG), report(STATE)]
    assert group_state([group[i] for i in order]) == group_state(group)


# ---------------------------------------------------------------- standing

BEFORE = StateId(5, "x")


def in_step(
    reduced: Tag | None = None, *, repairable: bool = False, healing: bool = False
) -> Report:
    here, index = Endpoint("h", "h:1"), 6
    return Report(
        BEFORE,
        here,
        reduced=reduced,
        repairable=repairable,
        healing=healing,
        local_step_index=index,
    )


HAS_IT, CAN, CANNOT = in_step(TAG), in_step(repairable=True), in_step()
HAS_AND_CAN = in_step(TAG, repairable=True)


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        ([[CAN, HAS_IT], [CAN, HAS_IT]], (1,)),
        ([[HAS_IT, CAN, HAS_IT], [HAS_AND_CAN, CAN, HAS_IT]], (0, 2)),
        ([[HAS_AND_CAN, HAS_IT], [CAN, HAS_IT]], (1,)),  # rank 0 repairs what only one has
        ([[CAN, HAS_IT], [CANNOT, HAS_IT]], None),
        ([[CAN, HAS_IT], [CAN, CAN]], None),
        ([[CAN, CAN], [CAN, CAN]], None),
        ([[CAN, CANNOT], [CAN, CANNOT]], None),
        ([[CAN, HAS_IT], [CAN, in_step(OTHER_TAG)]], None),
        ([[CAN, HAS_IT], [in_step(repairable=True, healing=True), HAS_IT]], None),
        ([[CAN, in_step(Tag(Attempt(1, 1), 4))], [CAN, in_step(Tag(Attempt(1, 1), 4))]], None),
    ],
)
def test_results_stand_that_all_groups_have_at_one_rank(
    groups: list[list[Report]], ranks: tuple[int, ...] | None
) -> None:
    found = standing([dict(enumerate(group)) for group in groups], BEFORE)
    assert found == (None if ranks is None else (TAG.attempt, ranks))


def test_no_results_stand_of_groups_that_are_in_different_steps() -> None:
    later = Report(BEFORE, Endpoint("h", "h:1"), repairable=True, local_step_index=7)
    assert standing([{0: later, 1: HAS_IT}, {0: CAN, 1: HAS_IT}], BEFORE) is None
    assert standing([{0: CAN, 1: HAS_IT}, {0: CAN, 1: HAS_IT}], StateId(5, "y")) is None


# ---------------------------------------------------------------- under way


VOTED = replace(HAS_IT, voted=TAG)


@pytest.mark.parametrize(
    ("groups", "goes_on"),
    [
        ([[HAS_IT, HAS_IT], [HAS_IT, HAS_IT]], True),
        ([[VOTED, HAS_IT], [HAS_IT, VOTED]], True),
        ([[VOTED, VOTED], [HAS_IT, HAS_IT]], False),  # it is over: this group may commit it
        ([[HAS_IT, CAN], [HAS_IT, HAS_IT]], False),
        ([[CAN, CAN], [CAN, CAN]], False),
        ([[HAS_IT, HAS_IT], [HAS_IT, in_step(OTHER_TAG)]], False),
        ([[HAS_IT, HAS_IT], [HAS_IT, report(BEFORE.committed(TAG))]], False),
    ],
)
def test_a_step_goes_on_whose_results_all_have_so_far(
    groups: list[list[Report]], goes_on: bool
) -> None:
    found = under_way([dict(enumerate(group)) for group in groups])
    assert found == (BEFORE if goes_on else None)
