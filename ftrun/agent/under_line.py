"""A row of ftrun's own under all other output on a terminal: drawn, erased, hidden.

The row is written at the cursor, and the cursor returns to the row's first column. A write of other
output first erases the row and then draws it again, in the same write. So there is nothing to
restore, however ftrun ends: no mode of the terminal is changed, and a row that a terminal has
wrapped at a resize is erased whole. The row is hidden:

- while a line has begun and not ended: a prompt, a progress bar;
- while a worker that reads from the terminal has shown a prompt, until it has written a whole line;
- permanently once a program moves the cursor, because it draws its own screen;
- while ftrun is in the background, or is about to be stopped (Ctrl-Z).

Not here: the text of the row (status_line.py), the thread that writes (terminal.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from ftrun.config.settings import RunSettings

ERASE = b"\r\x1b[J"
REST = b"\x1b[K"
COLUMNS_MIN = 10
CODE_BYTES_MAX = 16
_MOVES = re.compile(rb"\x1b(\[[0-9;?]*[^0-9;?mK]|[78cDEM])")
"""A code that moves the cursor or changes a mode: all codes but colours and the erasing of a
row.
"""

Render = Callable[[int], bytes]
"""The row for a terminal with this number of columns."""


class UnderLine:
    """The row on one terminal. Only the terminal's thread calls ``around``.

    ``is_held``: a prompt waits for its answer. ``is_paused``: draw nothing.
    """

    def __init__(self, fd: int, render: Render) -> None:
        self.is_held = False
        self.is_paused = False
        self.is_drawn = False
        self._fd = fd
        self._render = render
        self._is_in_line = False
        self._has_gone = False
        self._tail = b""
        self._last = b""

    def around(self, data: bytes) -> bytes:
        """The bytes to write for ``data``, with the row under it."""
        self._note(data)
        row = self._row()
        if row is None:
            before, self.is_drawn = ERASE if self.is_drawn else b"", False
            return before + data
        if not data and self.is_drawn and row == self._last:
            return b""
        if data and self.is_drawn:
            data = ERASE + data
        self.is_drawn, self._last = True, row
        return data + b"\r" + row + REST + b"\r"

    def _note(self, data: bytes) -> None:
        if data:
            self._is_in_line = not data.endswith(b"\n")
            self._has_gone = self._has_gone or _MOVES.search(self._tail + data) is not None
            self._tail = data[-CODE_BYTES_MAX:]

    def _row(self) -> bytes | None:
        """The row now; None if it is hidden."""
        if self.is_held or self.is_paused or self._is_in_line or self._has_gone:
            return None
        try:
            in_front = os.tcgetpgrp(self._fd) == os.getpgrp()
            columns = os.get_terminal_size(self._fd).columns
        except OSError:
            return None
        return self._render(columns) if in_front and columns >= COLUMNS_MIN else None


def wants_line(settings: RunSettings, out_fd: int = 1, err_fd: int = 2) -> bool:
    """True if there is a terminal for the row, and no other program writes to it.

    If standard output is a pipe, its reader may write to the terminal, as in ``ftrun … | tee``. A
    program that launches a run has the terminal to itself, because ftrun is in another session
    then.
    """
    if not settings.status_line or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    with contextlib.suppress(OSError):
        os.tcgetpgrp(err_fd)  # an error if it is no terminal of this session
        if os.isatty(out_fd):
            return os.path.samestat(os.fstat(out_fd), os.fstat(err_fd))
        shown = Path(f"/proc/self/fd/{out_fd}")
        return shown.is_file() or shown.resolve() == Path(os.devnull)
    return False
