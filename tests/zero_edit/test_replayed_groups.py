"""Workers of one group that die in calls on subgroups, and while the script's model has the weights
of its average: the end is equal to the bit, also of what the script keeps beside its model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import hashlib, json, os, random, sys
from dataclasses import dataclass
import torch, torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tests.zero_edit.scripts import keeping

@dataclass
class Kept:
    steps: int
    squares: torch.Tensor

def summed(first):
    total = torch.zeros_like(first)
    def add(one):
        nonlocal total
        total = total + one
        return total
    return add

def at(place):  # in whichever life it comes there first
    if [rank, 0, place, 0] in deaths and not os.path.exists(f"died {place}"):
        open(f"died {place}", "x").close()
        os.kill(os.getpid(), 9)

rank, kind, deaths = int(os.environ["RANK"]), sys.argv[1], json.loads(sys.argv[2])
if os.environ.get("OVER_NCCL"):
    from tests.zero_edit.scripts.over import nccl
    nccl()
started = f"started-{rank}"
os.write(os.open(started, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b"x")  # also of a newcomer
life = os.path.getsize(started)
if deaths:
    from tests.zero_edit.scripts.arming import arm
    arm(rank, {number: place for one, time, place, number in deaths if (one, time) == (rank, life)})
if os.environ.get("OVER_NCCL"):
    dist.init_process_group("gloo")
else:  # a mesh makes the world too
    init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
world = dist.get_world_size()
torch.manual_seed(0)
data = torch.randn(20, 4, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
averaged = AveragedModel(model)
pairs = [dist.new_group([x, x + 1]) for x in range(0, world, 2)]
mine = pairs[rank // 2]
if kind == "hsdp":
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
elif kind == "both":
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallel = mesh["tensor"]
elif kind == "tensor":
    parallel = init_device_mesh("cpu", (world,))
if kind in ("both", "tensor"):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, parallel, plan)
    parallelize_module(averaged.module, parallel, plan)
if kind in ("both", "hsdp"):
    shards = mesh["data"] if kind == "both" else mesh
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=shards)
    fully_shard(model, mesh=shards)
    fully_shard(averaged.module, mesh=shards)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
own = data[:, 2 * (rank // 2):][:, :2] if kind == "both" else data
total, last, average = 0.0, torch.zeros(1), {}
parameters = dict(model.named_parameters())
first = parameters["0.weight"].detach()
kept, add = Kept(0, torch.zeros_like(first)), summed(first)
held = [torch.zeros_like(x) for x in parameters.values()]  # gradients of three steps
moments = [torch.zeros_like(x) for x in parameters.values()]
if kind == "whole":
    model = nn.parallel.DistributedDataParallel(model)
bar = "def bar(numbers):\\n for number in numbers:\\n  yield number"
exec(compile(bar, "/usr/site-packages/bar.py", "exec"))  # a package's, as tqdm
for epoch in range(2):
    for step in bar(range(10 * epoch, 10 * epoch + 10)):
        parameters["0.weight"].data.mul_(0.999)  # before the pass
        optimizer.zero_grad()
        if kind == "hsdp":
            loss = model(own[step]).square().mean()
            loss.backward()
        else:
            for micro in range(2):  # two backward passes a step
                loss = model(own[step].chunk(2)[micro]).square().mean()
                loss.backward()
        work = dist.all_reduce(last, group=mine, async_op=True)  # in flight during other calls
        found = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(found, loss.detach().reshape(1), group=mine)
        if rank < 2:  # the other pair makes one call fewer
            dist.broadcast(found[0], src=1, group=mine)
        work.wait()
        if kind == "hsdp":
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for index, (name, one) in enumerate(parameters.items()):
            held[index].data.add_(one.grad)
            moments[index] = 0.9 * moments[index] + one.grad
            if step % 3 == 2:
                one.grad.add_(held[index])
                held[index].data.zero_()
        kept.steps, kept.squares = step + 1, kept.squares + parameters["0.weight"].grad.square()
        summary = add(parameters["0.weight"].grad.detach())
        optimizer.step()
        for name, one in parameters.items():
            average[name] = 0.7 * average.get(name, one.detach()) + 0.3 * one.detach()
        averaged.update_parameters(model)
        total += last.item() + sum(x.item() for x in found)
        last = loss.detach().reshape(1).clone()
        keeping.note(loss.item())
        print(f"rank {rank} step {step}", flush=True)
    before = {name: one.data.clone() for name, one in parameters.items()}
    for name, one in parameters.items():
        one.data.copy_(average[name])
    at(f"exchanged {epoch}")
    total += model(own[epoch]).sum().item()  # a pass with gradients, of no step
    for part in model.modules():
        if hasattr(part, "reshard"):
            part.reshard()
    at(f"passed {epoch}")
    for name, one in parameters.items():
        one.data.copy_(before[name])
    at(f"exchanged again {epoch}")
digest = hashlib.sha256(repr((total, kept.steps, keeping.values())).encode())
beside = [*average.values(), *moments, *held, kept.squares, summary]
for tensor in [*model.state_dict().values(), *averaged.state_dict().values(), *beside]:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    digest.update(local.contiguous().numpy().tobytes())
print(f"end {rank} {digest.hexdigest()[:16]}", flush=True)
"""
KINDS = {"hsdp": 4, "tensor": 2, "both": 4, "whole": 2}
DEATHS = [
    (1, 1, "before", 60),
    (0, 1, "issued", 91),
    (0, 2, "logged", 85),  # in its replay: a call that its predecessor had logged
    (1, 2, "has its result", 140),
    (3, 1, "issued", 142),
    (2, 1, "before", 143),
    (3, 2, "before", 160),
    (1, 0, "exchanged 0", 0),
    (0, 0, "passed 0", 0),
    (0, 0, "exchanged again 0", 0),
    (1, 0, "exchanged 1", 0),
]
OTHERS = [
    pytest.param(*both, marks=pytest.mark.slow)
    for both in (("tensor", ""), ("both", ""), ("whole", ""), ("hsdp", "device"), ("both", "both"))
]


