"""The end of an unmodified script: whom a replica waits for there, and that it can be stopped."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ftrun import clock
from tests.jobs import Job, ask

pytestmark = pytest.mark.timeout(300)
SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank, steps = dist.get_rank(), int(sys.argv[1])
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(steps):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    print("step", step, flush=True)
    time.sleep(0.02)
print("trained", flush=True)
if rank == 1 and os.path.exists("waits"):
    time.sleep(200)
"""
ROOT = str(Path(__file__).parents[2])
SOON_S = 25.0
"""Without a reason to wait; a replica that is missing is waited for 60 s."""


def test_a_drained_replica_is_not_waited_for(tmp_path: Path) -> None:
    with Job(tmp_path, SCRIPT, "--replicas", "3", "--device", "cpu", args=("200",)) as job:
        job.expect(r"^\[[012]\.0\] step 5$", 3)
        assert ask(tmp_path, "drain", "1").returncode == 0
        job.expect(r"^\[[02]\.0\] trained$", 2)
        trained = clock.now()
        assert job.end() == 0, job.output
        assert clock.now() - trained < SOON_S
        assert "although others have not come to the end" not in job.output
        assert job.left() == []


def test_a_replica_that_waits_at_the_end_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "waits").touch()
    options = ("--replicas", "2", "--device", "cpu", "--grace", "15")
    with Job(tmp_path, SCRIPT, *options, args=("20",)) as job:
        job.expect(r"^\[[01]\.0\] trained$", 2)
        job.signal(signal.SIGTERM)
        job.end()
        assert "killed" not in job.output, job.output
        assert job.left() == []
