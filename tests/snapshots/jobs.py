"""Jobs that take snapshots, are killed as a whole, and resume; and the cost of each kill.

Not here: the scripts (scripts/), the command that prints the table (scripts/snapshots.py at the
root).
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from ftrun.base import clock
from ftrun.snapshots.directory import snapshots
from tests.jobs import Job

SCRIPTS = Path(__file__).resolve().parent / "scripts"
EVERY_S = 8.0
"""Much longer than a writer's process takes to load torch."""
STEP_S = 0.05
"""The step time of a run that is killed or stopped. A run to the end makes its steps without
delay."""
END_S = 600.0
FOREVER = 10**9
MORE = 60
KINDS: dict[str, tuple[str, ...]] = {
    "explicit": (),
    "unmodified": ("--inject", "ddp"),
    "explicit_fsdp": ("-w", "2"),
    "unmodified_fsdp": ("--inject", "ddp", "-w", "2"),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill of all processes. ``step``: the last committed one; ``resumed_at``: the first step
    of the next run."""

    after_s: float
    step: int
    resumed_at: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """``ends``: each replica's output at its end."""

    exit_code: int
    ends: tuple[str, ...]
    output: str

    @property
    def end(self) -> str:
        """The result of all replicas."""
        assert len(set(self.ends)) == 1, self.output
        return self.ends[0]


class Runs:
    """Runs of one script over one directory of snapshots, one after the other."""

    def __init__(
        self, directory: Path, kind: str, steps: int = FOREVER, every_s: float = EVERY_S
    ) -> None:
        self.snapshots = directory / "snapshots"
        self._directory = directory
        self._kind = kind
        self._every_s = every_s
        self.steps = steps
        self._runs = 0

    @property
    def here(self) -> Path:
        """The directory of the latest run."""
        return self._directory / f"run{self._runs}"

    def start(
        self, replicas: int, *options: str, snapshot: bool = True, step_s: float = STEP_S
    ) -> Job:
        """Begin a run, in a new directory."""
        self._runs += 1
        where = self.here
        where.mkdir()
        taken = ("--snapshot", str(self.snapshots), "--snapshot-every", f"{self._every_s:g}s")
        return Job(
            where,
            (SCRIPTS / f"{self._kind}.py").read_text(),
            *("--device", "cpu", "--replicas", str(replicas), *KINDS[self._kind]),
            *(taken if snapshot else ()),
            *options,
            args=(str(self.steps), str(step_s)),
        )

    def finish(self, replicas: int, *options: str, snapshot: bool = True) -> Outcome:
        """Run to the end."""
        with self.start(replicas, *options, snapshot=snapshot, step_s=0.0) as job:
            code = job.end(END_S)
            ends = tuple(re.findall(r"\] finished (.*)", job.output))
            return Outcome(code, ends, job.output)

    def kill(
        self, replicas: int, after_s: float, *, with_snapshot: bool = False
    ) -> tuple[float, int, dict[int, float]]:
        """Kill a run as a whole, ``after_s`` after its first step.

        ``with_snapshot``: after the first step and the first snapshot, however slow the machine is.

        Returns:
            When it was killed, its last step, and when each step was committed.
        """
        with self.start(replicas) as job:
            job.expect(r"from step \d+ on")
            if with_snapshot:
                job.until(lambda: bool(snapshots(self.snapshots)), "a snapshot")
            threading.Event().wait(after_s)  # the time of the kill is the test's variable
            kill_everything(job)
            now = clock.now()
            times = _times(job.directory)
            return now, max(times, default=-1), times


def kill_everything(job: Job) -> None:
    """SIGKILL to the agent, the lighthouse, the spawner and all workers, the guards first."""
    job.process.kill()
    for pid in job.pids():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _times(directory: Path) -> dict[int, float]:
    found: dict[int, float] = {}
    for path in directory.glob("steps-*.txt"):
        for line in path.read_text().splitlines():
            step, _, when = line.partition(" ")
            if re.fullmatch(r"\d+\.\d+", when):
                found[int(step)] = min(float(when), found.get(int(step), float("inf")))
    return found


def began_at(output: str) -> int:
    """The step at which a run began."""
    return int(re.findall(r"from step (\d+) on", output)[0])


def kill_often(
    runs: Runs,
    replicas: int,
    kills: int,
    seed: int,
    longest_s: float,
    *,
    with_snapshot: bool = False,
) -> tuple[list[Kill], Outcome]:
    """Kill all processes ``kills`` times at random times, each time in a resumed run.

    The last run continues ``MORE`` steps beyond all others, to its end.
    """
    draw = random.Random(seed)
    runs.steps = FOREVER
    found: list[Kill] = []
    pending: tuple[float, float, int, dict[int, float]] | None = None
    begun: dict[int, float] = {}
    for _ in range(kills):
        after_s = draw.uniform(0.0, longest_s)
        now, step, times = runs.kill(replicas, after_s, with_snapshot=with_snapshot)
        first = min(times, default=None)
        if pending is not None and first is not None:
            found.append(_lost(pending, first))
        if first is not None:
            begun.update(times)
            pending = (after_s, now, step, dict(begun))
    runs.steps = max(begun, default=0) + MORE
    last = runs.finish(replicas)
    if pending is not None:
        found.append(_lost(pending, began_at(last.output)))
    return found, last


def _lost(killed: tuple[float, float, int, dict[int, float]], resumed_at: int) -> Kill:
    """The lost time: from the begin of the snapshot's step to the kill."""
    after_s, now, step, times = killed
    since = times.get(resumed_at, now) - STEP_S if resumed_at <= step else now
    return Kill(after_s, step, resumed_at, max(0.0, now - since))
