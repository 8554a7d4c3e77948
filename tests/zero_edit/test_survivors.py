"""Workers of a replica of several die in their backward pass, and it restarts: the others lose no
step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.jobs import Job
from tests.zero_edit.test_workers import SIZE, ends, source

DEATHS = """
import os, signal
from pathlib import Path

RANK, LIFE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
DIES_IN_LIFE = (3, 2, 3)  # which rank of the second replica

def in_third_backward(y):
    steps = Path(f"steps-{os.getpid()}")  # in a file: a newcomer takes over what is in memory
    with steps.open("a") as file:
        file.write(".")
    if RANK < 2 or steps.stat().st_size != 3:
        return
    if LIFE == len(DIES_IN_LIFE):
        Path("enough").touch()
    elif RANK == DIES_IN_LIFE[LIFE]:
        y.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))

def is_over(epoch):
    # Rank 0 chooses the next epoch: all see it in time, because they take each step together.
    last = Path("last")
    if RANK == 0 and Path("enough").exists() and not last.exists():
        Path("chosen").write_text(str(epoch + 1))
        os.rename("chosen", last)
    return last.exists() and int(last.read_text()) == epoch
"""
CHANGES = {
    "import torch, ": "import sys\nsys.path.append('beside')\nimport deaths, time, torch, ",
    "range(4)": "range(1000)",
    "        computed += 1\n": "        computed += 1\n        deaths.in_third_backward(y)\n",
    "        trained += 1\n": """        trained += 1
        time.sleep(0.02)
    if deaths.is_over(epoch):
        break
""",
}


@pytest.mark.parametrize("kind", ["ddp", "ddp unused", "fsdp"])
@pytest.mark.timeout(300)
def test_survivors_lose_no_step(tmp_path: Path, kind: str) -> None:
    """No result was handed out, so all repair. The job ends once the third newcomer trains."""
    text = source(kind)
    for old, new in CHANGES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "beside").mkdir()  # a module where the job starts would have it start by exec
    (tmp_path / "beside" / "deaths.py").write_text(DEATHS)
    with Job(tmp_path, text, *SIZE, "--memory-snapshots", "off") as job:
        assert job.end() == 0, job.output
        assert len(re.findall(r"replica 1, worker \d .* died: SIGKILL", job.output)) == 3
        assert len(re.findall(r"Replica 1 joined at step ", job.output)) == 3, job.output
        counts = re.findall(r"end [01] of 4 trained (\d+) computed (\d+) ", job.output)
        steps = 10 * (int((tmp_path / "last").read_text()) + 1)
        assert counts == [(str(steps), str(steps))] * 2, job.output
        assert "were not committed" not in job.output, job.output
        found = ends(tmp_path)
        assert all(torch.equal(other, found[0]) for other in found), job.output
        assert job.left() == []
