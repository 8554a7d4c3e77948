"""A whole job under test: ``ftrun`` as users start it, watched from outside.

Every wait has a deadline.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

FTRUN = str(Path(sys.executable).parent / "ftrun")
SCRIPT = Path(__file__).parent / "train.py"
DEADLINE_S = 180.0
STEPS_TO_END = 60


class Job:
    """One ``ftrun`` command and all its output.

    Args:
        directory: of its logs and the workers' records.
        options: of ftrun, before the script.
        environment: more variables for the workers.
        script: the training script.
    """

    def __init__(
        self, directory: Path, *options: str, script: Path = SCRIPT, name: str = "job", **more: str
    ) -> None:
        self.out = directory / "steps"
        self.out.mkdir(exist_ok=True)
        self.log = directory / f"{name}.log"
        environment = {
            **os.environ,
            "E2E_OUT": str(self.out),
            "E2E_STOP": str(self.out.with_name("stop")),
            "XDG_STATE_HOME": str(directory / "state"),
            **more,
        }
        command = [FTRUN, *options, "--log-dir", str(directory / "logs"), str(script)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=directory
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.wait(lambda: not self.processes(), "all processes to be gone")

    # ------------------------------------------------------------ what can be seen

    def text(self) -> str:
        """All output so far."""
        return self.log.read_text(errors="replace")

    def records(self) -> dict[str, list[tuple[int, str, str]]]:
        """Per worker process: (step, lineage, digest) of each commit."""
        return {path.name: _records(path) for path in self.out.glob("*.*.*")}

    def pids(self) -> dict[tuple[str, str], int]:
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

    def processes(self) -> dict[int, str]:
        """pid → command of everything that belongs to this job (it inherits our marker)."""
        marker = f"E2E_OUT={self.out}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = command.strip()
            except OSError:
                continue  # it has just ended
        return found

    def find(self, pattern: str) -> int:
        """The pid of the one process of the job whose command matches."""
        found = [pid for pid, text in self.processes().items() if re.search(pattern, text)]
        assert len(found) == 1, (pattern, self.processes())
        return found[0]

    # ------------------------------------------------------------ waiting

    def wait(
        self, condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S
    ) -> None:
        """Check until ``condition`` holds; the failure shows the output."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {timeout_s:g} s:\n{self.text()}"
            time.sleep(0.01)

    def wait_text(self, pattern: str, count: int = 1) -> None:
        """Wait until the output holds ``pattern`` ``count`` times."""
        self.wait(lambda: len(re.findall(pattern, self.text())) >= count, repr(pattern))

    def wait_members(self, replicas: int, workers: int = 1) -> None:
        """Wait until that many worker processes train and commit."""
        self.wait(lambda: len(self.pids()) == replicas * workers, f"{replicas} replicas")

    def wait_steps(self, more: int) -> None:
        """Wait until ``more`` steps have been committed from now on."""
        goal = self.step() + more
        self.wait(lambda: self.step() >= goal, f"step {goal}")

    def end(self) -> int:
        """Wait for the job's own end, as long as it makes progress; returns the exit code."""
        seen, changed_at = (0, 0), time.monotonic()
        while self.process.poll() is None:
            now = self.step(), len(self.text())
            if now > seen:
                seen, changed_at = now, time.monotonic()
            assert time.monotonic() < changed_at + DEADLINE_S, f"stands still:\n{self.text()}"
            time.sleep(0.01)
        return self.process.returncode

    def finish(self) -> int:
        """Let the script train some more steps and end; returns the exit code."""
        draft = self.out.with_name("stop.draft")
        draft.write_text(str(self.step() + STEPS_TO_END))
        draft.rename(self.out.with_name("stop"))
        return self.end()

    def wait_gone(self) -> None:
        """P1: nothing of the job is left. `scripts/chaos.py orphans` measures how soon."""
        self.wait(lambda: not self.processes(), "empty process table")

    def stop(self) -> int:
        """SIGTERM: all workers leave at a boundary."""
        self.process.send_signal(signal.SIGTERM)
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
    return re.findall(r"\] hash ([0-9a-f]{16})", job.text())
