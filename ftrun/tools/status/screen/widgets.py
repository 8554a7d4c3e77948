"""A line of text, and a table whose cursor stays with its row when rows come and go.

They extend textual's. Two things differ from its DataTable. A cell is made when it is painted, so
only visible replicas cost time. And columns that do not fit are left out. Not here: the rows and
their cells (rows.py, columns.py, changes.py), widths (layout.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.reactive import reactive
from textual.strip import Strip
from textual.widgets import DataTable, Static

from ftrun.tools.status.screen.layout import Column, widths
from ftrun.tools.status.screen.pieces import DIM, fit, line


class Line(Static):
    """Text that is cut at the edge. Its buttons are styled by their roles, not as links."""

    DEFAULT_CSS = "Line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }"
    auto_links = reactive(False)


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a table. ``cell``: makes a cell, by row index, column and width.

    ``empty``: the words if there is no row.
    """

    columns: Sequence[Column[Any]] = ()
    keys: Sequence[str] = ()
    cell: Callable[[int, Column[Any], int], Text] = lambda row, column, cells: line()
    empty: str = ""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell that is made when it is painted. textual caches it, so it holds no status."""

    table: Table
    row: int
    column: Column[Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        """Called by rich."""
        cells = options.max_width
        text = self.table.contents.cell(self.row, self.column, cells)
        return fit(text, cells, right=self.column.right).render(console)


class Table(DataTable[None]):
    """The first line has the headings; the rows below it scroll."""

    DEFAULT_CSS = """
    Table { height: 1fr; background: $background; overflow-x: hidden; scrollbar-size-vertical: 1; }
    Table:focus { background-tint: transparent; }
    Table > .datatable--hover { background: transparent; }
    Table > .datatable--header, Table:focus > .datatable--header, Table:ansi > .datatable--header,
    Table > .datatable--cursor {
        background: $background; background-tint: transparent; color: $foreground; text-style: none;
    }
    Table:focus > .datatable--cursor {
        background: $cursor; color: $foreground; text-style: $cursor-style;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "cursor_up", show=False),
        Binding("j", "cursor_down", show=False),
        Binding("ctrl+b", "page_up", show=False),
        Binding("ctrl+f", "page_down", show=False),
        Binding("home,g", "scroll_top", show=False),
        Binding("end,G", "scroll_bottom", show=False),
        Binding("left", "screen.close", show=False),
        Binding("right", "screen.unfold", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")
        self.contents = Contents()
        self._wanted: list[int] = []
        self._shown: tuple[Sequence[str], list[int]] = ((), [])

    def show(self, contents: Contents) -> None:
        """Show these rows. The cursor stays on its row, if the row is still there."""
        key, self.contents = self.key, contents
        found = self._widths()
        if self._shown != (contents.keys, list(found)):
            self._fill(key, list(found))
        for index, cells in found.items():
            column = contents.columns[index]
            there = self.columns[column.title]  # type: ignore[index]
            there.label = fit(line((column.title, DIM)), cells, right=column.right)
            there.width = cells
        self.notify_style_update()  # makes the visible cells again, and drops the cached ones

    @property
    def key(self) -> str | None:
        keys = self._shown[0]
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def get_row_at(self, row_index: int) -> list[Any]:
        """Called by textual: the cells of a row."""
        columns = self.contents.columns
        return [_Cell(self, row_index, columns[index]) for index in self._shown[1]]

    def render_line(self, y: int) -> Strip:
        """Called by textual."""
        if y == 1 and not self.rows:
            words = line(" ", (self.contents.empty, DIM))
            words = fit(words, self.size.width)
            return Strip(words.render(self.app.console)).apply_style(self.rich_style)
        return super().render_line(y)

    def on_resize(self) -> None:
        """Called by textual: compute the widths again."""
        self._wanted = []
        self.show(self.contents)

    def _widths(self) -> dict[int, int]:
        """Widths by the content of the visible rows. Columns do not shrink again, for
        readability."""
        contents, top = self.contents, round(self.scroll_y)
        if not self.size:
            return {}
        wanted = self._wanted = self._wanted or [len(column.title) for column in contents.columns]
        for at, column in enumerate(contents.columns):
            for row in range(top, min(len(contents.keys), top + self.size.height)):
                if wanted[at] < column.limit:
                    size = contents.cell(row, column, column.limit).cell_len
                    wanted[at] = max(wanted[at], min(size, column.limit))
        return widths(contents.columns, wanted, self.size.width)

    def _fill(self, key: str | None, indices: list[int]) -> None:
        """Replace rows or columns, and keep the scroll position."""
        keys, row, top = self.contents.keys, self.cursor_row, self.scroll_y
        self.set_reactive(DataTable.cursor_coordinate, Coordinate(0, 0))
        self.clear(columns=True)
        self._shown = (keys, indices)
        for index in indices:
            column = self.contents.columns[index]
            self.add_column(column.title, width=column.cells, key=column.title)
        for name in keys:
            self.add_row(key=name)
        row = keys.index(key) if key in keys else min(row, len(keys) - 1)
        self.set_reactive(DataTable.cursor_coordinate, Coordinate(max(0, row), 0))
        self.scroll_to(y=top, animate=False, force=True, immediate=True)
