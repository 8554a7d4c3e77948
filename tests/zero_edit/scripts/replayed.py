"""Trains one group without replicas; its workers die at places of their calls.

``replayed.py fsdp|ddp|static DEATHS [CALLS [other] | twice]``: by FSDP2, DDP, or DDP with a static
graph. DEATHS are rows of a rank, which of its lives it is, a place of a call, and the number of
that call (of the copy, where a copy is the place). A log has CALLS calls. "twice": with a bug by
which all wait in calls that cannot meet. "other": the input is another one
after a death.
"""

import glob
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

rank, kind, deaths = int(os.environ["RANK"]), sys.argv[1], json.loads(sys.argv[2])
started = f"started-{rank}"
os.write(os.open(started, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b"x")  # also of a newcomer
life = os.path.getsize(started)
if deaths:
    from arming import arm

    arm(rank, {number: place for one, time, place, number in deaths if (one, time) == (rank, life)})
if sys.argv[3:] == ["twice"]:
    from arming import send_objects_twice

    send_objects_twice()
elif sys.argv[3:]:
    from ftrun.snapshots import area

    area.CALLS_MAX = int(sys.argv[3])


def await_mend():
    """All are connected again, as far as the agent knows. It should not, before the first pass."""
    for _ in range(100):
        if not glob.glob("logs/job/incidents/*.json"):
            time.sleep(0.02)


if os.environ.get("OVER_NCCL"):
    from over import nccl

    nccl()
dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.randn(30, 4, 8)
model = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 3))
if kind == "fsdp":
    fully_shard(model[0])
    fully_shard(model)
else:
    model = DistributedDataParallel(model, bucket_cap_mb=0.001, static_graph=kind == "static")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
total, last = 0.0, torch.zeros(1)
for step in range(30):
    work = dist.all_reduce(last, async_op=True)  # in flight while the model runs
    more = "other" in sys.argv and os.path.exists("died")
    if more and life == 2:
        await_mend()
    loss = model(data[step] + more).square().mean()
    optimizer.zero_grad()
    loss.backward()
    first = torch.full((1,), float(step))
    dist.broadcast(first, src=step % 3)
    work.wait()
    sent = [(rank, step % 7 * "x")]
    dist.broadcast_object_list(sent, src=(step + 1) % 3)
    optimizer.step()
    total += last.item() + first.item() + sent[0][0] + len(sent[0][1])
    last = loss.detach().reshape(1).clone()
digest = hashlib.sha256(repr(total).encode())
for tensor in model.state_dict().values():
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    digest.update(local.contiguous().numpy().tobytes())
print(f"end {rank} {digest.hexdigest()[:16]}", flush=True)
