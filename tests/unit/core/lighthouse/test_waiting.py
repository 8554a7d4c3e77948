"""Counters of outstanding answers: exact under repetition and in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.lighthouse.waiting import Waiting

answers = st.lists(st.tuples(st.sampled_from("0123"), st.integers(0, 2)))


@given(st.sets(st.sampled_from("012")), st.integers(1, 2), answers)
def test_it_agrees_with_a_plain_set(
    expected: set[str], workers: int, said: list[tuple[str, int]]
) -> None:
    waiting = Waiting()
    waiting.expect(expected, workers)
    left = {(name, rank) for name in expected for rank in range(workers)}
    for name, rank in said:
        waiting.answer(name, rank)
        left.discard((name, rank))
        assert waiting.done == (not left)
        assert waiting.silent() == tuple(sorted({name for name, _ in left}))


def test_whoever_is_dropped_is_not_waited_for() -> None:
    waiting = Waiting()
    waiting.expect(["10", "9", "2"], 1)
    waiting.drop("9")
    waiting.drop("7")
    assert waiting.silent() == ("2", "10")
    waiting.expect(["1"], 1)
    assert waiting.silent() == ("1",), "for nobody else"
    waiting.clear()
    assert waiting.done
