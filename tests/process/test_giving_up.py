"""A replica that has no restart left: the job continues without it, or ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.jobs import Job, ask

TRAIN = """
import ctypes, os, pathlib, sys, time
import torch, ftrun
from ftrun import DistributedDataParallel, Optimizer
how, here = sys.argv[1], pathlib.Path(sys.argv[2])
me = os.environ["REPLICA_GROUP_ID"]
inner = torch.nn.Linear(2, 2)
optim = torch.optim.SGD(inner.parameters(), 0.01)
manager = ftrun.manager(
    lambda state: (inner.load_state_dict(state["m"]), optim.load_state_dict(state["o"])),
    lambda: {"m": inner.state_dict(), "o": optim.state_dict()},
)
ddp, optimizer = DistributedDataParallel(manager, inner), Optimizer(manager, optim)
while not (here / "stop").exists():
    optimizer.zero_grad()
    loss = ddp(torch.randn(4, 2)).square().mean()
    if manager.current_step() >= 3 and not (here / "mended").exists():
        if how == "all" or me == "1":
            raise ValueError("a bad batch")
    loss.backward()
    optimizer.step()
    if manager.current_step() % 8 == 0:
        print("trains", manager.num_participants(), flush=True)
    time.sleep(0.05)
"""


def _ftrun(job: Job, *words: str) -> str:
    done = ask(job.directory, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_others_go_on_without_it_until_people_start_it_again(tmp_path: Path) -> None:
    options = ("--replicas", "3", "--min-replicas", "2")
    with Job(tmp_path, TRAIN, *options, args=("one", str(tmp_path))) as job:
        job.expect(r"Replica 1 is given up: (crash loop|restarting will not help): replica 1")
        job.expect("Replicas 0 and 2 train on without it. To start it again: ftrun restart 1")
        job.expect(r"\] trains 2")
        assert "given up" in _ftrun(job, "status", "job")
        (tmp_path / "mended").touch()
        _ftrun(job, "restart", "job", "1")
        job.expect(r"\] trains 3")
        (tmp_path / "stop").touch()
        assert job.end() == 0
        assert "The job has finished after" in job.output
        assert job.left() == []


@pytest.mark.parametrize(("options", "code"), [((), 77), (("--min-replicas", "1"), 0)])
def test_a_job_that_has_finished_without_it_says_so(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    words = ("--replicas", "2", *options)
    with Job(tmp_path, TRAIN, *words, args=("one", str(tmp_path))) as job:
        job.expect("Replica 1 is given up")
        job.expect(r"\] trains 1")
        (tmp_path / "stop").touch()
        assert job.end() == code
        enough = "" if code else ", which --min-replicas 1 allows"
        who = r"replica 1 was given up at step \d+ \(.* has failed .* in the same way .*\)"
        how = r" degraded, with exit code 77 \(" if code else ": "
        reason = f"1 of 2 replicas has finished{enough}: {who}"
        assert re.search(f"The job has finished{how}{reason}", job.output), job.output
        assert "  replica 1: " in job.output
        ending = json.loads((job.logs / "job" / "exit.json").read_text())
        assert (ending["exit_code"], ending["kind"]) == (code, "degraded" if code else "finished")
        assert re.fullmatch(reason, ending["reason"])
        assert job.left() == []


def test_it_ends_the_job_where_too_few_are_left(tmp_path: Path) -> None:
    options = ("--replicas", "2", "--min-replicas", "2")
    with Job(tmp_path, TRAIN, *options, args=("one", str(tmp_path))) as job:
        assert job.end() == 73
        assert "has failed twice in the same way at step 3" in job.output
        assert "without it" not in job.output
        assert job.left() == []


def test_what_all_raise_at_one_step_ends_the_job_at_once(tmp_path: Path) -> None:
    options = ("--replicas", "2", "--min-replicas", "1")
    with Job(tmp_path, TRAIN, *options, args=("all", str(tmp_path))) as job:
        assert job.end() == 1
        assert "all 2 replicas have raised the same exception at step 3" in job.output
        assert "without it" not in job.output
        assert job.left() == []
