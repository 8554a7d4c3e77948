"""Jobs that go on from snapshots: with other numbers of replicas, and what is refused or told."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ftrun.base import clock
from ftrun.snapshots.directory import look, snapshots
from tests.snapshots.jobs import FOREVER, KINDS, Runs, began_at, kill_everything

pytestmark = pytest.mark.timeout(900)
MORE = 60
LOOK_S = 0.05
FIRST = ["explicit", pytest.param("unmodified", marks=pytest.mark.slow)]


def interrupted(
    tmp_path: Path, kind: str = "explicit", replicas: int = 2, count: int = 2, *options: str
) -> Runs:
    """A job of which ``count`` snapshots were taken before everything was killed."""
    runs = Runs(tmp_path, kind, FOREVER, every_s=1.0)
    with runs.start(replicas, *options) as job:
        job.expect(r"wrote the snapshot of step \d+")
        while len(snapshots(runs.snapshots)) < count:
            _await_change(runs.snapshots)
        kill_everything(job)
    runs.steps = step_of(runs) + MORE
    return runs


def _await_change(where: Path, timeout_s: float = 120.0) -> None:
    before, deadline = snapshots(where), clock.now() + timeout_s
    while snapshots(where) == before:
        assert clock.now() < deadline, "no snapshot came"
        threading.Event().wait(LOOK_S)


def step_of(runs: Runs, output: str = "") -> int:
    """The step of the newest snapshot; ``output`` is told if there is none."""
    found = look(runs.snapshots).newest
    assert found is not None, output
    return found.manifest.step


def parameters(where: Path) -> dict[str, torch.Tensor]:
    """What replica 0 has saved at its end."""
    found: dict[str, torch.Tensor] = torch.load(where / "parameters-0.pt", weights_only=True)
    return found


NUMBERS = [
    ("explicit", 2, 3),
    pytest.param("explicit", 3, 1, marks=pytest.mark.slow),
    pytest.param("explicit_fsdp", 2, 1, marks=pytest.mark.slow),  # 1, then 2: torch alone reads
]


def workers_of(kind: str) -> int:
    """Of each replica of a kind of job."""
    return 2 if "-w" in KINDS[kind] else 1


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, that this process reads alone
def test_torch_alone_reads_what_several_workers_have_written(tmp_path: Path) -> None:
    """The shards are one tensor each: what the job gathers when it has gone on for one step."""
    runs = interrupted(tmp_path, "explicit_fsdp", replicas=1, count=1)
    found = look(runs.snapshots).newest
    assert found is not None
    runs.steps = found.manifest.step
    last = runs.finish(2, "--snapshot-every", "1h")
    assert last.exit_code == 0 and began_at(last.output) == runs.steps, last.output
    gathered = parameters(runs.here)
    read = {"model": {name: torch.zeros_like(value) for name, value in gathered.items()}}
    dcp.load(read, checkpoint_id=found.path, no_dist=True)
    assert f"finished {runs.steps + 1}" in last.output
    for name, value in gathered.items():  # AdamW moves a weight by its learning rate, 0.002
        assert torch.allclose(read["model"][name], value, rtol=0.0, atol=5e-3), name
    dcp_to_torch_save(found.path, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert all(torch.equal(whole["model"][name], read["model"][name]) for name in gathered)
    refused = runs.finish(1, "-w", "3")
    assert refused.exit_code == 2 and "and 2 workers per replica; this is" in refused.output


def test_a_script_goes_on_under_either_name_of_its_form(tmp_path: Path) -> None:
    """A snapshot knows what ``auto`` has turned out to be, and ``auto`` goes on from that form."""
    runs = interrupted(tmp_path, "unmodified", 2, 1, "--inject", "auto")
    found = look(runs.snapshots).newest
    assert found is not None and found.manifest.origin.inject == "ddp"
    last = runs.finish(2, "--inject", "auto")
    assert last.exit_code == 0 and began_at(last.output) == found.manifest.step, last.output
    refused = runs.finish(2, "--inject", "explicit")
    assert refused.exit_code == 2 and "with --inject ddp and 1" in refused.output


OTHERS = [pytest.param(2, 3, marks=pytest.mark.slow), (3, 1)]


@pytest.mark.parametrize(("kind", "before", "after"), NUMBERS)
def test_another_number_of_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, before: int, after: int
) -> None:
    """The batch of a step is split among the replicas, so their number only rounds differently."""
    monkeypatch.setenv("DROPOUT", "0")
    runs = interrupted(tmp_path, kind, replicas=before)
    step = step_of(runs)
    last = runs.finish(after)
    assert last.exit_code == 0 and began_at(last.output) == step, last.output
    assert len(last.ends) == after * workers_of(kind) and last.end, last.output
    resumed = parameters(runs.here)
    calm = runs.finish(before, snapshot=False)
    assert calm.exit_code == 0
    for name, value in parameters(runs.here).items():
        assert torch.allclose(resumed[name], value, rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize(("before", "after"), OTHERS)
def test_an_unmodified_script_among_another_number(tmp_path: Path, before: int, after: int) -> None:
    runs = interrupted(tmp_path, "unmodified", before)
    step = step_of(runs)
    last = runs.finish(after)
    assert last.exit_code == 0 and began_at(last.output) == step, last.output
    assert len(last.ends) == after and last.end.startswith(f"{runs.steps} "), last.output
    assert last.output.count(f"done 0→{step}") == after, last.output


@pytest.mark.parametrize("kind", [*FIRST, "explicit_fsdp"])
def test_all_workers_die_and_their_agent_does_not(tmp_path: Path, kind: str) -> None:
    """They are started again by it, and find the snapshot that was taken meanwhile."""
    runs = Runs(tmp_path, kind, FOREVER, every_s=1.0)
    with runs.start(2) as job:
        job.expect(r"wrote the snapshot of step \d+")
        before = job.output.count("in quorum")
        workers = job.worker(0), job.worker(1)
        job.signal(signal.SIGSTOP)  # else the second one may be in a quorum of its own before
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        job.signal(signal.SIGCONT)
        job.expect(r"in quorum .* from step \d+ on", before + 1)
        job.signal(signal.SIGTERM)
        assert job.end() == 75, job.output
    begun = [int(step) for step in re.findall(r"in quorum .* from step (\d+) on", job.output)]
    assert begun[before:] and min(begun[before:]) > 0, job.output
    drained = [int(steps) for steps in re.findall(r"(?:drained|killed), (\d+) steps", job.output)]
    assert len(drained) == 2 and min(drained) >= begun[before], job.output


@pytest.mark.slow  # as the unit tests of training/snapshots.py
def test_a_damaged_one_is_told_and_the_one_before_is_taken(tmp_path: Path) -> None:
    runs = interrupted(tmp_path)
    newest, older = snapshots(runs.snapshots)[:2]
    data = bytearray((newest / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "__0_0.distcp").write_bytes(data)
    last = runs.finish(2)
    assert last.exit_code == 0 and began_at(last.output) == int(older.name[5:]), last.output
    assert f"The snapshot {newest.name} is damaged and was renamed: __0_0.distcp" in last.output
    assert (runs.snapshots / f"{newest.name}.damaged").is_dir()


def test_resume_alone_and_none(tmp_path: Path) -> None:
    """``--resume DIR`` needs no ``--snapshot``; ``--resume none`` sets aside what is there."""
    runs = interrupted(tmp_path)
    step = step_of(runs)
    last = runs.finish(2, "--resume", str(runs.snapshots), snapshot=False)
    assert last.exit_code == 0 and began_at(last.output) == step, last.output
    assert f"The job resumes from step {step}, the newest snapshot in" in last.output
    runs.steps = MORE
    anew = runs.finish(2, "--resume", "none")
    assert anew.exit_code == 0 and began_at(anew.output) == 0, anew.output
    assert "--resume none: the job starts over" in anew.output
    [aside] = runs.snapshots.glob("earlier-*")
    assert len(snapshots(aside)) >= 2 and str(aside) in anew.output


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = interrupted(tmp_path, count=1)
    empty = tmp_path / "empty"
    refused = runs.finish(2, "--resume", str(empty), snapshot=False)
    assert refused.exit_code == 2 and "there is no snapshot" in refused.output
    refused = runs.finish(2, "--inject", "ddp")
    assert refused.exit_code == 2 and "is a snapshot of script with" in refused.output
    refused = runs.finish(2, "-w", "2")
    assert refused.exit_code == 2 and "and 1 workers per replica; this is" in refused.output
    monkeypatch.setenv("WIDTH", "65")
    refused = runs.finish(2, "--max-restarts", "0")
    assert refused.exit_code != 0
    assert "default.model.0.weight: 65x2 here, 64x2 in the snapshot" in refused.output
    assert "began at step" not in refused.output


def test_a_directory_that_goes_away_is_told_and_training_goes_on(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "explicit", FOREVER, every_s=1.0)
    with runs.start(2) as job:
        job.expect(r"wrote the snapshot of step \d+")
        shutil.rmtree(runs.snapshots, ignore_errors=True)
        shutil.rmtree(runs.snapshots, ignore_errors=True)
        runs.snapshots.touch()
        job.expect(r"the snapshot of step \d+ was not written: .*Training continues")
        runs.snapshots.unlink()
        _await_change(runs.snapshots)
        kill_everything(job)
    assert "died" not in job.output


@pytest.mark.parametrize("kind", [*FIRST, "explicit_fsdp"])
def test_a_job_that_is_stopped_takes_a_last_one(tmp_path: Path, kind: str) -> None:
    """SIGTERM loses no step, if the grace is long enough for processes that write to start."""
    runs = Runs(tmp_path, kind, FOREVER, every_s=3600.0)
    with runs.start(2, "--grace", "120") as job:
        job.expect(r"from step 0 on")
        _await_steps(job.directory, 30, name="steps-0.0.txt" if workers_of(kind) > 1 else "")
        job.signal(signal.SIGTERM)
        assert job.end() == 75, job.output
    [drained] = set(re.findall(r"drained, (\d+) steps", job.output))
    assert step_of(runs, job.output) == int(drained), job.output
    if workers_of(kind) > 1:
        return  # such jobs that go on: tests/snapshots/test_kills.py
    runs.steps = int(drained) + MORE
    last = runs.finish(2)
    assert last.exit_code == 0 and began_at(last.output) == int(drained)
    assert last.end == runs.finish(2, snapshot=False).end


def _await_steps(where: Path, count: int, timeout_s: float = 120.0, name: str = "") -> None:
    deadline = clock.now() + timeout_s
    path = where / (name or "steps-0.txt")
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert clock.now() < deadline, "it does not train"
        threading.Event().wait(LOOK_S)


def test_a_script_without_a_manager_is_told(tmp_path: Path) -> None:
    from tests.jobs import Job

    with Job(
        tmp_path, "print('hello')\n", "--device", "cpu", "--snapshot", str(tmp_path / "s")
    ) as job:
        assert job.end() == 0
    assert "--snapshot takes no snapshots: the script makes neither torch's" in job.output
