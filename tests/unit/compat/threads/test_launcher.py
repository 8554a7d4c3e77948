"""Who gives a Manager its seat in a program that ftrun did not start."""

import os
import subprocess
import sys

PROGRAM = """
import sys
from ftrun.base.errors import UserError
from ftrun.training import seats

def refused(address):
    asked = seats.SeatAsked(address, None, None, None, None, None, 1, 1.0)
    try:
        seats.take(asked)
    except UserError as error:
        return str(error)

assert "import ftrun.torchft, make a ftrun.torchft.coord" in refused("127.0.0.1:1")
import ftrun.torchft
assert "lighthouse_addr" in refused("no address") and "agent" not in refused("no address")
assert "needs an agent" in refused(None)
assert "torch" not in sys.modules
"""


def test_threads_have_seats_once_torchfts_names_are_imported() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHFT_", "FTRUN_"))}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120, env=environment)
