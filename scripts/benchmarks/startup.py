"""Starting: ``--help``, command → first line of the script, and the launcher's memory.

The script of both launchers writes the times of its first line and of when it is ready, waits until
it may end, and ends. One script is ready when it has imported torch. Another one trains with
PyTorch's own DistributedDataParallel over both workers and is ready after its first step: ftrun
makes the imports for that before it forks the first worker.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.jobs import BIN
from benchmarks.results import Result, Row, Samples
from tests.jobs import Command, wait

PEERS = ("ftrun", "torchrun")
WORKERS = 2
TIMEOUT_S = 60.0
SCRIPT = """
import os, time
now = time.monotonic()
import pathlib, sys
out = pathlib.Path(sys.argv[1])
READY
(out / f"first.{os.getpid()}").write_text(f"{now} {time.monotonic()}")
while not (out / "stop").exists():
    time.sleep(0.005)
"""
TRAINING = """
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""
SCRIPTS = {"": SCRIPT.replace("READY", "import torch"), "ddp_": SCRIPT.replace("READY", TRAINING)}


def measure(repeats: int) -> Result:
    """Each ``repeats`` times, in turn."""
    found: dict[str, Samples] = {
        key: {peer: [] for peer in PEERS}
        for key in ("help", "first", "ready", "ddp_first", "ddp_ready", "end", "agent", "all")
    }
    for _ in range(repeats):
        for peer in PEERS:
            found["help"][peer].append(_help_ms(peer))
            for key, value in _start(peer, "").items():
                found[key][peer].append(value)
            with_ddp = _start(peer, "ddp_")
            for key in ("first", "ready"):
                found[f"ddp_{key}"][peer].append(with_ddp[key])
    return Result(
        "startup",
        f"Starting {WORKERS} workers, {repeats} times",
        [
            Row("help_ms", "--help", "ms", found["help"], digits=0),
            Row("first_line_ms", "command → first line of the last worker", "ms", found["first"],
                digits=0),
            Row("torch_ms", "command → torch imported in the last worker", "ms",
                found["ready"], digits=0),
            Row("ddp_first_line_ms", "torch's DDP over both: command → first line of the last",
                "ms", found["ddp_first"], digits=0),
            Row("ddp_ready_ms", "… command → first optimizer step of the last worker", "ms",
                found["ddp_ready"], digits=0),
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


def _start(peer: str, kind: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        script = out / "script.py"
        script.write_text(SCRIPTS[kind])
        began = time.monotonic()
        with Command(out, (*_command(peer, kind, out), str(script), name)) as command:
            wait(lambda: len(_firsts(out)) >= WORKERS, f"{peer}'s workers", TIMEOUT_S)
            firsts = _firsts(out)
            agent, everything = _memory_mib(command.pid, set(firsts))
            stopped = time.monotonic()
            (out / "stop").touch()
            command.process.wait(TIMEOUT_S)
            ended = time.monotonic()
    return {
        "first": 1000 * (max(first for first, _ in firsts.values()) - began),
        "ready": 1000 * (max(ready for _, ready in firsts.values()) - began),
        "end": 1000 * (ended - stopped),
        "agent": agent,
        "all": everything,
    }


def _command(peer: str, kind: str, out: Path) -> tuple[str, ...]:
    """DDP over both workers is one replica group of two."""
    if peer == "ftrun":
        many = "--workers-per-replica" if kind else "--replicas"
        return (str(BIN / "ftrun"), many, str(WORKERS), "--log-dir", str(out / "logs"))
    return (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(WORKERS))


def _firsts(out: Path) -> dict[int, tuple[float, float]]:
    """By pid: the times of the first line and of when it was ready."""
    found = {}
    for path in out.glob("first.*"):
        if text := path.read_text():
            first, ready = text.split()
            found[int(path.name.split(".")[1])] = float(first), float(ready)
    return found


def _memory_mib(agent: int, workers: set[int]) -> tuple[float, float]:
    """Resident memory of the agent; proportional memory of it and its children except workers."""
    process = psutil.Process(agent)
    others = [p for p in process.children(recursive=True) if p.pid not in workers]
    total = 0.0
    for each in (process, *others):
        with contextlib.suppress(psutil.Error):
            total += each.memory_full_info().pss
    return process.memory_info().rss / 2**20, total / 2**20
