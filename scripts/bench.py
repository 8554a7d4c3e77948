#!/usr/bin/env python
"""Benchmarks beside the peers: each runs ftrun and the peer in turn in the same call.

``pip install -c constraints.txt -e '.[bench]'`` first; prints a table with the machine and writes
``bench-out/<name>.json``.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from benchmarks import recovery as recovery_bench

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
console = Console()
OUT = Path("bench-out")


@app.callback()
def main() -> None:
    """Benchmarks beside the peers."""


@app.command()
def recovery(replicas: int = 3, kills: int = 5, rounds: int = 2, seed: int = 1) -> None:
    """SIGKILL of a random worker: survivors' stall, steps lost, time to rejoin."""
    rng = random.Random(seed)
    found: dict[str, list[recovery_bench.Kill]] = {"ftrun": [], "torchft": []}
    for _ in range(rounds):
        for peer, results in found.items():
            results += recovery_bench.run(peer, replicas, kills, rng)
    table = _table(f"SIGKILL of one of {replicas} workers, {kills * rounds} times each")
    rows = {
        "survivors' stall beyond one step, ms": [k.stall_s * 1000 for k in found["ftrun"]],
        "steps lost by survivors": [float(k.lost_steps) for k in found["ftrun"]],
        "replacement's first committed step, ms": [k.rejoin_s * 1000 for k in found["ftrun"]],
        "survivors' step, ms": [k.step_s * 1000 for k in found["ftrun"]],
    }
    theirs = [
        [k.stall_s * 1000 for k in found["torchft"]],
        [float(k.lost_steps) for k in found["torchft"]],
        [k.rejoin_s * 1000 for k in found["torchft"]],
        [k.step_s * 1000 for k in found["torchft"]],
    ]
    for (what, ours), peers in zip(rows.items(), theirs, strict=True):
        _row(table, what, ours, peers)
    console.print(table)
    _write("recovery", {peer: [asdict(kill) for kill in kills] for peer, kills in found.items()})


@app.command()
def startup(repeats: int = 7) -> None:
    """``ftrun --help`` beside ``torchrun --help``: seconds until the prompt is back."""
    bin_dir = Path(sys.executable).parent
    found: dict[str, list[float]] = {"ftrun": [], "torchrun": []}
    for _ in range(repeats):
        for name, seconds in found.items():
            began = time.monotonic()
            subprocess.run([bin_dir / name, "--help"], stdout=subprocess.DEVNULL, check=True)
            seconds.append((time.monotonic() - began) * 1000)
    table = _table(f"--help, {repeats} times each", peer="torchrun")
    _row(table, "--help, ms", found["ftrun"], found["torchrun"])
    console.print(table)
    _write("startup", found)


def _table(title: str, peer: str = "torchft") -> Table:
    table = Table(title=f"{title}\n{machine()}", title_justify="left")
    table.add_column("what")
    for name in ("ftrun", peer):
        table.add_column(f"{name} median", justify="right")
        table.add_column(f"{name} worst", justify="right")
    table.add_column("ratio of medians", justify="right")
    return table


def _row(table: Table, what: str, ours: list[float], theirs: list[float]) -> None:
    a, b = statistics.median(ours), statistics.median(theirs)
    ratio = f"{b / a:.1f}x" if a > 0 else "-"
    table.add_row(what, f"{a:.1f}", f"{max(ours):.1f}", f"{b:.1f}", f"{max(theirs):.1f}", ratio)


def machine() -> str:
    """What this ran on, in one line."""
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"Linux {platform.release()}"
    )


def _write(name: str, data: object) -> None:
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "results": data}, indent=1) + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    app()
