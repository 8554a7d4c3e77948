"""The job that scripts/release runs with an installed ftrun: two replicas, of which one dies.

Replica 1 kills itself once, by SIGKILL. The job ends with 0 only if its replacement has healed.
"""

from __future__ import annotations

import os
import signal
import time

import torch

import ftrun

STEPS = 60
DEATH = 20

model = torch.nn.Linear(8, 4)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)


def load_state_dict(state: dict[str, dict[str, object]]) -> None:
    model.load_state_dict(state["model"])
    sgd.load_state_dict(state["optimizer"])


manager = ftrun.manager(
    load_state_dict=load_state_dict,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
)
optimizer = ftrun.Optimizer(manager, sgd)
network = ftrun.DistributedDataParallel(manager, model)
is_victim = (
    os.environ["REPLICA_GROUP_ID"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
)
while manager.current_step() < STEPS:
    if is_victim and manager.current_step() == DEATH:
        print("dies by SIGKILL", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    network(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
manager.linger()
print(f"finished step {manager.current_step()} with ftrun {ftrun.__version__}", flush=True)
