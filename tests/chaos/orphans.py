"""Processes that a launcher leaves behind: families that are hard to end, and guards that die.

Each case starts a job whose worker has awkward children of every kind, ends it in one way, and
counts the processes that live five seconds later. torchrun runs the same script for comparison,
where the case applies to it. Not here: chaos by seed (run.py).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.jobs import FTRUN, THIS_TREE, Command, Late, wait

START_S = 180.0
GONE_S = 5.0
BIN = Path(sys.executable).parent

FAMILY = """
import os, signal, subprocess, sys
from torch.utils.data import DataLoader

def idle():
    while True:
        signal.pause()

def ready(name):
    open(os.path.join(os.environ["ORPHANS_OUT"], name), "w").close()

def loader():
    batches = iter(DataLoader(range(10**9), num_workers=2, persistent_workers=True))
    next(batches)
    return batches

def session():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)

def double_fork():
    if os.fork() == 0:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        idle()
    os.wait()

def deaf():
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        idle()

if __name__ == "__main__":
    kept = [make() for make in (loader, session, double_fork, deaf)]
    ready(f"up.{os.environ['LOCAL_RANK']}.{os.getpid()}")
    idle()
"""
CHILDREN = "2 data-loader workers, a setsid child, a double fork, a child that ignores SIGTERM"


@dataclass(frozen=True)
class Row:
    """``left``: processes alive at the end of the time; ``gone_s``: when the last one ended."""

    case: str
    launcher: str
    family: int
    left: int
    gone_s: float | None
    who: tuple[str, ...]


@dataclass(frozen=True)
class _Running:
    launcher: Command
    worker: int


def _signal_launcher(number: signal.Signals) -> Callable[[_Running], None]:
    return lambda running: running.launcher.signal(number)


def _kill_spawner(running: _Running) -> None:
    os.kill(running.launcher.spawner(), signal.SIGKILL)


def _kill_both(running: _Running) -> None:
    spawner = running.launcher.spawner()
    running.launcher.signal(signal.SIGKILL)
    os.kill(spawner, signal.SIGKILL)


def _kill_worker(running: _Running) -> None:
    os.kill(running.worker, signal.SIGKILL)


CASES: tuple[tuple[str, Callable[[_Running], None], tuple[str, ...]], ...] = (
    ("SIGTERM to the launcher", _signal_launcher(signal.SIGTERM), ("ftrun", "torchrun")),
    ("worker -9, no restart left", _kill_worker, ("ftrun", "torchrun")),
    ("launcher (agent) -9", _signal_launcher(signal.SIGKILL), ("ftrun", "torchrun")),
    ("spawner -9", _kill_spawner, ("ftrun",)),
    ("agent and spawner -9", _kill_both, ("ftrun",)),
)


def measure(say: Callable[[str], None]) -> Iterator[Row]:
    """Every case with every launcher that it applies to, one after another."""
    for case, strike, launchers in CASES:
        for launcher in launchers:
            row = end_one(case, strike, launcher)
            say(f"{row.launcher}: {row.case}: {row.left} of {row.family} left {list(row.who)}")
            yield row


def table(rows: Iterable[Row]) -> str:
    """A Markdown table with one line per case and launcher."""
    lines = [
        f"| how it ends | launcher | processes | left after {GONE_S:g} s | the last one went |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        gone = "never" if row.gone_s is None else f"after {row.gone_s:.2f} s"
        lines.append(f"| {row.case} | {row.launcher} | {row.family} | {row.left} | {gone} |")
    return "\n".join(lines)


def end_one(
    case: str, strike: Callable[[_Running], None], launcher: str, within_s: float = GONE_S
) -> Row:
    """End one case with one launcher."""
    with (
        tempfile.TemporaryDirectory(prefix="orphans-") as name,
        _start(launcher, Path(name)) as command,
    ):
        running = _Running(command, _worker(launcher, Path(name)))
        rows = command.family.rows()
        strike(running)
        gone_s, who = _count(command, within_s)
        return Row(case, launcher, len(rows), len(who), gone_s, tuple(who))


def _count(command: Command, within_s: float) -> tuple[float | None, list[str]]:
    """When the last process ended, or the commands of the remaining ones."""
    try:
        return wait(lambda: not command.family.rows(), "the family to be gone", within_s), []
    except Late:
        return None, [title[:40] for title in command.family.titles().values()]


def _start(launcher: str, directory: Path) -> Command:
    script = directory / "family.py"
    script.write_text(FAMILY)
    words = {
        "ftrun": (*FTRUN, "--max-restarts", "0", "--grace", "2"),
        "torchrun": (str(BIN / "torchrun"), "--nproc-per-node", "1", "--shutdown-timeout", "2"),
    }
    more = {**THIS_TREE, "ORPHANS_OUT": str(directory)}
    return Command(directory, (*words[launcher], str(script)), more, fresh=True)


def _worker(launcher: str, directory: Path) -> int:
    wait(lambda: list(directory.glob("up.*")), f"{launcher}'s worker", START_S)
    return int(next(directory.glob("up.*")).name.rsplit(".", 1)[1])
