"""A table with a cursor, of which only the visible rows are made, and only what changed is painted.

A thousand replicas cost what fits on the terminal. The cursor stays with its row when rows come and
go. Not here: the rows and their cells (rows.py, columns.py, changes.py), widths (layout.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ftrun.tools.status.screen.layout import HasWidth, Slot, arrange
from ftrun.tools.status.screen.lines import changed, palette_of, strip_of
from ftrun.tools.status.screen.pieces import DIM, TEXT, Line, Piece, fit, width

PAGE_OVERLAP = 1


class Titled(HasWidth, Protocol):
    """A column of a sheet."""

    @property
    def title(self) -> str:
        """Its heading."""

    @property
    def short(self) -> str:
        """The heading where there is no room for the title."""

    @property
    def right(self) -> bool:
        """Whether its cells stand at its right edge, as numbers do."""


@dataclass(frozen=True, slots=True)
class Contents:
    """``cell``: of the row with this index, in this column, with this width.

    ``empty``: the words where there is no row.
    """

    columns: Sequence[Titled]
    keys: Sequence[str]
    cell: Callable[[int, int, int], Line]
    empty: str = ""


class Sheet(ScrollView, can_focus=True):
    """The first line has the headings; the rows below it scroll."""

    DEFAULT_CSS = "Sheet { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f", "page(1)", show=False),
        Binding("home,g", "put(0)", show=False),
        Binding("end,G", "last", show=False),
    ]

    class Opened(Message):
        """Enter, or a click on the chosen row."""

        def __init__(self, sheet: Sheet, key: str) -> None:
            super().__init__()
            self.sheet = sheet
            self.key = key

    class Moved(Message):
        """The cursor is on another row."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._contents = Contents((), (), lambda row, column, cells: ())
        self._slots: tuple[Slot, ...] = ()
        self._wanted: list[int] = []
        self._strips: list[Strip] = []
        self._width = -1
        self.cursor = 0

    # ------------------------------------------------------------ what it shows

    def show(self, contents: Contents) -> None:
        """Show these rows; the cursor stays on its row, if it is still there."""
        key = self.key
        if [column.title for column in contents.columns] != [
            column.title for column in self._contents.columns
        ]:
            self._wanted = [0] * len(contents.columns)
        self._contents = contents
        if key is not None and not self._is_at(self.cursor, key):
            where = {name: at for at, name in enumerate(contents.keys)}
            self.cursor = where.get(key, self.cursor)
        self.cursor = max(0, min(self.cursor, len(contents.keys) - 1))
        size = Size(self.size.width, len(contents.keys) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self._paint()

    @property
    def key(self) -> str | None:
        """The key of the row that the cursor is on."""
        keys = self._contents.keys
        return keys[self.cursor] if 0 <= self.cursor < len(keys) else None

    @property
    def visible_rows(self) -> range:
        """The indices of the rows that are on the terminal."""
        first = round(self.scroll_y)
        return range(first, min(len(self._contents.keys), first + max(0, self.size.height - 1)))

    def text(self) -> list[str]:
        """What is painted, as text."""
        return [strip.text.rstrip() for strip in self._strips]

    def repaint(self) -> None:
        """Paint all of it: the colours have changed."""
        self._strips = []
        self._paint()

    # ------------------------------------------------------------ moves

    def action_move(self, rows: int) -> None:
        """Move the cursor by this number of rows, within the table."""
        self.action_put(self.cursor + rows)

    def action_put(self, row: int) -> None:
        """Put the cursor on a row, and scroll so that it is seen."""
        last = len(self._contents.keys) - 1
        self.cursor = max(0, min(row, last))
        height = max(1, self.size.height - 1)
        top = round(self.scroll_y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True, immediate=True)
        self._paint()
        self.post_message(self.Moved())

    def action_page(self, pages: int) -> None:
        """Move by what fits on the terminal."""
        self.action_move(pages * max(1, self.size.height - 1 - PAGE_OVERLAP))

    def action_last(self) -> None:
        """Go to the last row."""
        self.action_put(len(self._contents.keys) - 1)

    def on_click(self, event: events.Click) -> None:
        """Called by textual."""
        row = round(self.scroll_y) + event.y - 1
        if event.y < 1 or row >= len(self._contents.keys):
            return
        was = self.cursor
        self.action_put(row)
        if row == was and self.has_focus and self.key is not None:
            self.post_message(self.Opened(self, self.key))

    def on_focus(self) -> None:
        """Called by textual: the cursor shows which pane has the keys."""
        self._paint()

    def on_blur(self) -> None:
        """Called by textual."""
        self._paint()

    def on_resize(self) -> None:
        """Called by textual: the widths begin again."""
        self._wanted = [0] * len(self._contents.columns)
        self.virtual_size = Size(self.size.width, len(self._contents.keys) + 1)
        self._strips = []
        self._paint()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Called by textual."""
        super().watch_scroll_y(old_value, new_value)
        self._strips = self._lines()

    # ------------------------------------------------------------ painting

    def render_line(self, y: int) -> Strip:
        """Called by textual."""
        if len(self._strips) != self.size.height or self._width != self.size.width:
            self._strips = self._lines()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def _is_at(self, row: int, key: str) -> bool:
        keys = self._contents.keys
        return 0 <= row < len(keys) and keys[row] == key

    def _paint(self) -> None:
        """Make the visible lines, and have textual paint those that differ."""
        if not self.size:
            return
        before, self._strips = self._strips, self._lines()
        regions = changed(before, self._strips, self.size.width)
        if regions:
            self.refresh(*regions)

    def _lines(self) -> list[Strip]:
        cells, palette = self.size.width, palette_of(self.app)
        self._width = cells
        contents = self._contents
        self._measure(cells)
        strips = [strip_of(self._row_of(self._headings()), cells, palette)]
        for row in self.visible_rows:
            found = [contents.cell(row, slot.index, slot.cells) for slot in self._slots]
            chosen = row == self.cursor and self.has_focus
            strips.append(strip_of(self._row_of(found), cells, palette, chosen=chosen))
        if not contents.keys and contents.empty:
            strips.append(strip_of(((f" {contents.empty}", DIM),), cells, palette))
        while len(strips) < self.size.height:
            strips.append(strip_of((), cells, palette))
        return strips[: self.size.height]

    def _measure(self, cells: int) -> None:
        """Arrange the columns by what the visible rows have in them."""
        columns, wanted = self._contents.columns, self._wanted
        if len(wanted) != len(columns):
            wanted = self._wanted = [0] * len(columns)
        for index, column in enumerate(columns):
            limit = column.most or column.cells
            if wanted[index] >= limit:
                continue
            for row in self.visible_rows:
                size = width(self._contents.cell(row, index, limit))
                wanted[index] = max(wanted[index], min(size, limit), len(column.title))
        self._slots = arrange(columns, wanted, cells)

    def _headings(self) -> list[Line]:
        """The titles, short ones where the long ones have no room."""
        found: list[Line] = []
        for slot in self._slots:
            column = self._contents.columns[slot.index]
            is_short = len(column.title) > slot.cells and column.short
            found.append(((column.short if is_short else column.title, DIM),))
        return found

    def _row_of(self, found: list[Line]) -> Line:
        pieces: list[Piece] = []
        at = 0
        for slot, cell in zip(self._slots, found, strict=True):
            pieces.append((" " * (slot.at - at), TEXT))
            right = self._contents.columns[slot.index].right
            pieces += fit(cell, slot.cells, right=right)
            at = slot.at + slot.cells
        return tuple(pieces)
