"""What ftrun cannot carry step by step, and runs as one world. For two ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.undisturbed.table import program, rank, run


def net() -> Any:
    """A small model, the same at all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def train(model: Any, optimizer: Any = None, steps: int = 3) -> list[float]:
    """Train on samples of this rank's own; each parameter's sum."""
    used = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        generator = torch.Generator().manual_seed(10 * rank() + number)
        used.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
        used.step()
    return [parameter.detach().double().sum().item() for parameter in model.parameters()]


@program
def communication_hook() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DDP(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


@program
def power_sgd() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DDP(net())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model)


@program
def sharded_optimizer() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    return train(model, optimizer)


@program
def joined() -> Any:
    model = DDP(net())
    with model.join():
        return train(model, steps=2 + rank())


@program
def synchronized_norm() -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    return train(DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model)))


@program
def sharded_model() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 8), rank() + number + 1.0)).square().mean().backward()
        optimizer.step()
    return [parameter.full_tensor().sum() for parameter in model.parameters()]


@program
def sharded_model_of_the_first_kind() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for number in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((2, 8), rank() + number + 1.0)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@program
def weights_averaged_now_and_then() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        train(model, optimizer, steps=2)
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, dist.ReduceOp.AVG)
    return list(model.parameters())


if __name__ == "__main__":
    run(timeout=timedelta(seconds=90))
