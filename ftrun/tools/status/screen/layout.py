"""Widths of a table's columns: which of them have room, and how the rest of the width is shared.

Widths grow with what they show and never shrink, until the terminal's size changes: a table whose
columns move at each poll cannot be read. Pure. Not here: the cells (columns.py, changes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

GAP = 2
MARGIN = 1


class HasWidth(Protocol):
    """A column, as far as its width goes."""

    @property
    def cells(self) -> int:
        """The least that it needs."""

    @property
    def most(self) -> int:
        """It may grow to this; 0: it may not grow."""

    @property
    def eager(self) -> bool:
        """Whether it gets what it wants before the next column has a place."""

    @property
    def is_core(self) -> bool:
        """Whether it grows before the columns that are not have a place."""

    @property
    def rank(self) -> int:
        """The columns with the lowest are left out last."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one column. ``index``: of the column."""

    index: int
    at: int
    cells: int


def arrange(columns: Sequence[HasWidth], wanted: Sequence[int], cells: int) -> tuple[Slot, ...]:
    """The columns that fit, in order, and their places. ``wanted``: what their contents take.

    The core columns come first, as narrow as they can be, then grow to what they want; then come
    the others; what is left then widens those that still want more.
    """
    order = sorted(range(len(columns)), key=lambda at: (columns[at].rank, at))
    sharing = _Sharing(columns, wanted, cells - 2 * MARGIN + GAP)
    core = [index for index in order if columns[index].is_core]
    others = [index for index in order if not columns[index].is_core]
    sharing.place(core)
    sharing.grow(core)
    sharing.place(others)
    sharing.grow(sorted(others, key=lambda at: -columns[at].rank))
    slots, at = [], MARGIN
    for index in sorted(sharing.widths):
        slots.append(Slot(index, at, sharing.widths[index]))
        at += sharing.widths[index] + GAP
    return tuple(slots)


class _Sharing:
    """The cells that are left, and the columns that have got some."""

    def __init__(self, columns: Sequence[HasWidth], wanted: Sequence[int], left: int) -> None:
        self.widths: dict[int, int] = {}
        self._columns = columns
        self._wanted = wanted
        self._left = left

    def place(self, order: Sequence[int]) -> None:
        """Give each its least width, until one has no room: then it and the rest are left out."""
        for index in order:
            column = self._columns[index]
            least = self._full(index) if column.eager else column.cells
            if least + GAP > self._left and self.widths:
                return
            self.widths[index] = least
            self._left -= least + GAP

    def grow(self, order: Sequence[int]) -> None:
        """Widen these to what they want, as far as there is room."""
        for index in order:
            if index in self.widths:
                more = min(self._full(index) - self.widths[index], max(0, self._left))
                if more > 0:
                    self.widths[index] += more
                    self._left -= more

    def _full(self, index: int) -> int:
        column = self._columns[index]
        return max(column.cells, min(self._wanted[index], column.most))
