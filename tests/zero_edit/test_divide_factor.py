"""A factor of the script's own for FSDP2's gradients means the sum over all workers, as under
torchrun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
names = {"mesh_dim_names": ("replicate", "shard")}
fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), **names) if sys.argv[1:] else None)
model.set_gradient_divide_factor(1.0)
model.set_force_sum_reduction_for_comms(True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
for step in range(2):
    optimizer.zero_grad()
    model(torch.full((1, 4), float(dist.get_rank()))).sum().backward()
    print("weight", model.weight.grad.full_tensor().unique().tolist(), flush=True)
    optimizer.step()
"""


@pytest.mark.parametrize("words", [(), ("hsdp",)], ids=["fsdp", "hsdp"])
def test_gradients_are_summed_over_all_workers(tmp_path: Path, words: tuple[str, ...]) -> None:
    options = ("--replicas", "2", "-w", "2", "--device", "cpu")
    with Job(tmp_path, SCRIPT, *options, args=words) as job:
        assert job.end() == 0, job.output
    assert re.findall(r"weight (.+)", job.output) == ["[6.0]"] * 8, job.output
