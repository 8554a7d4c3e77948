"""A standby's preparation before it waits: it trains a small model, once.

A fork shares its memory with the spawner, so a page is copied when it is first written. And much of
torch builds tables when it is first used: how DTensors of one kind are added, what an optimizer's
step calls. Peers would wait for both in a replacement, so a standby does them in advance.

It leaves nothing that a script could see: no process group, no drawn number, no output.

Not here: the imports (agent/imports.py), which a fork gets from the spawner.
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

from ftrun.inject.zero_edit.patches import holders

SIZE = 2
STEPS = 2
"""In the second step, optimizers have their state."""


def rehearse() -> None:
    """Train with FSDP2 as one of two, in groups without peers, and make DDP's buckets."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.version.cuda or torch.version.hip:
        return  # a backward pass would start device threads in a process that may fork
    with _as_if_nothing_was():
        holders("", rehearse)  # attaching to torch looks at each module, and so copies its page
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=SIZE)
        try:
            _train()
        finally:
            dist.destroy_process_group()


def _train() -> None:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    inputs, labels = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)
    DistributedDataParallel(copy.deepcopy(model))(inputs)
    # DTensor caches its rules by mesh, and some by rank. No script has a mesh of this name.
    mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("ftrun-rehearsal",))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
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
