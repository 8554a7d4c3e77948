"""Columns of a table: which of them a width has room for, and how the rest of it is shared.

textual's DataTable shows all of its columns, and scrolls. Pure. Not here: the cells (columns.py,
changes.py), the table (widgets.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

PADDING = 2
"""Around each column, both sides together."""
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Column(Generic[C]):
    """``cells``: the least that it needs. ``most``: it may grow to this; 0: it may not grow.

    ``rank``: the columns with the lowest are left out last. ``eager``: it gets what it wants before
    the next column has a place.
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
        """The widest that it may be."""
        return self.most or self.cells


def widths(columns: Sequence[Column[Any]], wanted: Sequence[int], left: int) -> dict[int, int]:
    """The indices of the columns that fit, and their widths. ``wanted``: what their contents take.

    By their ranks they get the least that they need, until one has no room. Then they grow.
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
