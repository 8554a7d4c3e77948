"""``ftrun check`` with a lost node: a worker asks the command before each step whether to begin it.

The command answers once the job's status shows the earlier steps, or when the node is lost. So
training is as slow as the status, and the command knows how many steps are lost.

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
    """Ask to begin ``step``, and wait up to ``WAIT_S`` seconds; False: no permission came."""
    write_whole(directory / ASKED, str(step))
    deadline = clock.now() + WAIT_S
    while step >= allowed_until(directory) and clock.now() < deadline:
        time.sleep(LOOK_S)
    return step < allowed_until(directory)


def allowed_until(directory: Path) -> int:
    """The last answer: the first step that may not begin. 0: no answer yet."""
    try:
        return int((directory / ALLOWED).read_text())
    except FileNotFoundError:
        return 0
