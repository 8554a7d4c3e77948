"""A script's own subclasses of DistributedDataParallel heal step by step, as torch's class does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import copy, os, pathlib, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HERE = pathlib.Path(__file__).parent

class Counting(DistributedDataParallel):
    def __init__(self, module, *, start):
        {made}
        self.count = start

    def forward(self, *args, **kwargs):
        self.count += 1
        return super().forward(*args, **kwargs)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = Counting(torch.nn.Linear(4, 1), start=10)
assert type(model) is Counting and type(copy.deepcopy(model)) is Counting
kept = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, new in zip(kept.parameters(), model.parameters()):
                mine.lerp_(new, 0.1)
        if (rank, epoch, number) == (1, 1, 2) and not (HERE / "died").exists():
            (HERE / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
sums = [sum(x.double().sum().item() for x in one.parameters()) for one in (model, kept)]
print(f"SUMS {{sums}}", flush=True)
dist.destroy_process_group()
"""
WAYS = {
    "super": "super().__init__(module, bucket_cap_mb=1)",
    "by name": "DistributedDataParallel.__init__(self, module)",
}


@pytest.mark.parametrize("way", WAYS)
def test_it_heals_and_so_does_a_copy_that_is_an_average(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(made=WAYS[way]))
    with Job(tmp_path, script, "--replicas", "2") as job:
        code, output = job.end(), job.output
    assert code == 0, output
    assert "restarts the job" not in output and "replica 1 joined at" in output, output
    sums = re.findall(r"SUMS (.*)", output)
    assert len(sums) == 2 and sums[0] == sums[1], output
