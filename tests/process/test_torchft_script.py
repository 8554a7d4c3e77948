"""A script of torchft, unedited, under ftrun: its imports, a death, equal states at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import enum, hashlib, importlib.util, os, signal
from collections import defaultdict, namedtuple
from dataclasses import dataclass
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

class Phase(enum.Enum):
    FIRST = "first"
    SECOND = "second"

Point = namedtuple("Point", "step lr")

@dataclass
class Progress:
    phase: Phase
    points: list

progress, seen = Progress(Phase.FIRST, []), defaultdict(list)

def load_state_dict(state):
    global progress, seen
    m.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])
    progress, seen = state["progress"], state["seen"]

def state_dict():
    states = {"model": m.state_dict(), "optim": optimizer.state_dict()}
    return {**states, "progress": progress, "seen": seen}

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
    before = manager.current_step()
    optimizer.step()
    if manager.current_step() == before + 1:
        progress.phase = Phase.SECOND if before > 5 else Phase.FIRST
        progress.points.append(Point(before, 0.5))
        seen[progress.phase].append(before)
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=replicas)
    step = manager.current_step()
    if group_id == 1 and step == 10:
        if not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in m.parameters()))
kept = hashlib.sha256(repr((progress, seen)).encode()).hexdigest()[:16]
assert progress.points[0] == Point(0, 0.5) and progress.points[0].step in seen[Phase.FIRST]
print(f"END {step} kept {kept}", end=" ")
print(f"loss {mean.item():.6f} of {replicas.size()} weights {digest.hexdigest()[:16]}")
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


ONE_PAIR = """
import hashlib, os, signal
from datetime import timedelta
import torch
from torch import nn, optim
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, step):
        return self.last(self.one(x) if step % 2 else self.other(x))

def state_dict():
    return {"m": net.state_dict(), "o": optimizer.state_dict(), "torchft": manager.state_dict()}

def load_state_dict(state):
    net.load_state_dict(state["m"])
    optimizer.load_state_dict(state["o"])
    manager.load_state_dict(state["torchft"])

group_id = int(os.environ["REPLICA_GROUP_ID"])
net = Net()
manager = Manager(pg=ProcessGroupGloo(), min_replica_size=1, load_state_dict=load_state_dict,
                  state_dict=state_dict, replica_id=f"r{group_id}", timeout=timedelta(seconds=30))
model = DistributedDataParallel(manager, net)
optimizer = Optimizer(manager, optim.SGD(net.parameters(), lr=0.01, momentum=0.9))
lost = 0
while manager.current_step() < 40 or manager.num_participants() < 2:
    before = manager.current_step()
    optimizer.zero_grad()
    model(torch.randn(3, 4), before).square().mean().backward()
    counts = torch.ones(2, 2, dtype=torch.int16)
    work = manager.allreduce(counts[:, 0], reduce_op=torch.distributed.ReduceOp.SUM)
    optimizer.step()
    if manager.current_step() == before:
        lost += 1
    else:
        assert counts[0, 0] == manager.num_participants() and counts[0, 1] == 1, counts
        manager.load_state_dict(manager.state_dict())
    if group_id == 1 and before == 10 and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
flat = torch.cat([p.detach().flatten() for p in net.parameters()])
digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]
print(f"END {manager.current_step()} lost {lost} {digest}", flush=True)
"""


@pytest.mark.timeout(900)
def test_functions_of_a_checkpoint_heal_too(tmp_path: Path) -> None:
    """They set the Manager's own step; parameters are not used in each step."""
    with Job(tmp_path, ONE_PAIR, "--replicas", "2", "--device", "cpu") as job:
        job.expect("Replica 1 healed from replica 0")
        assert job.end() == 0, job.output
    ends = {line.split("END")[1] for line in job.output.splitlines() if "END " in line}
    assert len(ends) == 1 and " lost 0 " in ends.pop(), job.output
