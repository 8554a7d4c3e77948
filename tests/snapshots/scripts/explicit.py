"""A script with a Manager whose batches follow from the step: its end says what it came to."""

import hashlib
import os
import sys
import time

import torch

import ftrun
from ftrun import DistributedDataParallel, Optimizer

STEPS, STEP_S = int(sys.argv[1]), float(sys.argv[2])
BATCH = 24  # of all replicas together

torch.manual_seed(1)
WIDTH = int(os.environ.get("WIDTH", "64"))
model = torch.nn.Sequential(torch.nn.Linear(2, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
adam = torch.optim.AdamW(model.parameters(), lr=2e-3)


def state_dict():
    return {"model": model.state_dict(), "optimizer": adam.state_dict()}


def load_state_dict(state):
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["optimizer"])


manager = ftrun.manager(load_state_dict, state_dict)
optimizer = Optimizer(manager, adam)
network = DistributedDataParallel(manager, model)
is_first = True

with open(f"steps-{os.environ['REPLICA_GROUP_ID']}.txt", "a", buffering=1) as steps:
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        step = manager.current_step()
        if is_first and not manager.is_healing():
            print(f"began at step {step}", flush=True)
            is_first = False
        inputs = torch.rand(BATCH, 2, generator=torch.Generator().manual_seed(step))
        rank, count = manager.participating_rank() or 0, manager.num_participants()
        mine = inputs[rank * BATCH // count : (rank + 1) * BATCH // count]
        ((network(mine) - mine.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
        steps.write(f"{step} {time.monotonic()}\n")
        time.sleep(STEP_S)

torch.save(model.state_dict(), f"parameters-{os.environ['REPLICA_GROUP_ID']}.pt")
parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(
    f"finished {manager.current_step()} {hashlib.sha256(parameters).hexdigest()[:16]}", flush=True
)
