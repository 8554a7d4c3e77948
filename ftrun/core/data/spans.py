"""Positions of an epoch as spans: disjoint half-open intervals, in order.

Not here: which positions belong to which replica (plan.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Span = tuple[int, int]
Spans = tuple[Span, ...]


def length(spans: Spans) -> int:
    return sum(stop - start for start, stop in spans)


def positions(spans: Spans) -> Iterator[int]:
    for start, stop in spans:
        yield from range(start, stop)


def cut(spans: Spans, first: int, stop: int) -> Spans:
    """The positions from the ``first``-th up to, not including, the ``stop``-th; fewer at the
    end.
    """
    found = []
    passed = 0
    for begin, end in spans:
        low, high = max(begin, begin + first - passed), min(end, begin + stop - passed)
        if low < high:
            found.append((low, high))
        passed += end - begin
    return tuple(found)


def merged(spans: Iterable[Span]) -> Spans:
    """Disjoint spans in order, with neighbours joined."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return tuple(found)


def without(spans: Spans, removed: Iterable[Span]) -> Spans:
    """``spans`` less ``removed``, which lie inside them."""
    left: list[Span] = []
    gone = iter(sorted(removed))
    gap = next(gone, None)
    for begin, stop in merged(spans):
        start = begin
        while gap is not None and gap[0] < stop:
            left.append((start, gap[0]))
            start = gap[1]
            gap = next(gone, None)
        left.append((start, stop))
    return merged(left)


def shares(total: int, parts: int) -> list[int]:
    """``total`` divided into ``parts`` that differ by one at most; the first ones are larger."""
    least, more = divmod(total, parts)
    return [least + (index < more) for index in range(parts)]


def divided(spans: Spans, sizes: Sequence[int]) -> list[Spans]:
    """Consecutive parts of these sizes; fewer positions at the end. One pass for any number."""
    left = list(reversed(spans))
    found = []
    for size in sizes:
        part: list[Span] = []
        missing = size
        while missing and left:
            start, stop = left.pop()
            end = min(stop, start + missing)
            part.append((start, end))
            missing -= end - start
            if end < stop:
                left.append((end, stop))
        found.append(tuple(part))
    return found
