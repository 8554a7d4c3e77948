"""A small training, for programs that start other processes."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.undisturbed.table import rank


def train() -> list[float]:
    """Train a model in a world of all ranks; each parameter's sum."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    torch.manual_seed(rank())
    model = DDP(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), rank() + number + 1.0)).square().mean().backward()
        optimizer.step()
    found = [parameter.detach().double().sum().item() for parameter in model.parameters()]
    # If a Reducer is the last that has the group, torch deadlocks: it joins Gloo's threads while it
    # holds the GIL, and they want that to let go of a call.
    del model, optimizer
    dist.destroy_process_group()
    return found
