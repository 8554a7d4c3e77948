"""Turns bytes of a worker's output into lines for people: pure, bounded.

A progress bar redraws its line with carriage returns. Only its newest state is shown, at most once
a second, and its final state when the line ends. Nested bars move the cursor up to another bar's
row. Each row is kept as a terminal would, so that no cursor code and no partial bar is printed. A
line longer than ``LINE_BYTES_MAX`` is split.

The bytes after a return may be a partial bar. They are shown when the next return completes them,
or by ``tick`` at ``due_at``. Not here: files and terminals (agent/logs.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LINE_BYTES_MAX = 16 * 1024
REDRAW_INTERVAL_S = 1.0
ROWS_MAX = 32
"""Rows of nested bars. If there are more, the first row is shown as final."""
_CODES = re.compile(rb"(\n|\r|\x1b\[\d*A|\x1b\[[012]?K)")
_CODE_START = re.compile(rb"\x1b(\[\d*)?$")


@dataclass(slots=True)
class _Row:
    """One row.

    Attributes:
        text: since the last return or, if ``is_line``, since the cursor came here without one.
        drawn: the last complete state.
        shown: the last state that was shown.
    """

    text: bytearray = field(default_factory=bytearray)
    drawn: bytes = b""
    shown: bytes = b""
    is_bar: bool = False
    is_line: bool = True

    def complete(self) -> None:
        """Complete the text, because the cursor leaves it. Blanks erase the bar."""
        if self.text:
            self.drawn = bytes(self.text).rstrip()
            self.text.clear()
        self.is_bar = True

    def news(self) -> list[bytes]:
        """The bar's state, if it differs from the last one shown."""
        if not self.drawn or self.drawn == self.shown:
            return []
        self.shown = self.drawn
        return [self.drawn]

    def final(self) -> list[bytes]:
        """The complete row, which has ended."""
        if not self.is_bar:
            return _parts(self.text)
        if self.text.strip():
            self.drawn = bytes(self.text).rstrip()
        return self.news() if self.drawn or self.shown else [b""]


class LineSplitter:
    """Takes bytes as they arrive, and returns the lines to show, without line ends.

    ``due_at``: when ``tick`` must be called, because further bytes may not come.
    """

    def __init__(self) -> None:
        self._rows = [_Row()]
        self._at = 0
        self._has_moved = False
        self._code = b""
        self._redraw_at = 0.0
        self.due_at: float | None = None

    @property
    def is_in_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._rows[-1].text or self._rows[-1].is_bar or len(self._rows) > 1)

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that ``data`` completes, or whose next update is due at ``now``."""
        row = self._rows[0]
        if len(self._rows) > 1 or row.is_bar or self._code or b"\r" in data or b"\x1b" in data:
            return self._feed_bars(data, now)
        first, *rest = data.split(b"\n")
        row.text += first
        if not rest:
            return self._cut(row)
        lines = _parts(row.text)
        for line in rest[:-1]:
            lines += _parts(line)
        row.text[:] = rest[-1]
        return lines + self._cut(row)

    def tick(self, now: float) -> list[bytes]:
        """The bars' newest states after a silence. Rows above the cursor have ended by now."""
        if self._rows[self._at].is_bar:
            self._rows[self._at].complete()
        self._redraw_at = 0.0
        lines = self._redrawn(now)
        del self._rows[: self._at]
        self._at = 0
        self._has_moved = len(self._rows) > 1
        self.due_at = None
        return lines

    def flush(self) -> list[bytes]:
        """The unfinished last lines, at the end of the stream."""
        self._rows[self._at].text += self._code
        lines = [line for row in self._rows if row.text or row.drawn for line in row.final()]
        self._rows, self._at, self._code, self.due_at = [_Row()], 0, b"", None
        return lines

    def _feed_bars(self, data: bytes, now: float) -> list[bytes]:
        data = self._code + data
        found = _CODE_START.search(data)
        self._code = data[found.start() :] if found else b""
        lines: list[bytes] = []
        for token in _CODES.split(data[: len(data) - len(self._code)]):
            if token == b"\n":
                lines += self._down()
            elif token == b"\r":
                self._rows[self._at].complete()
                self._rows[self._at].is_line = False
            elif token.startswith(b"\x1b[") and token[-1:] == b"A":
                self._up(int(token[2:-1] or 1))
            elif token.startswith(b"\x1b[") and token[-1:] == b"K":
                self._erase(token)
            elif token:
                self._rows[self._at].text += token
                lines += self._cut(self._rows[self._at])
        return lines + self._redrawn(now)

    def _down(self) -> list[bytes]:
        """Handle a line end: the row is finished, unless the cursor was moved up to it."""
        row = self._rows[self._at]
        if self._has_moved and row.is_bar:
            line = _parts(row.text) if row.is_line and row.text else []
            row.complete()
            if line:  # beside a progress bar: the next bar that is drawn here replaces it
                row.drawn = b""
            self._at += 1
            if self._at == len(self._rows):
                self._rows.append(_Row())
            self._rows[self._at].is_line = True
            return line + (self._drop_first() if len(self._rows) > ROWS_MAX else [])
        lines = row.final() if row.text or row.is_bar else [b""]
        del self._rows[self._at]
        if self._at == len(self._rows):
            self._rows.append(_Row())
        return lines

    def _drop_first(self) -> list[bytes]:
        self._at -= 1
        return self._rows.pop(0).news()

    def _up(self, rows: int) -> None:
        self._rows[self._at].complete()
        self._has_moved = True
        self._at = max(0, self._at - rows)
        self._rows[self._at].is_bar = self._rows[self._at].is_line = True

    def _erase(self, code: bytes) -> None:
        """Erase the row, unless only the part after the text is erased."""
        row = self._rows[self._at]
        if code in (b"\x1b[K", b"\x1b[0K") and row.text:
            return
        row.text.clear()
        row.drawn = b""

    def _redrawn(self, now: float) -> list[bytes]:
        """The bars' newest complete states, if an update is due."""
        bars = [row for row in self._rows if row.is_bar]
        self.due_at = max(self._redraw_at, now + REDRAW_INTERVAL_S) if bars else None
        if now < self._redraw_at:
            return []
        lines = [line for row in bars for line in row.news()]
        if lines:
            self._redraw_at = now + REDRAW_INTERVAL_S
        return lines

    def _cut(self, row: _Row) -> list[bytes]:
        """Split off the full parts of a row that is too long."""
        lines = []
        while len(row.text) > LINE_BYTES_MAX:
            lines.append(bytes(row.text[:LINE_BYTES_MAX]))
            del row.text[:LINE_BYTES_MAX]
        return lines


def _parts(line: bytes | bytearray) -> list[bytes]:
    if len(line) <= LINE_BYTES_MAX:
        return [bytes(line)]
    return [bytes(line[at : at + LINE_BYTES_MAX]) for at in range(0, len(line), LINE_BYTES_MAX)]
