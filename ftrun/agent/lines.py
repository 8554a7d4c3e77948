"""Turns bytes of a worker's output into lines for people: pure, bounded.

A progress bar redraws its line with carriage returns; here only its newest state is shown, at most
once a second, and for good when the line ends. A line longer than ``LINE_BYTES_MAX`` is cut in
parts. Not here: files and terminals (logs.py).
"""

from __future__ import annotations

LINE_BYTES_MAX = 16 * 1024
REDRAW_INTERVAL_S = 1.0


class LineSplitter:
    """Takes bytes as they arrive; returns the lines to show, without their ends."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._redraw_at = 0.0

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that ``data`` completes, or whose redrawing is due at ``now``."""
        self._pending += data
        lines = []
        *whole, rest = self._pending.split(b"\n")
        for line in whole:
            lines += _parts(_last_drawn(line))
        while len(rest) > LINE_BYTES_MAX:
            lines.append(bytes(_last_drawn(rest[:LINE_BYTES_MAX])))
            rest = rest[LINE_BYTES_MAX:]
        self._pending = bytearray(rest)
        return lines + self._redrawn(now)

    def flush(self) -> list[bytes]:
        """The unfinished last line, at the end of the stream."""
        rest = _last_drawn(self._pending)
        self._pending = bytearray()
        return _parts(rest) if rest else []

    def _redrawn(self, now: float) -> list[bytes]:
        """A progress bar's newest state, if it is time to show it."""
        head, separator, tail = self._pending.rpartition(b"\r")
        if not separator:
            return []
        drawn = _last_drawn(head)
        if not tail and not drawn:
            return []
        # The state before the last return is complete; the one after it may be half written.
        self._pending = bytearray(b"\r" + tail) if now >= self._redraw_at else self._pending
        if now < self._redraw_at:
            self._pending = bytearray(drawn + b"\r" + tail)
            return []
        if not drawn:
            return []
        self._redraw_at = now + REDRAW_INTERVAL_S
        return [bytes(drawn)]


def _last_drawn(line: bytes | bytearray) -> bytearray:
    """The part of a line with carriage returns that a terminal would show."""
    drawn = [part for part in bytearray(line).split(b"\r") if part]
    return drawn[-1] if drawn else bytearray()


def _parts(line: bytes | bytearray) -> list[bytes]:
    if not line:
        return [b""]
    return [bytes(line[at : at + LINE_BYTES_MAX]) for at in range(0, len(line), LINE_BYTES_MAX)]
