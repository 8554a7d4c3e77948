"""A script of torchft, unedited, under ftrun: its imports, a death, equal weights at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.job import Job

SCRIPT = """
import hashlib, importlib.util, os, signal
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn, optim
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer
from torchft import ProcessGroupBabyNCCL, ProcessGroupGloo
from torchft import ProcessGroupNCCL, ProcessGroupXCCL
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ManagedProcessGroup, ProcessGroupBabyGloo

assert importlib.util.find_spec("torchft") is not None
dist.init_process_group("gloo")
group_id = int(os.environ["REPLICA_GROUP_ID"])

def load_state_dict(state):
    m.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])

def state_dict():
    return {"model": m.state_dict(), "optim": optimizer.state_dict()}

pg = ProcessGroupGloo(timeout=timedelta(seconds=5))
manager = Manager(
    pg=pg,
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"train_ddp_{group_id}",
    timeout=timedelta(seconds=30),
    checkpoint_transport=PGTransport(pg, timeout=timedelta(seconds=10), device="cpu"),
)
replicas = ManagedProcessGroup(manager).register("dp_replicate")
m = DistributedDataParallel(manager, nn.Linear(4, 2))
optimizer = Optimizer(manager, optim.AdamW(m.parameters()))
torch.manual_seed(group_id)
while manager.current_step() < 40 or manager.num_participants() < 2:
    optimizer.zero_grad()
    loss = m(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=replicas)
    step = manager.current_step()
    if group_id == 1 and step == 10:
        if not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in m.parameters()))
print(f"END {step} loss {mean.item():.6f} of {replicas.size()} weights {digest.hexdigest()[:16]}")
"""


@pytest.mark.timeout(900)
def test_a_torchft_script_runs_unedited_and_heals(tmp_path: Path) -> None:
    with Job(tmp_path, SCRIPT, "--replicas", "2", "--device", "cpu") as job:
        job.expect("`import torchft` gives this script ftrun's modules of that name")
        job.expect("Replica 1 healed from replica 0")
        assert job.end() == 0
    ends = {line.split("END")[1] for line in job.output.splitlines() if "END " in line}
    assert len(ends) == 1, job.output
    assert job.output.count("gives this script ftrun's modules") == 1
