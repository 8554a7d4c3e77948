"""P7: a thousand restarts in one job, and the resources of its long-lived processes.

Replica 0 is never killed. The others are killed in turn, each once the replacement of the one
before has committed. Not here: the plot (plots.py).
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.base import linux
from tests.chaos.job import END_S, GONE_S, Job
from tests.chaos.journal import last_step
from tests.chaos.processes import vital_signs
from tests.jobs import wait

REPLICAS = 3
RETURN_S = 60.0
STEPS_OF_ITS_OWN = 4
SAMPLE_EVERY = 10
SIGNS = ("fds", "threads", "ports", "rss_kib")
MORE_MAX = {"fds": 4, "threads": 3, "ports": 3, "rss_kib": 8 * 1024}
"""P7: how much the median of the last fifth may exceed the median of the second fifth."""


@dataclass
class LongRun:
    """``signs[process][sign]``: a value per sample; ``restarts``: their count at each sample."""

    restarts: list[int] = field(default_factory=list)
    signs: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    returns_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def take(self, restarts: int, pids: dict[str, int]) -> None:
        """Take one sample of each process."""
        found = {name: vital_signs(pid) for name, pid in pids.items()}
        gone = [f"{name} (pid {pids[name]})" for name, signs in found.items() if not signs]
        assert not gone, f"P7: gone after {restarts} restarts: {gone}"
        self.restarts.append(restarts)
        for name, signs in found.items():
            for sign in SIGNS:
                self.signs.setdefault(name, {}).setdefault(sign, []).append(signs[sign])

    def judge(self) -> None:
        """Judge P7 by medians, because at a sample there may be one incarnation more or less."""
        for name, sign, before, after in self.flat_lines():
            if after > before + MORE_MAX[sign]:
                self.problems.append(f"P7: {name}: {sign} went from {before:g} to {after:g}")

    def flat_lines(self) -> list[tuple[str, str, float, float]]:
        """Process, sign, and the medians of the second and the last fifth."""
        fifth = max(1, len(self.restarts) // 5)
        return [
            (
                name,
                sign,
                statistics.median(v[fifth : 2 * fifth] or v),
                statistics.median(v[-fifth:]),
            )
            for name, signs in self.signs.items()
            for sign, v in signs.items()
        ]

    def table(self) -> str:
        """The signs as a Markdown table."""
        lines = ["| process | what | early | late |", "|---|---|---:|---:|"]
        for name, sign, before, after in self.flat_lines():
            is_memory = sign == "rss_kib"
            values = [f"{v / 1024:.1f} MiB" if is_memory else f"{v:g}" for v in (before, after)]
            word = {"fds": "descriptors", "rss_kib": "resident"}.get(sign, sign)
            lines.append(f"| {name} | {word} | {values[0]} | {values[1]} |")
        return "\n".join(lines)


def run_restarts(count: int, say: Callable[[str], None] = print) -> LongRun:
    """Kill ``count`` workers of one job, one after another."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-restarts-"))
    job = Job(directory, REPLICAS, CHAOS_STEP_S="0.01")
    found, began = LongRun(), time.monotonic()
    try:
        job.start_agent("--max-restarts", str(count + 10))
        job.await_members()
        _torment(job, count, found, say)
        codes = job.end_at_a_step()
        job.await_nothing(GONE_S)
        if codes != [0] or len(set(_hashes(job))) != 1:
            found.problems.append(f"ended with {codes} and hashes {_hashes(job)}")
    except AssertionError as error:
        found.problems.append(f"{error}; the last words: {job.text()[-2000:]}")
    finally:
        job.close()
    found.seconds = time.monotonic() - began
    found.judge()
    if not found.problems:
        job.remove()
    return found


def _torment(job: Job, count: int, found: LongRun, say: Callable[[str], None]) -> None:
    workers = job.workers()
    pids = {
        "agent": job.agents[0].pid,
        "spawner": job.family.titled("ftrun spawner")[0],
        "stores": job.family.titled("ftrun stores")[0],
        "lighthouse": job.family.titled("ftrun lighthouse")[0],
        "survivor": workers["0"],
    }
    found.take(0, pids)
    for number in range(1, count + 1):
        replica = str(1 + number % (REPLICAS - 1))
        workers[replica], took_s = _kill(job, replica, workers[replica])
        found.returns_s.append(took_s)
        if number % SAMPLE_EVERY == 0:
            found.take(number, pids)
        if number % 100 == 0:
            recent = statistics.median(found.returns_s[-100:])
            say(f"{number} restarts, the last 100 after {recent:.2f} s each (median)")
    now = job.workers()
    if now.get("0") != pids["survivor"]:
        found.problems.append("P4: replica 0 was struck by nobody and is another process")


def _kill(job: Job, replica: str, pid: int) -> tuple[int, float]:
    """Kill a worker and wait until its replacement has committed steps; returns its pid and the
    time."""
    row = linux.process_row(pid)
    fd = linux.send_signal(row, signal.SIGKILL) if row is not None else None
    assert fd is not None, (
        f"replica {replica} (pid {pid}) has ended by itself: {job.text()[-2000:]}"
    )
    os.close(fd)
    began = time.monotonic()
    old = job.out / f"journal.{replica}.{pid}"

    def newest() -> Path | None:
        paths = [p for p in job.out.glob(f"journal.{replica}.*") if p != old]
        return paths[0] if paths else None

    def commits() -> bool:
        path = newest()
        return path is not None and last_step(path) >= 0

    wait(commits, f"replica {replica} to commit again", RETURN_S)
    took_s = time.monotonic() - began
    path = newest()
    assert path is not None
    # A group that fails before its first step is restarted with a longer delay each time.
    goal = last_step(path) + STEPS_OF_ITS_OWN
    wait(lambda: last_step(path) >= goal, "a few steps of its own", END_S)
    old.unlink()
    return int(path.name.rsplit(".", 1)[1]), took_s


def _hashes(job: Job) -> list[str]:
    lines = [line for line in job.text().splitlines() if "] hash " in line]
    return [line.rsplit(" ", 1)[1] for line in lines]
