"""What a standby does before it waits: it trains a small model of its own, once.

A fork shares its memory with the spawner: what it changes first is copied, page by page. And much
of torch makes its tables when it is first used: how DTensors of one kind are added, what an
optimizer's step calls. In a replacement others wait for both, so a standby has done it.

Nothing of it is left that a script could see: no process group, no drawn number, no word.

Not here: the imports (agent/imports.py), which a fork has from the spawner.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

STEPS = 2
"""In the second, optimizers have their state."""


def rehearse() -> None:
    """Train with FSDP2 as one of two, in groups that meet nobody, and make DDP's buckets."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.version.cuda or torch.version.hip:
        return  # a backward pass would begin threads of the devices, in a process that may fork
    with _as_if_nothing_was():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            _train()
        finally:
            dist.destroy_process_group()


def _train() -> None:
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    inputs, labels = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)
    DistributedDataParallel(copy.deepcopy(model))(inputs)
    for part in (model[0], model[2], model):
        fully_shard(part)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    model.load_state_dict(model.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())


@contextlib.contextmanager
def _as_if_nothing_was() -> Iterator[None]:
    import torch

    numbers, hook, environment = torch.get_rng_state(), sys.excepthook, dict(os.environ)
    threads, quiet = torch.get_num_threads(), io.StringIO()
    torch.set_num_threads(1)  # a pool of threads would be in the way of a script's forks
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(quiet):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(numbers)
        sys.excepthook = hook
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
