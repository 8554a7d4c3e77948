"""What a step costs beyond plain DDP's on the same Gloo: two replicas, nothing but training.

A process start decides much of a step's time (where memory lies, which core), so every peer is
started several times in turn, and a start counts with the median of its steps.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import jobs
from benchmarks.results import Result, Row

PEERS = ("ftrun", "ddp", "torchft")
SCRIPT = jobs.HERE / "step_worker.py"
REPLICAS = 2
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Model:
    """A stack of square layers, and how many of its steps are taken."""

    key: str
    name: str
    width: int
    layers: int
    batch: int
    steps: int
    warm_up: int


MODELS = (
    Model("small", "0.1 M parameters", 158, 4, 32, 1500, 300),
    Model("large", "50 M parameters", 2236, 10, 16, 12, 3),
)


def measure(rounds: int) -> Result:
    """Each peer ``rounds`` times in turn, for each model."""
    rows = []
    for model in MODELS:
        medians: dict[str, list[float]] = {peer: [] for peer in PEERS}
        for _ in range(rounds):
            for peer in PEERS:
                medians[peer].append(statistics.median(_run(peer, model)))
        rows.append(_row(f"{model.key}_ms", f"step, {model.name}", "ms", medians, 1000.0))
        plain = statistics.median(medians["ddp"])
        shares = {peer: [time / plain for time in times] for peer, times in medians.items()}
        rows.append(_row(f"{model.key}_ratio", f"… over plain DDP, {model.name}", "×", shares, 1.0))
    return Result(
        "step",
        f"A step of {REPLICAS} replicas beside plain DDP, {rounds} starts each",
        rows,
        notes=["A sample is the median step of one start; the ratio is to plain DDP's median."],
    )


def _row(key: str, what: str, unit: str, found: dict[str, list[float]], factor: float) -> Row:
    samples = {peer: [time * factor for time in times] for peer, times in found.items()}
    return Row(key, what, unit, samples, digits=2)


def _run(peer: str, model: Model) -> list[float]:
    out = Path(tempfile.mkdtemp(prefix=f"bench-step-{peer}-"))
    environment = {
        **os.environ,
        "BENCH_PEER": peer,
        "BENCH_OUT": str(out),
        "BENCH_WIDTH": str(model.width),
        "BENCH_LAYERS": str(model.layers),
        "BENCH_BATCH": str(model.batch),
        "BENCH_STEPS": str(model.steps),
        "BENCH_WARM_UP": str(model.warm_up),
        "OMP_NUM_THREADS": "1",
    }
    try:
        if peer == "torchft":
            _run_torchft(out, environment)
        else:
            _run_launcher(peer, out, environment)
        times: list[float] = json.loads(next(out.glob("times.*")).read_text())
        return times
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _run_launcher(peer: str, out: Path, environment: dict[str, str]) -> None:
    command = {
        "ftrun": [jobs.BIN / "ftrun", "--replicas", str(REPLICAS), "--log-dir", out / "logs"],
        "ddp": [jobs.BIN / "torchrun", "--standalone", "--nproc-per-node", str(REPLICAS)],
    }[peer]
    with open(out / "log", "wb") as log:
        process = subprocess.Popen([*command, SCRIPT], env=environment, stdout=log, stderr=log)
        try:
            process.wait(TIMEOUT_S)
        finally:
            jobs.end(process)


def _run_torchft(out: Path, environment: dict[str, str]) -> None:
    with jobs.torchft_lighthouse() as (_, port), open(out / "log", "wb") as log:
        processes = [
            jobs.start_torchft_group(SCRIPT, replica, REPLICAS, port, environment, log)
            for replica in range(REPLICAS)
        ]
        try:
            for process in processes:
                process.wait(TIMEOUT_S)
        finally:
            for process in processes:
                jobs.end(process)
