"""A replica that is killed in the last epoch, and comes back when its peers have finished."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import os, pathlib, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HERE, EPOCHS = pathlib.Path(__file__).parent, 3
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
sampler = DistributedSampler(data)
loader, held_out = DataLoader(data, 8, sampler=sampler), DataLoader(data, 48)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if (rank, epoch, number) == (1, EPOCHS - 1, 2) and not (HERE / "died").exists():
            (HERE / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    scheduler.step()
    model.eval()
    with torch.no_grad():
        error = torch.stack([(model(x) - y).square().mean() for x, y in held_out]).mean()
    model.train()
    dist.all_reduce(error, op=dist.ReduceOp.AVG)
weight = sum(p.double().sum() for p in model.parameters()).item()
lr, at = optimizer.param_groups[0]["lr"], scheduler.last_epoch
means = f"mean {mean.item():.8f} error {error.item():.8f}"
print(f"END {weight:.10f} lr {lr:.8f} at {at} {means}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_what_follows_the_last_step_is_not_done_twice(tmp_path: Path) -> None:
    """It has healed to the state of the end: a scheduler that steps there stands still."""
    with Job(tmp_path, SCRIPT, "--device", "cpu", "--replicas", "3") as job:
        assert job.end() == 0, job.output
    ends = re.findall(r"\[(\d)\.0\] END (.*)", job.output)
    assert (tmp_path / "died").exists()
    assert sorted({slot for slot, _ in ends}) == ["0", "1", "2"], job.output
    assert len({text for _, text in ends}) == 1, job.output
    assert "lr 0.00000000 at 3 " in ends[0][1]
