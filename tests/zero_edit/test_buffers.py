"""A newcomer broadcasts its model's buffers in those passes in which its peers do."""

from __future__ import annotations

from pathlib import Path

from tests.jobs import Job

EVALUATES = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))  # so the next pass in training broadcasts no buffers
    model.train()
    if epoch == 1 and rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
print("END", int(model.module[1].num_batches_tracked), flush=True)
"""


def test_a_newcomer_that_joins_after_an_evaluation(tmp_path: Path) -> None:
    """Its peer waits for it: it joins in the first step after the evaluation."""
    with Job(tmp_path, EVALUATES, "--replicas", "2", "--min-replicas", "2") as job:
        assert job.end() == 0, job.output
        assert "Replica 0 healed from replica 1: step 6" in job.output
        assert job.output.count("END ") == 2
