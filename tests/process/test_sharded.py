"""FSDP2 inside groups of two workers, ``ftrun.replicate`` across them, and a death in a pass."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import hashlib, os, time, torch
import torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
import ftrun

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.spare = nn.Linear(8, 8)  # never used: its gradients count as zeros
        self.head = nn.Linear(8, 1)  # one row: a rank holds nothing of it

    def forward(self, x):
        x = self.frozen(x)
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)


torch.manual_seed(1)
model = Model()
for number, block in enumerate([*model.blocks, model.spare]):
    fully_shard(block, mesh=mesh, reshard_after_forward=number > 0)
fully_shard(model, mesh=mesh)
adam = torch.optim.AdamW(model.parameters(), lr=0.01)
manager = ftrun.manager()
manager.register_state_dict_fn("model", model.load_state_dict, model.state_dict)
manager.register_state_dict_fn("adam", adam.load_state_dict, adam.state_dict)
optimizer = ftrun.Optimizer(manager, adam)
ftrun.replicate(manager, model)
replica, rank = int(os.environ["REPLICA_GROUP_ID"]), dist.get_rank()
while manager.current_step() < 40 or manager.num_participants() < 3:
    optimizer.zero_grad()
    step = manager.current_step()
    for micro in range(2):
        model.set_requires_gradient_sync(micro == 1)
        seed = 1000 * step + 100 * manager.num_participants() + 10 * replica + 2 * micro + rank
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        model(x).square().mean().backward()
    optimizer.step()
    model.blocks[0].unshard()
    print("step", manager.current_step(), flush=True)
    time.sleep(0.04)
[block.reshard() for block in model.blocks]
whole = [p.full_tensor().detach() for p in model.parameters()]
print("digest", hashlib.sha256(b"".join(p.numpy().tobytes() for p in whole)).hexdigest()[:12])
"""


def test_groups_of_two_go_on_and_heal(tmp_path: Path) -> None:
    """Their first block is whole between two steps, when the others read the state."""
    options = ("--replicas", "3", "--workers-per-replica", "2", "--device", "cpu")
    with Job(tmp_path, SCRIPT, *options) as job:
        job.expect(r"^\[[012]\.[01]\] step 5$", 6)
        os.kill(job.worker(1), signal.SIGKILL)
        job.expect(r"^\[1\.0\] ftrun.*|Replica 1 healed")
        assert job.end() == 0
        output = job.output
        digests = re.findall(r"^\[\d\.\d\] digest (\w+)$", output, re.MULTILINE)
        assert len(digests) == 6 and len(set(digests)) == 1, output
        for replica in (0, 2):
            found = re.findall(rf"^\[{replica}\.0\] step (\d+)$", output, re.MULTILINE)
            steps, last = [int(step) for step in found], int(found[-1])
            assert list(dict.fromkeys(steps)) == list(range(1, last + 1)), output
            assert len(steps) <= last + 1, output  # that of the death may be computed once more
        assert job.left() == []


def test_a_model_that_is_not_sharded_is_refused(tmp_path: Path) -> None:
    script = "import ftrun, torch\nftrun.replicate(ftrun.manager(), torch.nn.Linear(2, 1))\n"
    with Job(tmp_path, script, "--replicas", "1", "--device", "cpu") as job:
        assert job.end() != 0
        assert "no part of Linear is sharded by FSDP2" in job.output
