"""``ftrun check`` loses a node: a worker asks before each step whether it may begin.

The command answers when the job's status knows of the steps before, or when the node is lost. So
the steps are as slow as the status, and the command knows what each would cost.

Not here: when it answers (tools/check/losing.py).
"""

from __future__ import annotations

import time
from pathlib import Path

from ftrun.base import clock
from ftrun.base.files import write_whole

ASKED, ALLOWED = "asked", "allowed"
WAIT_S, LOOK_S = 60.0, 0.005


def wait_to_begin(directory: Path, step: int) -> bool:
    """Ask, and wait for the answer: the first step that may not begin. False: there is none."""
    write_whole(directory / ASKED, str(step))
    deadline = clock.now() + WAIT_S
    while step >= allowed_until(directory) and clock.now() < deadline:
        time.sleep(LOOK_S)
    return step < allowed_until(directory)


def allowed_until(directory: Path) -> int:
    """What was answered last; 0: nothing so far."""
    try:
        return int((directory / ALLOWED).read_text())
    except FileNotFoundError:
        return 0
