"""Replica groups of two workers each: FSDP2 shards the model inside, ftrun averages across.

    ftrun --replicas 2 --workers-per-replica 2 examples/train_fsdp.py

When one worker dies its whole group restarts, because half a model is of no use. Each worker of
the new group heals from its counterpart in another group. The other groups go on. Commits are
decided per group: both workers step or neither does.
"""

import hashlib
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from ftrun import Manager, Optimizer, ProcessGroupGloo, replicate

# ---------------------------------------------------------------- settings

STEPS = int(os.environ.get("STEPS", "200"))
BATCH = 32  # samples per worker and step
WIDTH = 128
LEARNING_RATE = 1e-3
LOG_EVERY = 50
SEED = 1

# ---------------------------------------------------------------- the replica group

# RANK, WORLD_SIZE and MASTER_* are the replica group's own, as under torchrun.
dist.init_process_group("gloo")
group_rank, group_size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (group_size,))

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32) / 16
labels = torch.tensor(labels)


def batch(step: int, rank: int | None, contributors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of this worker in ``step``, as a part of contributor ``rank``."""
    generator = torch.Generator().manual_seed(SEED + step)
    drawn = torch.randint(len(images), (contributors, group_size, BATCH), generator=generator)
    mine = drawn[rank or 0, group_rank]
    return images[mine], labels[mine]


# ---------------------------------------------------------------- model

torch.manual_seed(SEED)
layers = [nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
model = nn.Sequential(*layers)
for layer in layers:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def load_state_dict(state: dict) -> None:
    """Take over the shards of the worker with the same rank in another group."""
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": adam.state_dict()},
)
optimizer = Optimizer(manager, adam)
replicate(manager, model)  # averages the shards' gradients across the groups, in backward


# ---------------------------------------------------------------- training

print(f"training with pid {os.getpid()}: kill -9 it to see it replaced", flush=True)
while manager.current_step() < STEPS:
    optimizer.zero_grad()
    step = manager.current_step()
    inputs, targets = batch(step, manager.participating_rank(), manager.num_participants())
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if step % LOG_EVERY == 0 and manager.participating_rank() == 0 and group_rank == 0:
        print(
            f"step {step}: loss {loss.item():.3f}, {manager.num_participants()} replicas",
            flush=True,
        )

# ---------------------------------------------------------------- result

# The forward pass and full_tensor() gather the shards: every worker of the group sees the whole.
with torch.no_grad():
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
whole = [p.full_tensor().detach() for p in model.parameters()]
digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in whole))
print(
    f"finished {manager.current_step()} steps: accuracy {accuracy:.1%} on what it has seen, "
    f"parameters {digest.hexdigest()[:16]}",
    flush=True,
)
dist.destroy_process_group()
