"""A standby's rehearsal, in processes of their own: a script sees nothing of it."""

from __future__ import annotations

import subprocess
import sys

LIMIT_S = 180.0


def run(source: str) -> str:
    command = [sys.executable, "-W", "error", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def test_nothing_of_it_is_left() -> None:
    assert (
        run(
            """
import os, random, sys, threading
import numpy, torch
import torch.distributed as dist
from ftrun.inject.rehearsal import rehearse

def seen():
    return (
        torch.get_rng_state().tolist(), torch.initial_seed(), random.getstate(),
        numpy.random.get_state()[1].tolist(), sys.excepthook, dict(os.environ),
        os.listdir("/proc/self/task"), torch.get_num_threads(), dist.is_initialized(),
        dist.distributed_c10d._world.group_count, torch.is_grad_enabled(),
    )

torch.manual_seed(3)
before = seen()
rehearse()
print([x == y for x, y in zip(before, seen(), strict=True)].count(False))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_world_size(), dist.distributed_c10d._get_process_group_name(dist.group.WORLD))
dist.destroy_process_group()
"""
        )
        == "0\n1 0"
    )


def test_a_script_does_less_for_the_first_time() -> None:
    """Counted by the rules of DTensor that are made, because times depend on the machine."""
    source = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from ftrun.inject.rehearsal import rehearse

REHEARSE
propagator, made = DTensor._op_dispatcher.sharding_propagator, []
plain = propagator.propagate_op_sharding_non_cached
propagator.propagate_op_sharding_non_cached = lambda s: (made.append(s), plain(s))[1]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
model(torch.zeros(2, 8)).sum().backward()
optimizer.step()
print(len(made))
dist.destroy_process_group()
"""
    before, after = (int(run(source.replace("REHEARSE", x))) for x in ("", "rehearse()"))
    assert after < before / 2
