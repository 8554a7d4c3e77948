"""The last lines of a worker's output, as evidence of why it ended.

They are read from its log file, which has all output. Not here: the log itself (logs.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from ftrun.logs.index import offset_since
from ftrun.logs.layout import index_path

LINES_MAX = 40
BYTES_MAX = 32 * 1024
OWN_BEGIN, OWN_END = "--- ftrun: the stacks of this worker", "--- ftrun: end of its stacks"
"""These enclose ftrun's own lines in a worker's log, which are not output of the worker."""
FATAL = "Fatal Python error"
FATAL_BEFORE, FATAL_AFTER = 10, 80
"""How many lines before and after the start of faulthandler's text, which may be long, are kept."""


def last_lines(path: Path, since_s: float = 0.0) -> str:
    """Lines from the last ``BYTES_MAX`` bytes; "" if there are none.

    ``since_s``: the start of this run. The file may begin with the log of an earlier run.

    The lines are the last ``LINES_MAX`` or, after a crash, the lines around the start of the
    stacks.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(offset_since(index_path(path), since_s), size - BYTES_MAX)
            file.seek(max(0, begin))
            data = file.read(BYTES_MAX)
    except OSError:
        return ""
    lines = data.decode(errors="replace").removesuffix("\n").split("\n")
    if begin == size - BYTES_MAX and begin > 0:
        lines = lines[1:]  # it may begin in the middle of a line
    lines = _without_own(lines)
    starts = [at for at, line in enumerate(lines) if line.startswith(FATAL)]
    if starts:
        chosen = lines[max(0, starts[-1] - FATAL_BEFORE) : starts[-1] + FATAL_AFTER]
    else:
        chosen = lines[-LINES_MAX:]
    return "\n".join(_as_drawn(line) for line in chosen)


def _without_own(lines: list[str]) -> list[str]:
    kept: list[str] = []
    is_own = OWN_END in lines and OWN_BEGIN not in lines[: lines.index(OWN_END)]
    for line in lines:
        is_own |= line == OWN_BEGIN
        if not is_own:
            kept.append(line)
        is_own &= line != OWN_END
    return kept


def _as_drawn(line: str) -> str:
    """The part of a redrawn line, such as a progress bar, that a terminal would show."""
    drawn = [part for part in line.split("\r") if part]
    return drawn[-1] if drawn else ""
