"""Our ``range`` and ``enumerate`` are as Python's, and can be set."""

from __future__ import annotations

import builtins
import copy
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.inject.zero_edit.counting import (
    RANGES,
    Count,
    Counted,
    Enumerate,
    Numbers,
    Range,
    Ranges,
    forget,
)
from ftrun.inject.zero_edit.frames import Spot

numbers = st.integers(-20, 20)


@given(numbers, numbers, numbers.filter(bool))
def test_a_range_is_as_pythons(start: int, stop: int, step: int) -> None:
    ours, real = Range(start, stop, step), builtins.range(start, stop, step)
    assert list(ours) == list(real)
    assert len(ours) == len(real)
    assert ours == real
    assert hash(ours) == hash(real)
    assert list(reversed(ours)) == list(reversed(real))
    assert repr(ours) == repr(real)
    assert (ours.start, ours.stop, ours.step) == (start, stop, step)
    assert copy.deepcopy(ours) == real
    assert all((n in ours) == (n in real) for n in range(-25, 25))


def test_isinstance_knows_both() -> None:
    assert isinstance(Range(3), Range)
    assert isinstance(builtins.range(3), Range)
    assert isinstance(Enumerate([1]), Enumerate)
    assert not isinstance([1], Range)


def test_what_is_taken_out_asks_no_name_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``torch.distributed.reduce_op``, which warns at each use, also at isinstance()."""

    class Deprecated:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

    module = ModuleType("of_the_script")
    vars(module).update(old=Deprecated(), count=Count())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    forget()
    assert vars(module)["count"] is itertools.count


def here() -> Spot:
    """The place of the loop that ``loop`` runs, as RANGES has noted it."""
    (found,) = [spot for spot, _ in RANGES.current({"test_counting.py:loop"})]
    return found


def loop(until: int, seen: list[int], at: int, to: int) -> None:
    for number in Range(until):
        seen.append(number)
        if number == at:
            assert RANGES.current({"test_counting.py:loop"})[0][1] == at
            assert RANGES.set(here(), to)


def test_a_loop_goes_on_after_another_number() -> None:
    seen: list[int] = []
    loop(8, seen, 1, 5)
    assert seen == [0, 1, 6, 7]


def test_a_loop_goes_back_and_forth() -> None:
    seen: list[int] = []
    moves = {4: 0, 2: 6, 8: 6}
    for number in Range(0, 10, 2):
        seen.append(number)
        if number in moves:
            ((spot, _),) = RANGES.current({"test_counting.py:test_a_loop_goes_back_and_forth"})
            assert RANGES.set(spot, moves.pop(number))
    assert seen == [0, 2, 8, 8]


def test_an_iterator_is_copied_as_pythons_own() -> None:
    iterator = iter(Range(5))
    assert next(iterator) == 0
    copied = copy.copy(iterator)
    assert type(copied) is type(iter(builtins.range(5)))
    assert list(copied) == list(iterator) == [1, 2, 3, 4]


def lacking() -> None:
    for _ in Range(3):
        (spot,) = [found for found, _ in RANGES.current({"test_counting.py:lacking"})]
        assert not RANGES.set(spot, 7)
        assert not RANGES.set(Spot("other.py:f", 1), 0)


def test_a_loop_that_lacks_the_number() -> None:
    lacking()


def left_early() -> tuple[tuple[Spot, int], ...]:
    assert any(n == 1 for n in Range(5))
    assert next(n for n in Range(9) if n > 2) == 3
    for _ in Range(7):
        for _inner in Range(7):
            if _inner == 3:
                break
        return RANGES.current({"test_counting.py:left_early"})
    raise AssertionError


def test_a_loop_that_was_left_is_over() -> None:
    ((spot, number),) = left_early()
    assert number == 0, "the outer loop alone goes on"
    assert RANGES.current({"test_counting.py:left_early"}) == ()
    assert not RANGES.set(spot, 1)


def test_a_loop_of_a_generator_goes_on_while_somebody_holds_it() -> None:
    held = (number for number in Range(5))
    assert next(held) == 0 and next(held) == 1
    names = {"test_counting.py:test_a_loop_of_a_generator_goes_on_while_somebody_holds_it"}
    ((_, number),) = RANGES.current(names)
    assert number == 1
    del held
    assert RANGES.current(names) == ()


def test_enumerate_follows_jumps() -> None:
    class Jumping:
        def __iter__(self) -> Jumping:
            return self

        def __next__(self) -> str:
            for counted in Counted.drawing():
                counted.jump(10)
            return "batch"

    counted = Enumerate(Jumping(), 1)
    assert isinstance(counted, Counted)
    assert [next(counted)[0] for _ in range(3)] == [11, 22, 33]


def test_enumerate_over_a_list_is_pythons_own() -> None:
    assert type(Enumerate([5])) is builtins.enumerate
    assert list(Enumerate("ab", 3)) == [(3, "a"), (4, "b")]


def test_a_loop_that_was_left_does_not_end_and_one_at_its_last_number_does() -> None:
    loops = Ranges()

    def begin(count: int) -> Iterator[int]:
        iterator = Numbers.over(range(count))
        loops.note(iterator)
        return iterator

    left = begin(1)
    next(left)
    assert loops.one_ends()
    del left
    assert not loops.one_ends()
    inner = begin(2)
    next(inner)
    assert not loops.one_ends()
    next(inner)
    assert loops.one_ends()


def test_a_loop_is_ended_where_it_stands() -> None:
    found = []
    for number in Range(5):
        found.append(number)
        RANGES.end(lambda spot: "counting" in spot.name)
    assert found == [0]
    for number in Range(5):
        found.append(number)
        RANGES.end(lambda spot: False)
    assert found == [0, *range(5)]
