#!/usr/bin/env python
"""Benchmarks beside the peers: each runs ftrun and the peer in turn in the same call.

``pip install -c constraints.txt -e ".[bench]"`` first. Every command prints a table and the machine
and writes ``bench-out/<name>.json``; ``report`` makes docs/BENCHMARKS.md of what is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from benchmarks import join as join_bench
from benchmarks import recovery as recovery_bench
from benchmarks import startup as startup_bench
from benchmarks import step as step_bench
from benchmarks.results import Result, save, table

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
console = Console(width=140)
OUT = Path("bench-out")


@app.command()
def recovery(replicas: int = 3, kills: int = 8, rounds: int = 2, seed: int = 1) -> None:
    """SIGKILL of a random worker: survivors' stall, steps lost, time to rejoin."""
    _show(recovery_bench.measure(replicas, kills, rounds, seed))


@app.command()
def join(replicas: int = 3, joins: int = 4, rounds: int = 2, seed: int = 1) -> None:
    """A replacement joins late: what that costs those who train."""
    _show(join_bench.measure(replicas, joins, rounds, seed))


@app.command()
def step(rounds: int = 3) -> None:
    """A step beside plain DDP's, with a small and a large model."""
    _show(step_bench.measure(rounds))


@app.command()
def startup(repeats: int = 7) -> None:
    """Seconds until the prompt, until the script's first line, and the launcher's memory."""
    _show(startup_bench.measure(repeats))


def _show(result: Result) -> None:
    console.print(table(result))
    for note in result.notes:
        console.print(f"  {note}")
    console.print(f"wrote {save(result, OUT)}")


if __name__ == "__main__":
    app()
