"""Starting: ``--help``, command → first line of the script, and what the launcher keeps in memory.

The script of both launchers writes the times of its first line and of torch's being imported, waits
until it may end, and ends.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.jobs import BIN, end, wait
from benchmarks.results import Result, Row, Samples

PEERS = ("ftrun", "torchrun")
WORKERS = 2
TIMEOUT_S = 60.0
SCRIPT = """
import os, time
now = time.monotonic()
import pathlib, sys
out = pathlib.Path(sys.argv[1])
import torch
(out / f"first.{os.getpid()}").write_text(f"{now} {time.monotonic()}")
while not (out / "stop").exists():
    time.sleep(0.005)
"""


def measure(repeats: int) -> Result:
    """Each ``repeats`` times, in turn."""
    found: dict[str, Samples] = {
        key: {peer: [] for peer in PEERS}
        for key in ("help", "first", "torch", "end", "agent", "all")
    }
    for _ in range(repeats):
        for peer in PEERS:
            found["help"][peer].append(_help_ms(peer))
            for key, value in _start(peer).items():
                found[key][peer].append(value)
    return Result(
        "startup",
        f"Starting {WORKERS} workers, {repeats} times",
        [
            Row("help_ms", "--help", "ms", found["help"], digits=0),
            Row("first_line_ms", "command → first line of the last worker", "ms", found["first"],
                digits=0),
            Row("torch_ms", "command → torch imported in the last worker", "ms", found["torch"],
                digits=0),
            Row("end_ms", "the workers end → prompt", "ms", found["end"], digits=0),
            Row("agent_mib", "resident memory of the agent", "MiB", found["agent"]),
            Row("all_mib", "memory of all that is not a worker (shared parts counted once)", "MiB",
                found["all"]),
        ],
    )  # fmt: skip


def _help_ms(peer: str) -> float:
    began = time.monotonic()
    subprocess.run([BIN / peer, "--help"], stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began) * 1000


def _start(peer: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        script = out / "script.py"
        script.write_text(SCRIPT)
        began = time.monotonic()
        process = subprocess.Popen(
            [*_command(peer, out), script, out], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        try:
            wait(lambda: len(_firsts(out)) >= WORKERS, TIMEOUT_S, f"{peer}'s workers")
            firsts = _firsts(out)
            agent, everything = _memory_mib(process.pid, set(firsts))
            stopped = time.monotonic()
            (out / "stop").touch()
            process.wait(TIMEOUT_S)
            ended = time.monotonic()
        finally:
            end(process)
    return {
        "first": 1000 * (max(first for first, _ in firsts.values()) - began),
        "torch": 1000 * (max(imported for _, imported in firsts.values()) - began),
        "end": 1000 * (ended - stopped),
        "agent": agent,
        "all": everything,
    }


def _command(peer: str, out: Path) -> list[str | Path]:
    if peer == "ftrun":
        return [BIN / "ftrun", "--replicas", str(WORKERS), "--log-dir", out / "logs"]
    return [BIN / "torchrun", "--standalone", "--nproc-per-node", str(WORKERS)]


def _firsts(out: Path) -> dict[int, tuple[float, float]]:
    """By pid: the times of the first line and of torch's being imported."""
    found = {}
    for path in out.glob("first.*"):
        if text := path.read_text():
            first, imported = text.split()
            found[int(path.name.split(".")[1])] = float(first), float(imported)
    return found


def _memory_mib(agent: int, workers: set[int]) -> tuple[float, float]:
    """Resident memory of the agent; proportional memory of it and all it started but workers."""
    process = psutil.Process(agent)
    others = [p for p in process.children(recursive=True) if p.pid not in workers]
    total = 0.0
    for each in (process, *others):
        with contextlib.suppress(psutil.Error):
            total += each.memory_full_info().pss
    return process.memory_info().rss / 2**20, total / 2**20
