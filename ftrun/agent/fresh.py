"""A worker in a new Python interpreter: the code that runs before its script.

The forked child that executes this program has set up its session, output, standard input and CPUs
(child.py). Torch is not imported here: the script gets a fresh interpreter, and decides when to
import it.

Not here: which workers start in this way (config/starting.py).
"""

from __future__ import annotations

import json
import sys

from ftrun.agent.child import run_script
from ftrun.inject import bootstrap


def main() -> None:
    """Run the script. The first argument is the descriptor of the file with the assignment."""
    with open(int(sys.argv[1]), "rb") as file:
        message = json.load(file)
    bootstrap.prepare(message["assignment"]["threads"])
    run_script(message["token"], message["assignment"])
