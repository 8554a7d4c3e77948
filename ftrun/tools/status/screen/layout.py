"""Columns of a table: which of them fit a width, and how they share it.

textual's DataTable shows all of its columns, and scrolls. Pure. Not here: the cells (columns.py,
changes.py), the table (widgets.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

PADDING = 2
"""Space around each column, both sides together."""
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Column(Generic[C]):
    """One column of a table.

    Attributes:
        cells: its minimum width.
        most: its maximum width; 0: it does not grow.
        rank: columns with the lowest rank are left out last.
        eager: it gets its wanted width before the next column is placed.
    """

    title: str
    cells: int
    rank: int
    cell: C
    right: bool = False
    most: int = 0
    eager: bool = False

    @property
    def limit(self) -> int:
        """The maximum width."""
        return self.most or self.cells


def widths(columns: Sequence[Column[Any]], wanted: Sequence[int], left: int) -> dict[int, int]:
    """The indices of the columns that fit, and their widths.

    ``wanted``: the widths of their contents. In the order of their ranks columns get their minimum
    width, until one does not fit. Then they grow.
    """
    found: dict[int, int] = {}
    order = sorted(range(len(columns)), key=lambda at: columns[at].rank)
    for at in order:
        least = max(columns[at].cells, wanted[at] if columns[at].eager else 0)
        if found and least + PADDING > left:
            break
        found[at] = least
        left -= least + PADDING
    for at in found:
        more = max(0, min(wanted[at] - found[at], left))
        found[at] += more
        left -= more
    return dict(sorted(found.items()))
