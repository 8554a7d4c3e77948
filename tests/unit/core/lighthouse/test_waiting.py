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


@given(
    st.sets(st.sampled_from("012"), min_size=1),
    st.lists(st.tuples(st.sampled_from("0123"), st.integers(0, 1), st.sampled_from("alr"))),
)
def test_a_word_that_an_answer_comes_later_must_be_repeated(
    expected: set[str], said: list[tuple[str, int, str]]
) -> None:
    waiting = Waiting()
    waiting.expect(expected, 2)
    left = {(name, rank) for name in expected for rank in range(2)}
    later: set[tuple[str, int]] = set()
    fresh: set[tuple[str, int]] = set()
    for name, rank, what in said:
        if what == "a":
            waiting.answer(name, rank)
            left.discard((name, rank))
        elif what == "l":
            waiting.put_off(name, rank)
            later |= {(name, rank)} & left
            fresh |= {(name, rank)} & left
        else:
            assert waiting.ask_again(9.0) == tuple(sorted({name for name, _ in left}))
            fresh.clear()
        assert waiting.unheard() == tuple(sorted({name for name, _ in left - later}))
        assert waiting.overdue() == tuple(sorted({name for name, _ in left - fresh}))
        assert waiting.is_put_off == bool(left & later)