@pytest.mark.parametrize(("kind", "over_nccl"), [("hsdp", ""), *OTHERS])
def test_deaths_in_calls_on_subgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, over_nccl: str
) -> None:
    """``over_nccl``: the groups are a double's that behaves as NCCL; "both": and Gloo's."""
    if over_nccl:
        monkeypatch.setenv("OVER_NCCL", over_nccl)
    workers, found = KINDS[kind], []
    options = ("--workers-per-replica", str(workers), "--device", "cpu")
    for name, deaths in (("off", []), ("auto", DEATHS)):
        (tmp_path / name).mkdir()
        args = (kind, json.dumps(deaths))
        with Job(tmp_path / name, SCRIPT, *options, "--memory-snapshots", name, args=args) as job:
            assert job.end() == 0
            found.append(ends(job.output))
            steps = re.findall(r"rank \d step \d+$", job.output, re.MULTILINE)
            died = re.findall(r"died: SIGKILL\..* no step was lost\.", job.output)
            assert name == "off" or "finished, 20 steps" in job.output, job.output
            assert len([*(tmp_path / name).glob("died *")]) == 4 * (name == "auto")
    assert len(found[0]) == workers
    assert found[0] == found[1]
    assert len(set(steps)) == 20 * workers, "no line is lost"
    if "all workers restart" in job.output:
        return  # a slow machine had several deaths in one mend: all repeat steps, and print
    assert len(steps) == 20 * workers, "a repeated step prints nothing twice"
    assert len(died) >= 2  # a second death in one mend may be told with the first


def ends(output: str) -> list[str]:
    """What each worker has at the end, by rank."""
    return sorted(set(re.findall(r"end \d \w+$", output, re.MULTILINE)))


FAKE = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg

rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
alone = [dist.new_group([one], backend="fake") for one in range(2)][rank]
unused = dist.new_group([0, 1], backend="fake")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.full((8, 4), step / 30)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach(), group=alone)
    dist.all_reduce(loss.detach(), group=unused)
    if (rank, step) == (1, 15) and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
print(f"END {model.module.weight.sum().item()}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_a_group_that_talks_to_nobody_needs_no_peer(tmp_path: Path) -> None:
    """torch's "fake" backend: torchtitan makes such groups for dimensions that it does not use."""
    with Job(tmp_path, FAKE, "--workers-per-replica", "2", "--device", "cpu") as job:
        job.expect(
            "Its replacement repeated the work since .* All continued after .* no step was lost"
        )
        assert job.end() == 0, job.output
        ends = re.findall(r"END (\S+)", job.output)
    assert len(ends) == 2 and len({*ends}) == 1, job.output
