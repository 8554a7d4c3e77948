"""A whole job under test whose workers write down each commit: tests/e2e/train.py."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from ftrun.base import clock
from tests import jobs

SCRIPT = Path(__file__).parent / "train.py"
STEPS_TO_END = 60


class Job(jobs.Job):
    """One ``ftrun`` command. ``more``: variables for the workers; ``name``: of its logs."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        script: Path = SCRIPT,
        name: str = "logs",
        fresh: bool = False,
        **more: str,
    ) -> None:
        self.out = directory / "steps"
        self.out.mkdir(exist_ok=True)
        self._stop = directory / "stop"
        own = {"E2E_OUT": str(self.out), "E2E_STOP": str(self._stop), **more}
        super().__init__(directory, script, *options, environment=own, logs=name, fresh=fresh)

    def close(self) -> None:
        """P1: nothing is left of a job whose agent is killed. Called at the end of the ``with``."""
        self.kill()
        left = self.left(jobs.END_S)
        super().close()
        assert not left

    def records(self) -> dict[str, list[tuple[int, str, str]]]:
        """Per worker process: (step, lineage, digest) of each commit."""
        return {path.name: _records(path) for path in self.out.glob("*.*.*")}

    def members(self) -> dict[tuple[str, str], int]:
        """The newest living worker process of each (replica, group_rank) that has committed."""
        found: dict[tuple[str, str], int] = {}
        for path in sorted(self.out.glob("*.*.*"), key=lambda p: p.stat().st_mtime_ns):
            replica, rank, pid = path.name.split(".")
            if Path(f"/proc/{pid}").exists() and path.stat().st_size:
                found[replica, rank] = int(pid)
        return found

    def step(self) -> int:
        """The highest committed step of any worker."""
        return max((r[-1][0] for r in self.records().values() if r), default=0)

    def await_members(self, replicas: int, workers: int = 1) -> None:
        """Wait until that many worker processes train and commit."""
        self.until(lambda: len(self.members()) == replicas * workers, f"{replicas} replicas")

    def await_successor(self, seat: tuple[str, str], before: dict[tuple[str, str], int]) -> None:
        """Wait until another process than ``before`` commits in that seat."""
        old = before[seat]
        self.until(lambda: self.members().get(seat, old) != old, f"a successor of pid {old}")

    def await_steps(self, more: int) -> None:
        """Wait until ``more`` steps have been committed from now on."""
        goal = self.step() + more
        self.until(lambda: self.step() >= goal, f"step {goal}")

    def end(self, timeout_s: float = jobs.END_S) -> int:
        """Wait for the job's own end; ``timeout_s``: without any progress."""
        seen, deadline = (-1, -1), 0.0
        while self.process.poll() is None:
            now = self.step(), len(self.output)
            if now > seen:
                seen, deadline = now, clock.now() + timeout_s
            assert clock.now() < deadline, f"stands still:\n{self.output}"
            self.prints_more(len(self.output), jobs.LOOK_S)
        return super().end(timeout_s)

    def finish(self) -> int:
        """Let the script train some more steps and end; returns the exit code."""
        jobs.write_at_once(self._stop, str(self.step() + STEPS_TO_END))
        return self.end()

    def drain(self) -> int:
        """SIGTERM: all workers leave at a boundary; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.end()


def _records(path: Path) -> list[tuple[int, str, str]]:
    found = []
    for line in path.read_text().split("\n")[:-1]:
        step, lineage, digest = line.split()
        found.append((int(step), lineage, digest))
    return found


def assert_one_state_per_lineage(job: Job) -> None:
    """S1: equal lineages, equal bits. C2: steps rise by one, or by a heal."""
    digests: dict[str, set[str]] = {}
    for name, records in job.records().items():
        rank = name.split(".")[1]
        for _, lineage, digest in records:
            digests.setdefault(f"{rank}:{lineage}", set()).add(digest)
        steps = [step for step, _, _ in records]
        assert steps == sorted(set(steps)), f"C2: {name} went {steps}"
    unlike = {lineage: found for lineage, found in digests.items() if len(found) > 1}
    assert not unlike, f"S1: {unlike}"


def hashes(job: Job) -> list[str]:
    """The final parameters' hashes, one per replica that finished."""
    return re.findall(r"\] hash ([0-9a-f]{16})", job.output)
