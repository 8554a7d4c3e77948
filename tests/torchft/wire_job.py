"""Two unmodified trainers of torchft's under ``ftrun lighthouse --torchft-bind``, with kills.

``python -m tests.torchft.wire_job`` prints the story with its times; the test of the same name asks
for its facts. Not here: the trainer (train.py).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE_S = 180.0
ROOT = Path(__file__).parents[2]
READY = re.compile(r"lighthouse ready: .*status (http\S+)/status")
TORCHFT = re.compile(r"TORCHFT_LIGHTHOUSE=http://(\S+) ")


class Process:
    """A process whose lines are kept; ``wait_for`` waits for one of them."""

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            command, env={**os.environ, **env}, cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, is_it: Callable[[str], Any], after: int = 0) -> Any:
        """The first true answer about a line behind the first ``after``."""
        deadline, at = time.monotonic() + DEADLINE_S, after
        with self._changed:
            while True:
                for line in self.lines[at:]:
                    at += 1
                    if found := is_it(line):
                        return found
                left_s = deadline - time.monotonic()
                has_ended = not self._reader.is_alive()
                assert left_s > 0 and not has_ended, f"{self.name}: {self.lines[-30:]}"
                self._changed.wait(min(left_s, 1.0))

    def end(self, number: int) -> int:
        """Signal it and reap it."""
        self.process.send_signal(number)
        return self.join()

    def join(self) -> int:
        """Wait for its end."""
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code


class Trainer(Process):
    """A trainer; its lines are facts about steps."""

    def __init__(self, group: int, lighthouse: str, goal: Path) -> None:
        env = {
            "REPLICA_GROUP_ID": str(group),
            "TORCHFT_LIGHTHOUSE": f"http://{lighthouse}",
            "GOAL": str(goal),
            # By default torchft's manager asks once, and a trainer whose question a lighthouse took
            # with it dies at its quorum timeout.
            "TORCHFT_QUORUM_RETRIES": "240",
            "RUST_LOG": "error",
            "PYTHONWARNINGS": "ignore",
        }
        super().__init__(f"trainer {group}", [sys.executable, "-m", "tests.torchft.train"], env)
        self.group = group

    def steps(self) -> list[dict[str, Any]]:
        """All committed steps so far."""
        found = [json.loads(line) for line in list(self.lines) if line.startswith('{"step"')]
        return [step for step in found if step["committed"]]

    def commit(self, replicas: int, after: int) -> dict[str, Any]:
        """The first step behind line ``after`` that so many replicas have committed."""

        def is_it(line: str) -> dict[str, Any] | None:
            facts = json.loads(line) if line.startswith('{"step"') else {}
            is_right = facts.get("committed") and facts["replicas"] == replicas
            return facts if is_right else None

        found: dict[str, Any] = self.wait_for(is_it, after)
        return found


class Job:
    """The lighthouse, the trainers, and the story so far."""

    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        self.directory = directory
        self.goal = directory / "goal"
        self.address = "127.0.0.1:0"
        self.http = "127.0.0.1:0"
        self.lighthouse: Process | None = None
        self.trainers: list[Trainer] = []
        self.quorum_ids: list[int] = []
        self._tell = tell
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """One line of the story."""
        self._tell(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def start_lighthouse(self) -> None:
        """On the ports that it had before."""
        command = [
            sys.executable, "-m", "ftrun", "lighthouse", "--bind", "127.0.0.1:0",
            "--http", self.http, "--state-dir", str(self.directory / "state"),
            "--token-file", str(self.directory / "token"), "--torchft-bind", self.address,
            "--torchft-heartbeat-timeout", "2",
        ]  # fmt: skip
        self.lighthouse = Process("lighthouse", command, {})
        found = self.lighthouse.wait_for(READY.search)
        self.http = found[1].removeprefix("http://")
        self.address = self.lighthouse.wait_for(TORCHFT.search)[1]

    def start_trainer(self, group: int) -> Trainer:
        """Start one; it has no step yet."""
        trainer = Trainer(group, self.address, self.goal)
        self.trainers.append(trainer)
        return trainer

    def kill_lighthouse(self) -> None:
        """kill -9."""
        assert self.lighthouse is not None
        self.lighthouse.end(signal.SIGKILL)

    def status(self) -> str:
        """What ``ftrun status`` prints now."""
        return subprocess.run(
            [sys.executable, "-m", "ftrun", "status", "--once", "--lighthouse", self.http,
             "--token-file", str(self.directory / "token")],
            cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=True,
            env={**os.environ, "COLUMNS": "110"},
        ).stdout  # fmt: skip

    def committed(self, trainer: Trainer, replicas: int, after: int | None = None) -> None:
        """Wait for a commit from now on by so many replicas, and tell it."""
        began = time.monotonic()
        seen = len(trainer.lines) if after is None else after
        facts = trainer.commit(replicas, seen)
        self.quorum_ids.append(facts["quorum_id"])
        self.tell(
            f"trainer {trainer.group}: step {facts['step']} committed by {replicas} of them in "
            f"quorum {facts['quorum_id']}, {time.monotonic() - began:.1f} s later"
        )


@contextmanager
def job(tell: Callable[[str], None]) -> Iterator[Job]:
    """A job of which nothing is left at the end."""
    with tempfile.TemporaryDirectory() as directory:
        found = Job(Path(directory), tell)
        try:
            yield found
        finally:
            everything = [*found.trainers, *([found.lighthouse] if found.lighthouse else [])]
            for process in everything:
                if process.process.poll() is None:
                    process.end(signal.SIGKILL)


def play(job: Job) -> None:
    """The whole story."""
    job.start_lighthouse()
    job.tell(f"ftrun lighthouse --torchft-bind {job.address}")
    first, second = job.start_trainer(0), job.start_trainer(1)
    job.committed(first, 2, 0)
    job.tell("kill -9 trainer 1")
    second.end(signal.SIGKILL)
    job.committed(first, 1)
    job.tell("trainer 1 is started again")
    second = job.start_trainer(1)
    job.committed(second, 2, 0)
    job.tell("kill -9 the lighthouse")
    job.kill_lighthouse()
    job.start_lighthouse()
    job.tell("it is started again, on the same directory and port")
    job.committed(second, 2)
    job.tell("kill -9 the lighthouse and trainer 1")
    job.kill_lighthouse()
    second.end(signal.SIGKILL)
    second = job.start_trainer(1)
    job.start_lighthouse()
    job.tell("both are started again")
    job.committed(second, 2, 0)
    for line in job.status().splitlines():
        job.tell(f"    {line}".rstrip())
    goal = max(step["step"] for step in first.steps()) + 200
    job.goal.with_suffix(".draft").write_text(str(goal))
    job.goal.with_suffix(".draft").replace(job.goal)
    codes = [first.join(), second.join()]
    ends = [trainer.steps()[-1] for trainer in (first, second)]
    words = ", ".join(f"step {end['step']} with weights {end['weights']}" for end in ends)
    job.tell(f"both end with exit codes {codes}: {words}")
    assert codes == [0, 0]


def main() -> None:
    """Print the story."""
    with job(print) as found:
        play(found)


if __name__ == "__main__":
    main()
