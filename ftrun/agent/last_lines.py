"""The last lines of a worker's output, as evidence of its end.

They are read from its log file, which has everything. Not here: the log itself (logs.py).
"""

from __future__ import annotations

import os
from pathlib import Path

LINES_MAX = 40
BYTES_MAX = 8192


def last_lines(path: Path) -> str:
    """At most ``LINES_MAX`` lines and ``BYTES_MAX`` bytes from the end; "" if there are none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - BYTES_MAX))
            data = file.read(BYTES_MAX)
    except OSError:
        return ""
    lines = data.decode(errors="replace").splitlines()
    if size > BYTES_MAX:
        lines = lines[1:]  # it may begin in the middle of a line
    return "\n".join(_as_drawn(line) for line in lines[-LINES_MAX:])


def _as_drawn(line: str) -> str:
    """The part of a redrawn line, such as a progress bar, that a terminal would show."""
    drawn = [part for part in line.split("\r") if part]
    return drawn[-1] if drawn else ""
