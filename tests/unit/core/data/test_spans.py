"""Arithmetic on spans, compared with sets and lists of numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.data.spans import (
    Spans,
    cut,
    divided,
    length,
    merged,
    positions,
    shares,
    without,
)

numbers = st.lists(st.integers(0, 60), unique=True, max_size=30)


def spans_of(found: list[int]) -> Spans:
    return merged((x, x + 1) for x in found)


@given(numbers)
def test_spans_hold_their_positions_in_order(found: list[int]) -> None:
    spans = spans_of(found)
    assert list(positions(spans)) == sorted(found)
    assert length(spans) == len(found)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(spans)), "joined"


@given(numbers, st.integers(0, 40), st.integers(0, 40))
def test_cut_is_a_slice_of_the_list(found: list[int], first: int, stop: int) -> None:
    assert list(positions(cut(spans_of(found), first, stop))) == sorted(found)[first:stop]


@given(numbers, st.data())
def test_without_is_the_difference_of_sets(found: list[int], data: st.DataObject) -> None:
    removed = data.draw(st.lists(st.sampled_from(found), unique=True)) if found else []
    left = without(spans_of(found), spans_of(removed))
    assert list(positions(left)) == sorted(set(found) - set(removed))


@given(numbers, st.lists(st.integers(0, 12), max_size=6))
def test_divided_gives_consecutive_parts(found: list[int], sizes: list[int]) -> None:
    parts = [list(positions(part)) for part in divided(spans_of(found), sizes)]
    assert [x for part in parts for x in part] == sorted(found)[: sum(sizes)]
    assert all(len(part) <= size for part, size in zip(parts, sizes, strict=True))


def test_shares_differ_by_one_at_most() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert shares(2, 3) == [1, 1, 0]
