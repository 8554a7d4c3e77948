"""The uses of the job's time in bands of equal width, which doubles if there are too many bands.

So the memory is bounded however long a job runs, and no second is dropped: the sum over all bands
is the sum of the books. Not here: the books (ledger.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.core.books.uses import Use

WIDTH_FIRST = 5_000_000
BANDS_MAX = 240


class Bands:
    """Times are in microseconds. ``steps``: committed in each band."""

    def __init__(self, began: int, width: int = WIDTH_FIRST) -> None:
        self.began = began
        self.width = width
        self.by_use: dict[Use, list[int]] = {}
        self.steps: list[int] = []

    def add(self, use: Use, began: int, ended: int, slots: int) -> None:
        """Add the time of ``slots`` slots with this use from ``began`` to ``ended``.

        A negative number subtracts it.
        """
        last = self._make_room(ended)
        first = (began - self.began) // self.width
        row = self._row(use, last)
        if first == last:
            row[first] += slots * (ended - began)
            return
        for index in range(first, last + 1):
            starts = self.began + index * self.width
            row[index] += slots * (min(ended, starts + self.width) - max(began, starts))

    def add_steps(self, count: int, at: int) -> None:
        """Add the steps that were committed just before ``at``."""
        last = self._make_room(at)
        self.steps += [0] * (last + 1 - len(self.steps))
        self.steps[last] += count

    def sum_of(self, use: Use) -> int:
        return sum(self.by_use.get(use, ()))

    def count(self, now: int) -> int:
        """The number of bands until ``now``; the last one is rarely full."""
        return self._index(now) + 1

    def until(self, now: int, ahead: Mapping[Use, tuple[int, int]]) -> Bands:
        """A copy until ``now``.

        ``ahead``: the time that is missing, by use: since when, and of how many slots.
        """
        copy = Bands(self.began, self.width)
        copy.by_use = {use: list(row) for use, row in self.by_use.items()}
        copy.steps = list(self.steps)
        for use, (since, slots) in ahead.items():
            if slots and now > since:
                copy.add(use, since, now, slots)
        return copy

    def _index(self, ended: int) -> int:
        """The band in which a time ends; a boundary belongs to the band before it."""
        return max(0, (ended - self.began - 1) // self.width)

    def _make_room(self, ended: int) -> int:
        """The band in which a time ends. Bands are joined in pairs until it is within the limit."""
        while (last := self._index(ended)) >= BANDS_MAX:
            self.width *= 2
            self.by_use = {use: _in_pairs(row) for use, row in self.by_use.items()}
            self.steps = _in_pairs(self.steps)
        return last

    def _row(self, use: Use, last: int) -> list[int]:
        row = self.by_use.setdefault(use, [])
        row += [0] * (last + 1 - len(row))
        return row


def _in_pairs(row: list[int]) -> list[int]:
    return [sum(row[index : index + 2]) for index in range(0, len(row), 2)]
