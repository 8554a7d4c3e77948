"""Two unmodified torchft trainers under ``ftrun lighthouse --torchft-bind``, with kills.

``python -m tests.torchft.wire_job`` prints the story with its times; the test of the same name
checks its facts. Not here: the trainer (train.py).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.jobs import THIS_TREE, Command, Lighthouse, ask, write_at_once

TORCHFT = re.compile(r"TORCHFT_LIGHTHOUSE=http://(\S+) ")


class Trainer(Command):
    """A trainer; its lines are facts about steps."""

    def __init__(self, directory: Path, group: int, lighthouse: str, goal: Path) -> None:
        more = {
            "REPLICA_GROUP_ID": str(group),
            "TORCHFT_LIGHTHOUSE": f"http://{lighthouse}",
            "GOAL": str(goal),
            # By default torchft's manager asks once. If a lighthouse dies with a trainer's request,
            # the trainer dies at its quorum timeout.
            "TORCHFT_QUORUM_RETRIES": "240",
            "RUST_LOG": "error",
            "PYTHONWARNINGS": "ignore",
        }
        words = (sys.executable, "-m", "tests.torchft.train")
        super().__init__(directory, words, {**THIS_TREE, **more})
        self.group = group

    def steps(self, after: int = 0) -> list[dict[str, Any]]:
        """All steps committed until now, in the output after ``after`` characters."""
        whole, _, _ = self.output.rpartition("\n")
        found = [json.loads(line) for line in whole[after:].splitlines() if line[:7] == '{"step"']
        return [step for step in found if step["committed"]]

    def commit(self, replicas: int, after: int) -> dict[str, Any]:
        """The first step, after ``after`` characters of output, that ``replicas`` replicas have
        committed."""

        def found() -> list[dict[str, Any]]:
            return [step for step in self.steps(after) if step["replicas"] == replicas]

        self.until(found, f"commit of {replicas} replicas")
        return found()[0]


class Job:
    """The lighthouse, the trainers, and the story until now."""

    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        self.directory = directory
        self.goal = directory / "goal"
        self.address = "127.0.0.1:0"
        self.http = "127.0.0.1:0"
        self.commands: list[Command] = []
        self.trainers: list[Trainer] = []
        self.quorum_ids: list[int] = []
        self._tell = tell
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """Print a line of the story."""
        self._tell(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def start_lighthouse(self) -> Lighthouse:
        """Start the lighthouse, on the ports that it had before."""
        wire = ("--torchft-bind", self.address, "--torchft-heartbeat-timeout", "2")
        lighthouse = Lighthouse(self.directory, "--http", self.http, *wire)
        self.commands.append(lighthouse)
        self.http = lighthouse.http
        (self.address,) = lighthouse.expect(TORCHFT.pattern)
        return lighthouse

    def start_trainer(self, group: int) -> Trainer:
        """Start a trainer; it has no step yet."""
        trainer = Trainer(self.directory, group, self.address, self.goal)
        self.commands.append(trainer)
        self.trainers.append(trainer)
        return trainer

    def status(self) -> str:
        """The present output of ``ftrun status``."""
        where = ("--lighthouse", self.http, "--token-file", str(self.directory / "token"))
        done = ask(self.directory, "status", "--once", *where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def committed(self, trainer: Trainer, replicas: int, after: int | None = None) -> None:
        """Wait for a new commit by ``replicas`` replicas, and print it."""
        began = time.monotonic()
        seen = len(trainer.output) if after is None else after
        facts = trainer.commit(replicas, seen)
        self.quorum_ids.append(facts["quorum_id"])
        self.tell(
            f"trainer {trainer.group}: step {facts['step']} committed by {replicas} of them in "
            f"quorum {facts['quorum_id']}, {time.monotonic() - began:.1f} s later"
        )


@contextmanager
def job(tell: Callable[[str], None]) -> Iterator[Job]:
    """A job; at its end all its processes and files are removed."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        found = Job(Path(directory), tell)
        try:
            yield found
        finally:
            for command in found.commands:
                stack.push(command)


def play(job: Job) -> None:
    """Play the whole story."""
    lighthouse = job.start_lighthouse()
    job.tell(f"ftrun lighthouse --torchft-bind {job.address}")
    first, second = job.start_trainer(0), job.start_trainer(1)
    job.committed(first, 2, 0)
    job.tell("kill -9 trainer 1")
    second.kill()
    job.committed(first, 1)
    job.tell("trainer 1 is started again")
    second = job.start_trainer(1)
    job.committed(second, 2, 0)
    job.tell("kill -9 the lighthouse")
    lighthouse.kill()
    lighthouse = job.start_lighthouse()
    job.tell("it is started again, on the same directory and port")
    job.committed(second, 2)
    job.tell("kill -9 the lighthouse and trainer 1")
    lighthouse.kill()
    second.kill()
    second = job.start_trainer(1)
    job.start_lighthouse()
    job.tell("both are started again")
    job.committed(second, 2, 0)
    for line in job.status().splitlines():
        job.tell(f"    {line}".rstrip())
    goal = max(step["step"] for step in first.steps()) + 200
    write_at_once(job.goal, str(goal))
    codes = [first.end(), second.end()]
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
