#!/usr/bin/env python
"""Benchmarks against the peers: each runs ftrun and the peer in turn in the same call.

``pip install -c constraints.txt -e ".[bench]"`` first. Every command prints a table and the machine
and writes ``bench-out/<name>.json``; ``report`` makes the pages from these files.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import drain as drain_bench
from benchmarks import goodput as goodput_bench
from benchmarks import heal as heal_bench
from benchmarks import join as join_bench
from benchmarks import lighthouse as lighthouse_bench
from benchmarks import local as local_bench
from benchmarks import recovery as recovery_bench
from benchmarks import report as report_page
from benchmarks import snapshot as snapshot_bench
from benchmarks import standby as standby_bench
from benchmarks import startup as startup_bench
from benchmarks import step as step_bench
from benchmarks import zero_edit as zero_edit_bench
from benchmarks.results import Result, save, table
from benchmarks.rivals import measure as rivals_bench
from benchmarks.rivals.launchers import MODES
from rich.console import Console

ROOT = Path(__file__).parent.parent
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)
console = Console(width=150)
OUT = Path("bench-out")


@app.callback()
def _peers_are_there(context: typer.Context) -> None:
    """Check first that the peers are installed, because a benchmark takes minutes."""
    if context.invoked_subcommand in ("rivals", "zero-edit", "memory-snapshots"):
        return  # the first leaves out what is missing, and the others have no peers
    missing = [name for name in ("torchft", "matplotlib") if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        install = 'pip install -c constraints.txt -e ".[bench]"'
        console.print(f"{names} not installed, nothing was started. First: {install}", markup=False)
        raise typer.Exit(2)


@app.command()
def recovery(
    replicas: int = 3,
    kills: int = 8,
    rounds: int = 1,
    seed: int = 1,
    memory: str = "0.05,4,6",
    peers: str = "ftrun,torchft",
    write_docs: bool = False,
) -> None:
    """SIGKILL of a random worker: survivors' stall, steps lost, time to rejoin.

    ``--memory``: GB that each worker holds; a job for each size, round and peer. ``--write-docs``:
    and ``report``.
    """
    sizes = [float(size) for size in memory.split(",")]
    try:
        result = recovery_bench.measure(replicas, kills, rounds, seed, sizes, peers.split(","))
    except MemoryError as error:
        raise typer.BadParameter(f"{error}. Give smaller sizes.", param_hint="--memory") from error
    _show(result)
    if write_docs:
        report()


@app.command()
def join(replicas: int = 3, joins: int = 4, rounds: int = 2, seed: int = 1) -> None:
    """A replacement joins late: the cost for the replicas that train."""
    _show(join_bench.measure(replicas, joins, rounds, seed))


@app.command()
def drain(replicas: int = 3, rounds: int = 6, seed: int = 1) -> None:
    """One node of two is drained: the cost for the replicas that train on."""
    _show(drain_bench.measure(replicas, rounds, seed))


@app.command()
def step(starts: int = 3, profile: bool = False) -> None:
    """A step against plain DDP's, with a small and a large model; or a profile of it."""
    _show(step_bench.profile(starts) if profile else step_bench.measure(starts))


@app.command()
def heal(gib: float = 1.0, repeats: int = 3, joins: int = 2) -> None:
    """State from peers against raw TCP, and donors' steps meanwhile."""
    _show(heal_bench.measure(gib, repeats, joins))


@app.command()
def heal_tls(gib: float = 1.0, repeats: int = 5) -> None:
    """Heals with TLS and without, in turn."""
    _show(heal_bench.measure_tls(gib, repeats))


@app.command()
def lighthouse(
    groups: int = 1000,
    agents: int = 125,
    deaths: int = 8,
    steady_s: float = 20.0,
    torchft: str = "200,500",
) -> None:
    """1,000 replica groups of 125 simulated agents: a death, reported to all and answered."""
    counts = [int(count) for count in torchft.split(",") if count]
    _show(lighthouse_bench.measure(groups, agents, deaths, steady_s, counts))


@app.command()
def goodput(
    replicas: int = 4, seconds: float = 180.0, periods: str = "15,5,2", seed: int = 1
) -> None:
    """A random worker killed periodically: the share of steps that is left."""
    _show(goodput_bench.measure(replicas, seconds, [float(p) for p in periods.split(",")], seed))


@app.command()
def startup(repeats: int = 5) -> None:
    """Seconds until the prompt, until the script's first line, and the launcher's memory."""
    _show(startup_bench.measure(repeats))


@app.command()
def standby(kills: int = 6, rounds: int = 3) -> None:
    """The gain of --standby when a worker is killed."""
    _show(standby_bench.measure(kills, rounds))


@app.command()
def snapshot(millions: float = 50.0, snapshots: int = 3, rounds: int = 2) -> None:
    """Snapshots to disk: how long the training thread is held, beside torch's async_save."""
    _show(snapshot_bench.measure(int(millions * 1e6), snapshots, rounds))


