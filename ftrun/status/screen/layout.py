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
    def rank(self) -> int:
        """The columns with the lowest are left out last."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one column. ``index``: of the column."""

    index: int
    at: int
    cells: int


def arrange(
    columns: Sequence[HasWidth], wanted: Sequence[int], cells: int
) -> tuple[Slot, ...]:
    """The columns that fit, in order, and their places. ``wanted``: what the contents take."""
    chosen: list[int] = []
    left = cells - 2 * MARGIN + GAP
    for index in sorted(range(len(columns)), key=lambda at: (columns[at].rank, at)):
        need = max(columns[index].cells, min(wanted[index], columns[index].cells)) + GAP
        if need > left and chosen:
            break
        chosen.append(index)
        left -= need
    widths = {index: columns[index].cells for index in chosen}
    for index in sorted(chosen, key=lambda at: (columns[at].rank, at)):
        grow = min(columns[index].most, wanted[index]) - widths[index]
        if grow > 0:
            grow = min(grow, max(0, left))
            widths[index] += grow
            left -= grow
    slots, at = [], MARGIN
    for index in sorted(chosen):
        slots.append(Slot(index, at, widths[index]))
        at += widths[index] + GAP
    return tuple(slots)
