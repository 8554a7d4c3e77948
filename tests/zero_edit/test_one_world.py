"""A script that ftrun cannot carry over replicas runs as one world. That is one group with memory
snapshots: a worker that dies costs no step there, where such a group can be followed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import copy, hashlib, os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

kind, *dies = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
x = torch.randn(256, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
model = nn.parallel.DistributedDataParallel(net)
if kind == "hook":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
if kind == "copy":
    model = copy.deepcopy(model)
if kind == "shared out":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
elif kind == "closure":
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = 0
for epoch in range(4):
    sampler.set_epoch(epoch)
    for a, b in loader:
        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            return loss
        if kind == "closure":
            optimizer.step(closure)
        else:
            closure()
            if str(step) in dies and rank == 1 and not os.path.exists(f"died-{step}"):
                open(f"died-{step}", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
        if kind == "closure" and str(step) in dies and rank == 1 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        step += 1
tensors = model.state_dict().values()
found = hashlib.sha256(b"".join(x.numpy().tobytes() for x in tensors)).hexdigest()[:16]
print(f"end {rank} {step} {found}", flush=True)
"""


def ends(directory: Path, kind: str, *dies: str) -> tuple[list[str], str]:
    """What each rank has come to, and all output."""
    directory.mkdir()
    with Job(directory, SCRIPT, "--replicas", "2", "--device", "cpu", args=(kind, *dies)) as job:
        assert job.end() == 0, job.output
        return sorted(re.findall(r"end (\d .+)$", job.output, re.MULTILINE)), job.output


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("shared out", "ZeroRedundancyOptimizer splits its state over the replicas"),
        pytest.param("hook", "communication hook", marks=pytest.mark.slow),
    ],
)
def test_a_death_in_it_costs_no_step(tmp_path: Path, kind: str, why: str) -> None:
    """Seen: each death began the job again at step 0."""
    calm, output = ends(tmp_path / "calm", kind)
    assert len(calm) == 2 and why in output, output
    found, output = ends(tmp_path / "dies", kind, "20", "40")
    assert found == calm, output
    again = "A failure restarts all of them, unless a memory snapshot replaces the failed one"
    assert again in output, output
    assert len(re.findall(r"died: SIGKILL\..* no step was lost", output)) == 2, output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closure", "copy"])
def test_what_cannot_be_followed_there_is_named(tmp_path: Path, kind: str) -> None:
    found, output = ends(tmp_path / "dies", kind, "10")
    assert len(found) == 2, output
    assert "ftrun: No memory snapshots: ftrun cannot follow this script" in output, output
    assert "so all workers restart: ftrun cannot follow this script" in output, output
