"""A worker that is an interpreter of its own: what runs in it before its script.

The fork that becomes it has its session, its output, its standard input and its CPUs (child.py).
Torch is not imported here, so that the script finds a fresh interpreter, and decides when.

Not here: which workers start so (config/starting.py).
"""

from __future__ import annotations

import json
import sys

from ftrun.agent.child import run_script
from ftrun.inject import bootstrap


def main() -> None:
    """The first argument is the descriptor of the assignment."""
    with open(int(sys.argv[1]), "rb") as file:
        message = json.load(file)
    bootstrap.prepare(message["assignment"]["threads"])
    run_script(message["token"], message["assignment"])
