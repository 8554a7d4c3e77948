"""A batch job under a Slurm of the tests: its output, its processes by node, its end."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.engines.slurm import Slurm
from tests.jobs.forks import ROOT
from tests.jobs.process import END_S, LOOK_S, START_S, write_at_once

FTRUN = f"{shlex.quote(sys.executable)} -m ftrun"
TRAIN, DDP = (str(Path(__file__).with_name(name)) for name in ("train.py", "ddp.py"))
BATCH = """#!/bin/bash
cd {directory}
export {variables}
{line}
"""
AGENT = r" acts ftrun\.cli "
LIGHTHOUSE = r"^ftrun lighthouse"
ASK_EVERY_S = 2.0
"""Each query starts a program of Slurm's, which takes CPU time."""
STEPS_LEFT = 60
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class SlurmJob:
    """A job whose batch script is ``line``; it is cancelled at the end of the ``with``.

    A ``line`` that begins with ``--`` is for ``ftrun sbatch``. ``options``: of sbatch.
    ``environment``: more variables for the script.
    """

    def __init__(
        self,
        slurm: Slurm,
        directory: Path,
        options: tuple[str, ...],
        line: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.slurm = slurm
        self.directory = directory
        self._out = directory / "out"
        values = {
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(directory / "state"),
            **(environment or {}),
        }
        words = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
        out = (f"--output={self._out}", "--open-mode=append", "--time=10")
        head = ("--parsable", *out, *options)
        if line.startswith("-- "):
            known = ("env", f"--chdir={directory}", *(f"{n}={v}" for n, v in values.items()))
            self.id = slurm.ask(*known, *shlex.split(f"{FTRUN} sbatch"), *head, *shlex.split(line))
            return
        script = directory / "batch"
        fields = {"directory": directory, "variables": " ".join(words), "line": line}
        script.write_text(BATCH.format(**fields))
        self.id = slurm.ask("sbatch", *head, str(script))

    def ends_within(self, seconds: int) -> None:
        """Make the job's time limit end within this time."""
        self.slurm.ask("scontrol", "update", f"JobId={self.id}", f"EndTime=now+{seconds}")

    def __enter__(self) -> SlurmJob:
        return self

    def __exit__(self, *_: object) -> None:
        if self.state() not in ENDED:
            self.slurm.ask("scancel", self.id)
            self.end()

    @property
    def output(self) -> str:
        """The job's output."""
        return self._out.read_text() if self._out.exists() else ""

    def expect(self, pattern: str, count: int = 1, limit_s: float = START_S) -> list[Any]:
        """Wait until its output has ``count`` matches; returns all, like ``re.findall``."""
        end = time.monotonic() + limit_s
        asks_at, is_over = time.monotonic() + ASK_EVERY_S, False
        while True:
            if (now := time.monotonic()) >= asks_at:
                asks_at, is_over = now + ASK_EVERY_S, self.state() in ENDED or now > end
            found = re.findall(pattern, self.output)
            if len(found) >= count:
                return found
            assert not is_over, f"no {count} x {pattern!r}:\n{self.output}"
            time.sleep(5 * LOOK_S)

    def train_to_the_end(self, replicas: int) -> int:
        """Make a job of TRAIN end soon; returns its last step, which ``replicas`` replicas
        reach."""
        last = int(self.expect(r"step (\d+) of")[-1]) + STEPS_LEFT
        write_at_once(self.directory / "last", str(last))
        self.expect(f"done at {last}", replicas)
        return last

    def facts(self) -> dict[str, str]:
        """Slurm's facts about the job."""
        words = self.slurm.ask("scontrol", "show", "job", "-o", self.id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self) -> str:
        """``RUNNING``, ``COMPLETED`` and so on."""
        return self.facts()["JobState"]

    def run_again(self) -> None:
        """Wait until Slurm has it in its queue again, after a requeue, and start it.

        Without this, Slurm waits two minutes, so that the end of the first run is not taken for the
        end of the second one. A node refuses the second run in the second in which the first one
        has ended.
        """
        self._await_state("PENDING")
        end = time.monotonic() + END_S
        while any(self._steps()):
            assert time.monotonic() < end, list(self._steps())
            time.sleep(10 * LOOK_S)
        self.slurm.ask("scontrol", "update", f"JobId={self.id}", "StartTime=now+2")
        self._await_state("RUNNING")

    def _steps(self) -> Iterator[str]:
        """Slurm's processes that run its steps on the nodes."""
        for machine in self.slurm.machines.nodes.values():
            lines = machine.processes().values()
            yield from (line for line in lines if f"slurmstepd: [{self.id}." in line)

    def _await_state(self, state: str) -> None:
        end = time.monotonic() + START_S
        while (found := self.state()) != state:
            is_late = time.monotonic() > end or found == "FAILED"
            assert not is_late, f"not {state}: {self.facts()}\n{self.output}"
            time.sleep(10 * LOOK_S)

    def end(self) -> tuple[str, str]:
        """Wait for the end; returns the job's state and its exit code (``CODE:SIGNAL``)."""
        end = time.monotonic() + END_S
        while (facts := self.facts())["JobState"] not in ENDED:
            assert time.monotonic() < end, f"job {self.id} is {facts['JobState']}:\n{self.output}"
            time.sleep(10 * LOOK_S)
        return facts["JobState"], facts["ExitCode"]

    def process(self, node: int, pattern: str) -> int:
        """Wait for the one process on a node whose command line matches; returns its pid."""
        end = time.monotonic() + START_S
        while True:
            found = self.slurm.machines.nodes[node].processes()
            match [pid for pid, line in found.items() if re.search(pattern, line)]:
                case [pid]:
                    return pid
            assert time.monotonic() < end, f"no {pattern} on node {node}: {found}"
            time.sleep(LOOK_S)

    def left(self) -> str:
        """The job's processes, on any node, that were left when its epilog began."""
        path = self.slurm.directory / f"left.{self.id}"
        return path.read_text() if path.exists() else ""