@app.command()
def zero_edit(starts: int = 4) -> None:
    """An unmodified script: a step beside the explicit form's, its own calls beside torchrun's."""
    _show(zero_edit_bench.measure(starts))


@app.command()
def memory_snapshots(starts: int = 1, only: str = ",".join(zero_edit_bench.LONG_STEPS)) -> None:
    """A step of one group with memory snapshots beside one without, of two workers.

    ``--only``: some of the models, by name: ``--only all`` has short steps too. Those of 1 GB need
    20 GB of memory.
    """
    only = ",".join(zero_edit_bench.GROUPS) if only == "all" else only
    _show(zero_edit_bench.measure_memory(starts, only.split(",")))


@app.command()
def local(starts: int = 2, steps: int = 8, only: str = "") -> None:
    """Outer steps of DiLoCo and quantised all-reduces: bytes and times, also at 1 Gbit/s.

    ``--only float32``: one form, as a result of its own.
    """
    _show(local_bench.measure(starts, steps, only))


@app.command()
def rivals(
    kills: int = 12,
    mode: str = "ddp",
    seed: int = 1,
    peers: str = "",
    sites: Path = Path("build/rivals"),
    others: int = 0,
    second: float = 0.0,
    quick: bool = False,
) -> None:
    """SIGKILL of one of 4 workers under ftrun, torchft, torchrun, NVRx and lm-resiliency.

    ``--mode``: ddp or fsdp (FSDP2 over all workers). ``--sites``: the directory that has NVRx and
    lm-resiliency; what is missing there is left out, and the result says how to install it.
    ``--others``: so many kills for each but ftrun. ``--second``: how often, from 0 to 1, another
    worker is killed at once. ``--quick``: 3 kills.
    """
    if mode not in MODES:
        raise typer.BadParameter(f"{mode} is none of {', '.join(MODES)}", param_hint="--mode")
    names = [name for name in peers.split(",") if name]
    count = 3 if quick else kills
    _show(rivals_bench.measure(count, mode, seed, sites.resolve(), names, others, second))


@app.command()
def report() -> None:
    """Write docs/BENCHMARKS.md, BENCHMARKS_DETAILS.md and their plots, from the results."""
    console.print(f"wrote {report_page.write(OUT, ROOT / 'docs')}")


@app.command("all")
def everything(quick: bool = False) -> None:
    """Every benchmark at its full length (about two hours), and the report.

    ``--quick``: each shortened to one to three minutes, and no report.
    """
    global OUT
    began = time.monotonic()
    if quick:
        OUT = OUT / "quick"
    for path in OUT.glob("*.json"):
        path.unlink()  # an earlier result must not replace one that fails now
    benchmarks = _shortened() if quick else _whole()
    failures = sum(not _completes(benchmark) for benchmark in benchmarks)
    if not quick:
        report()
    console.print(f"took {(time.monotonic() - began) / 60:.1f} minutes, {failures} failed")
    raise typer.Exit(1 if failures else 0)


def _whole() -> list[Callable[[], None]]:
    profile = partial(step, profile=True)
    large = partial(lighthouse, groups=10_000, agents=1_250, deaths=4, torchft="")
    return [
        recovery, join, drain, step, profile, heal, heal_tls, lighthouse, large, goodput, startup,
        standby, snapshot, zero_edit, memory_snapshots, local, rivals,
        partial(rivals, mode="fsdp"),
    ]  # fmt: skip


def _shortened() -> list[Callable[[], None]]:
    return [
        partial(recovery, kills=4, memory="0.05"),
        partial(join, joins=3, rounds=1),
        partial(drain, rounds=1),
        partial(step, starts=1),
        partial(step, starts=1, profile=True),
        partial(heal, repeats=2, joins=1),
        partial(heal_tls, repeats=2),
        partial(lighthouse, deaths=5),
        partial(goodput, seconds=15.0),
        partial(startup, repeats=4),
        partial(standby, rounds=1),
        partial(snapshot, rounds=1),
        partial(zero_edit, starts=2),
        partial(memory_snapshots, only="ddp-8M,fsdp-8M"),
        partial(local, starts=1, steps=3),
        partial(rivals, kills=1),
    ]


def _completes(benchmark: Callable[[], None]) -> bool:
    """Run it; False if it fails, so that the others still run."""
    try:
        benchmark()
        return True
    except Exception:  # noqa: BLE001  # whatever a benchmark raises: it is shown.
        console.print_exception(max_frames=4)
        return False


def _show(result: Result) -> None:
    console.print(table(result))
    for note in result.notes:
        console.print(f"  {note}")
    console.print(f"wrote {save(result, OUT)}")


if __name__ == "__main__":
    app()
