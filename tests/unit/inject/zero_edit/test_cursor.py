"""The first batch of a step, for loops that draw ahead and loops that draw several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from ftrun.inject.zero_edit.cursor import Cursor


@dataclass
class Drawn:
    """An iterator over numbered batches that keeps a cursor."""

    batches: int
    cursor: Cursor = field(default_factory=Cursor)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        assert not self.cursor.has_ended
        self.cursor.drawn += 1
        if self.cursor.drawn > self.batches:
            self.cursor.has_ended = True
            raise StopIteration
        return self.cursor.drawn - 1


def as_written(drawn: Iterator[int]) -> Iterator[int]:
    yield from drawn


def one_ahead(drawn: Iterator[int]) -> Iterator[int]:
    now = next(drawn)
    for following in drawn:
        yield now
        now = following
    yield now


def steps(loop: Iterator[int], cursor: Cursor, group: int) -> list[tuple[int | None, int]]:
    """What the cursor says of each step's first batch, and which one that is."""
    found: list[tuple[int | None, int]] = []
    while True:
        batches = [batch for _, batch in zip(range(group), loop, strict=False)]
        if not batches:
            return found
        found.append((cursor.begin(), batches[0]))
        assert cursor.begin() == found[-1][0]
        cursor.commit()


@pytest.mark.parametrize("batches", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("held", [None, 0])
def test_a_loop_as_most_are(batches: int, held: int | None) -> None:
    drawn = Drawn(batches, Cursor(held=held))
    assert steps(as_written(drawn), drawn.cursor, 1) == [(n, n) for n in range(batches)]


@pytest.mark.parametrize("batches", [1, 2, 3, 7, 12])
def test_a_loop_that_draws_one_ahead(batches: int) -> None:
    drawn = Drawn(batches)
    found = steps(one_ahead(drawn), drawn.cursor, 1)
    assert [batch for _, batch in found] == list(range(batches))
    is_unclear = batches == 2  # its second step is its last one, and might be a smaller one
    assert found == ([(0, 0), (None, 1)] if is_unclear else [(n, n) for n in range(batches)])
    assert drawn.cursor.is_over
    known = Drawn(batches, Cursor(held=1))  # from the epoch before
    assert steps(one_ahead(known), known.cursor, 1) == [(n, n) for n in range(batches)]


@pytest.mark.parametrize("loop", [as_written, one_ahead])
def test_batches_that_are_thrown_away_before_the_first_step(
    loop: Callable[[Iterator[int]], Iterator[int]],
) -> None:
    """A script starts its loader's workers so."""
    drawn = Drawn(9)
    for _ in range(2):
        next(drawn)
        assert drawn.cursor.is_unused
        drawn.cursor.drop()
    found = steps(loop(drawn), drawn.cursor, 1)
    assert found == [(n, n) for n in range(2, 9)]
    assert not drawn.cursor.is_unused and drawn.cursor.is_over


def accumulating(loop: Iterator[int], cursor: Cursor, group: int) -> list[tuple[int | None, int]]:
    """A forward pass after each draw, a step after ``group`` of them."""
    found: list[tuple[int | None, int]] = []
    for number, batch in enumerate(loop):
        first = cursor.begin()
        if number % group == 0:
            found.append((first, batch))
        if (number + 1) % group == 0:
            cursor.commit()
    return found


@pytest.mark.parametrize("ahead", [as_written, one_ahead])
def test_accumulated_gradients(ahead: type) -> None:
    drawn = Drawn(12)
    assert accumulating(ahead(drawn), drawn.cursor, 4) == [(0, 0), (4, 4), (8, 8)]


def test_a_batch_that_is_drawn_in_the_step_before() -> None:
    drawn = Drawn(6)
    cursor = drawn.cursor
    next(drawn)
    for number in range(5):
        assert cursor.begin() == number
        assert cursor.is_drawn_early
        next(drawn)
        cursor.commit()
    following = Drawn(6)
    next(following)
    following.cursor.commit()  # of the last epoch's last step
    assert following.cursor.is_drawn_early
    assert following.cursor.begin() == 0


def test_a_step_whose_batches_are_drawn_between_its_passes_and_one_without_draws() -> None:
    """Seen in a script that trains two models in turns: it was taken for one that draws ahead."""
    drawn = Drawn(12)
    for turn in range(4):
        for number in range(3):
            next(drawn)
            assert drawn.cursor.begin() == (3 * turn if turn else 0)
            assert number or drawn.cursor.held in (None, 0)
        drawn.cursor.commit()
        for _ in range(2):
            drawn.cursor.begin()
            drawn.cursor.commit()
    assert drawn.cursor.held == 0


def test_a_batch_that_is_drawn_between_two_passes_of_the_step_before() -> None:
    drawn = Drawn(9)
    next(drawn)
    found = []
    for _ in range(8):
        found.append(drawn.cursor.begin())
        next(drawn)
        drawn.cursor.begin()
        drawn.cursor.commit()
    assert found == [0, None, 2, 3, 4, 5, 6, 7], "the second step does not show it"


def test_a_step_whose_batches_come_from_another_line_shows_nothing() -> None:
    drawn = Drawn(12)
    for is_other in (False, True, False, True):
        for _ in range(1 if is_other else 3):
            next(drawn)
        first = drawn.cursor.begin(learns=not is_other)
        drawn.cursor.commit()
    assert drawn.cursor.held == 0 and first == 7


def test_several_steps_with_one_batch() -> None:
    drawn = Drawn(3)
    for batch in drawn:
        assert drawn.cursor.begin() == batch
        drawn.cursor.commit()
        drawn.cursor.begin()
        assert not drawn.cursor.is_drawn_early
        drawn.cursor.commit()


def test_it_is_set_to_another_place() -> None:
    cursor = Cursor()
    cursor.set_to(7)
    loop = one_ahead(Drawn(12, cursor))
    assert steps(loop, cursor, 1) == [(n, n) for n in range(7, 12)]


def test_the_step_under_way_is_moved() -> None:
    drawn = Drawn(20)
    loop = one_ahead(drawn)
    for _ in range(3):
        next(loop)
        cursor = drawn.cursor
        cursor.begin()
        cursor.commit()
    next(loop)
    assert drawn.cursor.begin() == 3 and drawn.cursor.ahead == 2
    drawn.cursor.move(10)
    assert (drawn.cursor.first, drawn.cursor.drawn) == (10, 12)
    drawn.cursor.commit()
    next(loop)
    assert drawn.cursor.begin() == 11


def test_an_iterator_of_one_batch_is_over_when_its_end_is_found() -> None:
    """Seen: a loop over it had a place at its first step only, so that nobody could join."""
    drawn = Drawn(1)
    for _ in drawn:
        drawn.cursor.begin()
        drawn.cursor.commit()
        assert not drawn.cursor.is_over
    assert drawn.cursor.is_over


def test_one_batch_that_was_drawn_ahead_of_its_step_is_not_over() -> None:
    drawn = Drawn(1)
    for _ in one_ahead(drawn):
        drawn.cursor.begin()
        assert not drawn.cursor.is_over
        drawn.cursor.commit()
    assert drawn.cursor.is_over
