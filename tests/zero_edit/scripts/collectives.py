"""Trains with DistributedDataParallel, and makes collectives of every kind in each step.

    KILLS=RANK:CALL:MICROSECONDS[:SIGNAL],… LARGE=MIB,… collectives.py [steps]

Prints a digest of the parameters and of all that the rank was given. A rank of KILLS sends itself
SIGKILL, or that SIGNAL, so long after it has begun that call, in its first life. LARGE: the sizes
of the large tensor, by step in turn.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
kills = [part.split(":") for part in os.environ.get("KILLS", "").split(",") if part]
mine = {
    int(call): (int(after), signal.Signals[name[0] if name else "SIGKILL"])
    for who, call, after, *name in kills
    if int(who) == rank and life == 0
}
sizes = [int(float(mib) * (1 << 18)) for mib in os.environ.get("LARGE", "1").split(",")]
seen = hashlib.sha256()
calls = 0


def end_after(microseconds: int, number: int) -> None:
    if microseconds:
        time.sleep(microseconds / 1e6)
    os.kill(os.getpid(), number)


def call(function, *args, **kwargs):
    """Make a collective, or die in it."""
    global calls
    calls += 1
    if calls in mine:
        if mine[calls][0]:
            threading.Thread(target=end_after, args=mine[calls]).start()
        else:
            end_after(*mine[calls])
    return function(*args, **kwargs)


def note(*values) -> None:
    for value in values:
        is_tensor = isinstance(value, torch.Tensor)
        seen.update(value.numpy().tobytes() if is_tensor else repr(value).encode())


torch.manual_seed(7)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ends, every = dist.new_group([0, size - 1]), dist.new_group(list(range(size)))
for step in range(STEPS):
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * size + rank))
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    root = step % size

    mean = torch.tensor([float(step), 1.0])
    call(dist.all_reduce, mean)
    call(dist.barrier)
    parts = [torch.zeros(2) for _ in range(size)]
    call(dist.all_gather, parts, torch.tensor([step * 1.0, 2.0]))
    given = torch.tensor([step * 3.0]) if rank == root else torch.zeros(1)
    call(dist.broadcast, given, root)
    one, two = torch.ones(3) * step, torch.ones(5)
    works = [call(dist.all_reduce, x, async_op=True) for x in (one, two)]
    for work in works:
        work.wait()
    objects = [None] * size
    call(dist.all_gather_object, objects, ("of", step))
    box = ["x" * (1 + step % 5)]
    call(dist.broadcast_object_list, box, root)
    large = torch.full((sizes[step % len(sizes)],), float(step))
    call(dist.all_reduce, large, group=every)
    note(mean, *parts, given, one, two, *objects, *box, large[:4].clone())
    if rank in (0, size - 1):
        pair = torch.ones(2) * step
        call(dist.all_reduce, pair, group=ends)
        note(pair)
    part = torch.zeros(2)
    call(dist.reduce_scatter, part, [torch.ones(2) * step for _ in range(size)])
    most = torch.tensor([float(step % 7)])
    call(dist.all_reduce, most, op=dist.ReduceOp.MAX)
    note(part, most)
    time.sleep(0.01)
parameters = hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in model.parameters()))
group = "ends" if rank in (0, size - 1) else "between"
digests = f"parameters {parameters.hexdigest()[:12]} seen {seen.hexdigest()[:12]}"
print(f"END {rank} life {life} {group} {digests}", flush=True)
dist.destroy_process_group()
