"""Trains a small model with its Manager; prints each 10th step with the number of contributors.

The last step is in the variable STEPS, or in the file ``last``, which a test writes while all
workers are well before that step.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import torch

import ftrun
from ftrun import DistributedDataParallel, Optimizer

STEPS, PAUSE_S, LAST = os.environ["STEPS"], 0.05, Path("last")

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
manager = ftrun.manager(state_dict=model.state_dict, load_state_dict=model.load_state_dict)
optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01))
network = DistributedDataParallel(manager, model)
print(f"begins on {socket.gethostname()}", flush=True)
while manager.current_step() < int(LAST.read_text() if LAST.exists() else STEPS):
    optimizer.zero_grad()
    network(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    if manager.current_step() % 10 == 0:
        print(f"step {manager.current_step()} of {manager.num_participants()}", flush=True)
    time.sleep(PAUSE_S)
print(f"done at {manager.current_step()}", flush=True)
