"""A widget with lines of pieces, which paints only what has changed since it was painted last.

Not here: the text of the lines (header.py, details.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ftrun.tools.status.screen.palette import DARK, PALETTES, Palette
from ftrun.tools.status.screen.pieces import Line, cut, fit


def palette_of(app: App[object]) -> Palette:
    """The colours of the theme that the app has now."""
    return PALETTES.get(app.theme, PALETTES[DARK])


def strip_of(pieces: Line, cells: int, palette: Palette, *, chosen: bool = False) -> Strip:
    """Painted, filled to the width. A piece whose role is ``do:NAME:ROLE`` is a button."""
    segments = []
    for text, role in fit(pieces, cells):
        meta, _, looks = role.rpartition(":")
        style = palette.style(looks, chosen=chosen)
        if meta:
            style += Style(meta={"@click": f"app.press('{meta.removeprefix('do:')}')"})
        segments.append(Segment(text, style))
    return Strip(segments, cells)


def changed(before: Sequence[Strip], after: Sequence[Strip], cells: int) -> list[Region]:
    """The parts of the lines that differ."""
    found = []
    for y, strip in enumerate(after):
        old = before[y] if y < len(before) else None
        if old is strip or (old is not None and old == strip):
            continue
        found.append(Region(0, y, cells, 1))
    return found


class Lines(Widget):
    """Lines from the top, one below the other; no cursor."""

    DEFAULT_CSS = "Lines { height: 1; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Line] = ()
        self._strips: list[Strip] = []

    def show(self, lines: Sequence[Line]) -> None:
        """Show these; the widget's height is not changed."""
        self._lines = lines
        before, self._strips = self._strips, self._painted()
        regions = changed(before, self._strips, self.size.width)
        if regions and self.size:
            self.refresh(*regions)

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown."""
        return self._lines

    def repaint(self) -> None:
        """Paint all of it: the colours have changed."""
        self._strips = []
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Called by textual."""
        if y >= len(self._strips) or self._strips[y].cell_length != self.size.width:
            self._strips = self._painted()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def _painted(self) -> list[Strip]:
        cells, palette = self.size.width, palette_of(self.app)
        rows = list(self._lines[: self.size.height])
        rows += [()] * (self.size.height - len(rows))
        return [strip_of(cut(row, cells), cells, palette) for row in rows]
