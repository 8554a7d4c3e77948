"""A script that starts itself anew before it trains. For two ranks."""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.undisturbed.programs._training import train
from tests.undisturbed.table import program, run

AGAIN = "SCRIPT_HAS_STARTED_AGAIN"


@program
def started_again() -> Any:
    return [os.environ.get(AGAIN), train()]


if __name__ == "__main__":
    if AGAIN not in os.environ:
        os.environ[AGAIN] = "yes"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    run(makes_world=False)
