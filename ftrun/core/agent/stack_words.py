"""The place of a worker's main thread, in a few words, from its Python stacks.

Not here: taking the stacks (agent/stacks.py), the whole text (incidents and the worker's log).
"""

from __future__ import annotations

import re

FRAMES_SHOWN = 4
_FRAME = re.compile(r'\s+File "(?P<path>.*)", line (?P<line>\d+) in (?P<name>.+)')
_PY_SPY = re.compile(r"\s+(?P<name>\S.*) \((?P<path>.*):(?P<line>\d+)\)")
_THREAD = ("Thread 0x", "Current thread 0x", "Thread ")
OWN_ENTRY = "bootstrap.py"
"""Frames from here outwards belong to ftrun and are the same for every script."""


def innermost(stacks: str, frames: int = FRAMES_SHOWN) -> str:
    """The innermost frames of the main thread, which is listed first; "": none can be parsed."""
    rows = stacks.splitlines()
    starts = [at for at, row in enumerate(rows) if row.startswith(_THREAD)]
    if not starts:
        return ""
    found = []
    end = starts[1] if len(starts) > 1 else len(rows)
    for row in rows[starts[0] + 1 : end]:
        match = _FRAME.fullmatch(row.rstrip()) or _PY_SPY.fullmatch(row.rstrip())
        if match is None:
            continue
        file = match["path"].rpartition("/")[2]
        if file == OWN_ENTRY:
            break
        found.append(f"{match['name']} ({file}:{match['line']})")
    return " < ".join(found[:frames])
