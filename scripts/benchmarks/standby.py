"""The gain of ``--standby``: SIGKILL → a replacement's first line, with a standby and without.

The script writes the time of its first line and reports progress to its agent, so that every
restart is immediate.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.jobs import BIN
from benchmarks.results import Result, Row, Samples
from tests.jobs import Command, wait

PEERS = {"ftrun": ("--standby", "1"), "ftrun without": ()}
PAUSE_S = 1.0
TIMEOUT_S = 60.0
SCRIPT = """
import time
now = time.monotonic()
import os, pathlib, signal, socket, sys
from ftrun.core.activity import Activity
from ftrun.core.messages import Progress, WorkerHello
from ftrun.protocol.frames import FrameSocket
from ftrun.training.context import current

here = current()
sock = socket.socket(socket.AF_UNIX)
sock.connect(here.socket_path)
frames = FrameSocket(sock)
frames.send(WorkerHello(here.key, os.getpid(), here.token))
for step in (100 * here.restarts, 100 * here.restarts + 50):
    frames.send(Progress(step, step, Activity.STEP))
path = pathlib.Path(sys.argv[1]) / f"first.{here.restarts}"
path.with_suffix(".draft").write_text(f"{os.getpid()} {now}")
path.with_suffix(".draft").rename(path)
signal.pause()
"""


def measure(kills: int, rounds: int) -> Result:
    """``rounds`` jobs of each kind in turn, ``kills`` kills in each."""
    found: Samples = {peer: [] for peer in PEERS}
    for _ in range(rounds):
        for peer, options in PEERS.items():
            found[peer] += _job(options, kills)
    return Result(
        "standby",
        f"A replacement's first line, {kills * rounds} kills",
        [Row("first_line_ms", "kill → the replacement's first line", "ms", found)],
    )


def _job(options: tuple[str, ...], kills: int) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        script = out / "script.py"
        script.write_text(SCRIPT)
        words = (str(BIN / "ftrun"), "--log-dir", str(out / "logs"), *options, str(script), name)
        with Command(out, words):
            return [_kill(out, restart) for restart in range(kills)]


def _kill(out: Path, restart: int) -> float:
    """Milliseconds from the kill to the replacement's first line."""
    pid, _ = _first(out, restart)
    time.sleep(PAUSE_S)  # a used standby is replaced in this time
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return 1000 * (_first(out, restart + 1)[1] - killed)


def _first(out: Path, restart: int) -> tuple[int, float]:
    path = out / f"first.{restart}"
    wait(path.exists, f"life {restart}", TIMEOUT_S)
    pid, when = path.read_text().split()
    return int(pid), float(when)
