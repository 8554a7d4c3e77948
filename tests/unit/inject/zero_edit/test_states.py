"""The states of a replica in its script: the table, and that it is asserted."""

from __future__ import annotations

import pytest

from ftrun.inject.zero_edit.states import TABLE, Course, Event, State

OF_SCRIPT = (Event.DRAW, Event.PASS, Event.REDUCE, Event.STEP, Event.END)


def test_the_script_may_do_anything_at_any_time() -> None:
    for state in State:
        assert set(OF_SCRIPT) <= set(TABLE[state])


def test_each_state_can_be_come_to_and_the_end_can_be_come_to_from_most() -> None:
    found, left = {State.SET_UP}, [State.SET_UP]
    while left:
        for states in TABLE[left.pop()].values():
            left += states - found
            found |= states
    assert found == set(State)
    unending = {state for state in State if State.ENDED not in TABLE[state][Event.END]}
    assert unending == {State.PASSING, State.GHOST, State.ENDED}


def test_a_step_begins_and_ends() -> None:
    course = Course()
    assert not course.now.has_stepped
    course.goes(Event.BEGUN, State.STEPPING)
    assert course.now.has_stepped and course.now.is_in_step
    course.goes(Event.STEP, State.BETWEEN)
    assert course.now.has_stepped and not course.now.is_in_step
    course.goes(Event.END, State.ENDED)


def test_a_newcomer_passes_and_joins_before_it_has_stepped() -> None:
    course = Course()
    for event, state in (
        (Event.PASS, State.GHOST),
        (Event.STEP, State.PASSING),
        (Event.DRAW, State.JOINING),
    ):
        course.goes(event, state)
        assert not course.now.has_stepped
    course.goes(Event.BEGUN, State.STEPPING)
    course.goes(Event.PLACED, State.REPLAYING)
    assert course.now.is_alone and course.now.is_within
    course.goes(Event.STEP, State.FOLLOWING)
    assert not course.now.is_alone and course.now.is_within
    course.goes(Event.REDUCE, State.STEPPING)


def test_what_the_table_does_not_have_cannot_happen() -> None:
    course = Course()
    with pytest.raises(AssertionError, match="an optimizer steps: from set-up to between"):
        course.goes(Event.STEP, State.BETWEEN)
    with pytest.raises(AssertionError, match="set to the peers' place: from set-up to replaying"):
        course.goes(Event.PLACED, State.REPLAYING)
