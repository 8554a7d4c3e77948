"""examples/train_resume.py: stopped as a whole, in every way, it goes on where it was saved."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from tests.e2e.job import Job

SCRIPT = Path(__file__).parents[2] / "examples" / "train_resume.py"
REPLICAS = 2
SAVE_EVERY = 10
MORE_STEPS = 30
FOREVER = 10**9
EXIT_CODES = {"SIGTERM": 75, "SIGINT": 130}

pytestmark = pytest.mark.timeout(1200)


class Resume:
    """Runs of the example, one after the other, over one checkpoint."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs = 0

    def run(self, steps: int = FOREVER) -> Job:
        """One run, in a directory of its own."""
        self._runs += 1
        own = self._directory / f"run{self._runs}"
        own.mkdir()
        return Job(
            own,
            *("--device", "cpu", "--replicas", str(REPLICAS)),
            script=SCRIPT,
            STEPS=str(steps),
            SAVE_EVERY=str(SAVE_EVERY),
            CHECKPOINT=str(self._directory / "checkpoint.pt"),
        )

    def step(self) -> int:
        """The step of the checkpoint."""
        saved = torch.load(self._directory / "checkpoint.pt", weights_only=True)
        return int(saved["manager"]["step"])


def saved(job: Job) -> list[int]:
    """The steps that this run has saved, in order."""
    return [int(step) for step in re.findall(r"\] saved step (\d+)\n", job.output)]


def assert_resumed(job: Job, *steps: int) -> None:
    """All replicas have begun at the same one of ``steps``; 0: there was no file."""
    found = re.findall(r"\] resumed at step (\d+)\n", job.output)
    if steps == (0,):
        assert not found, job.output
        return
    assert len(found) == REPLICAS and len(set(found)) == 1 and int(found[0]) in steps, job.output
    assert f"from step {found[0]} on" in job.output
    assert "healed" not in job.output  # all hold the same


def assert_left(job: Job) -> None:
    """Both have left at a boundary, the last step is saved, and no line reads like a failure."""
    steps = re.findall(r"replica \d: drained, (\d+) steps, .* exit status 75", job.output)
    assert steps == [str(saved(job)[-1])] * REPLICAS, job.output
    assert "Training restarts" not in job.output
    assert "no other has room" not in job.output


def final(job: Job) -> str:
    """The hash of all replicas' final parameters."""
    found = re.findall(r"parameters ([0-9a-f]{16})", job.output)
    assert len(found) == REPLICAS and len(set(found)) == 1, job.output
    return found[0]


def kill_all(job: Job) -> None:
    """SIGKILL to every process at once, the guards first, so that nothing saves or cleans up."""
    job.process.kill()
    for pid in job.pids():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # a guard was faster
    job.process.wait()
    assert job.left() == []


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param(("SIGTERM", "SIGKILL"), id="short"),
        pytest.param(
            ("SIGINT", "SIGTERM", "SIGKILL", "SIGKILL", "SIGINT"), id="long", marks=pytest.mark.slow
        ),
    ],
)
def test_a_job_that_is_stopped_goes_on_to_the_very_same_parameters(
    tmp_path: Path, stops: tuple[str, ...]
) -> None:
    """SIGTERM and SIGINT save the last step; SIGKILL of everything leaves a whole, older file."""
    resume = Resume(tmp_path)
    begins = [0]  # where the next run may begin
    for name in stops:
        with resume.run() as job:
            job.until(lambda j=job: saved(j), "checkpoint")  # type: ignore[misc]
            if name == "SIGKILL":
                kill_all(job)
            else:
                job.signal(signal.Signals[name])
                assert job.end() == EXIT_CODES[name]
                assert_left(job)
            assert_resumed(job, *begins)
            # A kill may come between files and the lines that report them.
            begins = [resume.step() if name == "SIGKILL" else saved(job)[-1]]
            assert begins[0] >= saved(job)[-1]

    goal = begins[-1] + MORE_STEPS
    with resume.run(steps=goal) as job:
        assert job.end() == 0
        assert_resumed(job, *begins)
    (tmp_path / "whole").mkdir()
    with Resume(tmp_path / "whole").run(steps=goal) as whole:
        assert whole.end() == 0
        assert_resumed(whole, 0)
    assert final(job) == final(whole)


def test_a_writer_that_is_killed_heals_and_another_one_writes(tmp_path: Path) -> None:
    """Its replacement finds a file older than its peers, and takes their state instead."""
    resume = Resume(tmp_path)
    with resume.run() as job:
        job.until(lambda: saved(job), "checkpoint")
        writer = re.findall(r"\[(\d)\.0\] saved step", job.output)[0]
        os.kill(job.worker(int(writer)), signal.SIGKILL)
        job.expect(rf"\[{writer}\.0\] resumed at step")
        job.expect(rf"Replica {writer} healed")
        before = len(saved(job))
        job.until(lambda: len(saved(job)) >= before + 2, "more checkpoints")
        assert job.drain() == EXIT_CODES["SIGTERM"]
        steps = saved(job)
        assert steps == sorted(steps), steps  # never back
        assert_left(job)
    with resume.run(steps=steps[-1] + MORE_STEPS) as job:
        assert job.end() == 0
        assert_resumed(job, steps[-1])
    final(job)
