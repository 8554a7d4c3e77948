"""When each value has changed last."""

from __future__ import annotations

import math

from ftrun.inject.zero_edit.values.changes import Changes, copied, differing

MAIN, EPOCH = "train.py:main", "train.py:epoch"


def test_the_step_of_the_last_change() -> None:
    changes = Changes()
    changes.begin([(MAIN, {"step": 0, "bad": 0, "rank_like": 1, "best": math.nan})])
    now = {"step": 3, "bad": 1, "rank_like": 1, "best": float("nan")}
    assert changes.note([(MAIN, now)], 3) == {MAIN: {"step": 3, "bad": 1}}
    assert changes.note([(MAIN, now)], 4) == {}
    assert changes.note([(MAIN, {**now, "bad": 0, "new": None})], 5) == {
        MAIN: {"bad": 0, "new": None}
    }
    assert changes.steps == {MAIN: {"step": 3, "bad": 5, "new": 5}}
    assert changes.changed([(MAIN, {"step": 3, "bad": 0, "rank_like": 1})]) == {
        MAIN: {"step": 3, "bad": 0}  # also what is again as it was first
    }


def test_a_function_that_is_called_later_has_changed() -> None:
    changes = Changes()
    changes.begin([(MAIN, {"a": 1})])
    assert changes.note([(EPOCH, {"i": 0}), (MAIN, {"a": 1})], 2) == {EPOCH: {"i": 0}}
    assert changes.known() == {EPOCH: {"i": (0, 2)}}


def test_of_a_function_that_calls_itself_the_innermost_counts() -> None:
    changes = Changes()
    changes.begin([(MAIN, {"a": 1}), (MAIN, {"a": 9})])
    assert changes.note([(MAIN, {"a": 1}), (MAIN, {"a": 10})], 1) == {}
    assert changes.note([(MAIN, {"a": 2}), (MAIN, {"a": 10})], 2) == {MAIN: {"a": 2}}
    assert changes.changed([(MAIN, {"a": 2}), (MAIN, {"a": 10})]) == {MAIN: {"a": 2}}


def test_the_steps_of_others_are_kept() -> None:
    changes = Changes()
    changes.begin([(MAIN, {"best": 0.5, "step": 7})])
    changes.adopt({MAIN: {"best": 4, "step": 7}})
    assert changes.note([(MAIN, {"best": 0.5, "step": 8})], 8) == {MAIN: {"step": 8}}
    assert (changes.step_of(MAIN, "best"), changes.step_of(MAIN, "other")) == (4, -1)
    assert copied(changes.steps, 7) == {MAIN: {"best": 4, "step": 7}}


def test_values_differ_also_by_their_type() -> None:
    first = {"rank": 1, "step": 0, "flag": False}
    now = {"rank": 1, "step": 5, "flag": 0, "new": 2}
    assert differing(first, now) == {"step": 5, "flag": 0, "new": 2}
