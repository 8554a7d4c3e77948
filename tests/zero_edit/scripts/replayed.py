"""Trains one group without replicas, in one of several shapes; its workers die in their calls.

``replayed.py KIND DEATHS [nccl]``: DEATHS are rows of a rank, which of its lives it is, a place of
a call, and the number of that call (of the copy, where a copy is the place). ``nccl``: the groups
are those of a double that behaves as NCCL's.
"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

IN_A_COPY = "in a copy"


def arm(places, copy):
    """Die at these calls (places by number), and in that copy."""
    from ftrun.core.replay.pacing import Pace
    from ftrun.inject.zero_edit.world.replayed import ReplayedWorld as World
    from ftrun.snapshots.area import Area

    begins_step, begin, through, write = Pace.begins, World.begin, World.is_through, Area.write

    def at_each_step(pace, *args, **kwargs):
        pace.share = 1e9
        return begins_step(pace, *args, **kwargs)

    def die(place):
        died = os.open("died", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(died, f"{rank} {place}\n".encode())
        os.kill(os.getpid(), 9)

    def begins(world, shell, call):
        place = "" if world.is_apart else places.get(world.count)
        if place == "before":
            die(place)
        begin(world, shell, call)
        if place == "issued":
            die(place)

    def is_through(world, call):
        place = places.get(call.at)
        if place == "has its result":
            die(place)
        through(world, call)
        if place == "logged":
            die(place)

    def writes(area, made, *args, **kwargs):
        if made == copy:
            area.memory.fill = lambda *_: die(IN_A_COPY)
        return write(area, made, *args, **kwargs)

    Pace.begins, World.begin, World.is_through, Area.write = (
        at_each_step, begins, is_through, writes
    )  # fmt: skip


def make(kind):
    """The model, and the part of the batch that this rank has of each."""
    torch.manual_seed(0)
    several = kind in ("both", "hsdp")
    names = {"hsdp": ("replicate", "shard"), "both": ("data", "tensor")}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names[kind]) if several else None
    dropout = nn.Dropout(0.0 if kind in ("both", "tensor") else 0.2)
    layers = nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), dropout, nn.Linear(32, 4)
    model = nn.Sequential(*layers)
    if kind in ("both", "tensor"):
        parallel = mesh["tensor"] if several else init_device_mesh("cpu", (world,))
        parallelize_module(model, parallel, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if kind in ("both", "fsdp", "hsdp"):
        shards = mesh["data"] if kind == "both" else mesh
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=shards)
        fully_shard(model, mesh=shards)
    if kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    return model, slice(rank // 2 * 2, rank // 2 * 2 + 2) if kind == "both" else slice(None)


def trained(x):
    """The loss of a backward pass."""
    loss = model(x).square().mean()
    loss.backward()
    return loss


rank, kind, deaths = int(os.environ["RANK"]), sys.argv[1], json.loads(sys.argv[2])
if "nccl" in sys.argv:
    from tests.unit.process_groups import nccl_double

    nccl_double.install_for_scripts()
started = f"started-{rank}"
os.write(os.open(started, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b"x")  # also of a newcomer
life = os.path.getsize(started)
if deaths:
    own = {number: place for one, time, place, number in deaths if (one, time) == (rank, life)}
    copy = next((number for number in own if own[number] == IN_A_COPY), None)
    arm({number: place for number, place in own.items() if number != copy}, copy)
if "nccl" in sys.argv or kind in ("ddp", "fsdp"):
    dist.init_process_group("gloo")
else:  # a mesh makes the world too
    init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
world = dist.get_world_size()
if kind in ("ddp", "fsdp"):
    group = None
else:
    pairs = [dist.new_group([x, x + 1]) for x in range(0, world, 2)]
    group = pairs[rank // 2]
model, mine = make(kind)
data = torch.randn(20, 4, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
total, last = 0.0, torch.zeros(1)
for step in range(20):
    optimizer.zero_grad()
    if group is None:
        work = dist.all_reduce(last, async_op=True)  # in flight while the model runs
        loss = trained(data[step])
    else:
        for micro in range(2):  # two backward passes a step
            loss = trained(data[step, mine].chunk(2)[micro])
        work = dist.all_reduce(last, group=group, async_op=True)  # during other calls
    found = [torch.zeros(1) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, loss.detach().reshape(1), group=group)
    if group is None:
        dist.broadcast(found[0], src=step % 3)
    elif rank < 2:  # the other pair makes one call fewer
        dist.broadcast(found[0], src=1, group=group)
    work.wait()
    if kind == "hsdp":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    total += last.item() + sum(x.item() for x in found)
    last = loss.detach().reshape(1).clone()
digest = hashlib.sha256(repr(total).encode())
for tensor in model.state_dict().values():
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    digest.update(local.contiguous().numpy().tobytes())
print(f"end {rank} {digest.hexdigest()[:16]}", flush=True)
