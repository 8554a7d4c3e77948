"""The training script of ``bench.py step``: plain DDP and a peer's in the same two processes.

The two models take turns, a block of steps each, so that other load of the machine affects both
alike. Plain DDP has a separate Gloo group between the same processes. The script writes the time of
each block when it ends; with ``BENCH_MARKS`` also a profile of a step.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

PEER = os.environ["BENCH_PEER"]  # ftrun or torchft
OUT = Path(os.environ["BENCH_OUT"])
WIDTH = int(os.environ["BENCH_WIDTH"])
LAYERS = int(os.environ["BENCH_LAYERS"])
BATCH = int(os.environ["BENCH_BATCH"])
WARM_UP = int(os.environ["BENCH_WARM_UP"])
BLOCKS = int(os.environ["BENCH_BLOCKS"])
STEPS = int(os.environ["BENCH_STEPS"])
NAMES = os.environ["BENCH_ORDER"].split(",")  # ddp and the peer
MARKS = bool(os.environ.get("BENCH_MARKS"))
RANK = int(os.environ["REPLICA_GROUP_ID"])
REPLICAS = int(os.environ["NUM_REPLICA_GROUPS"])
TIMEOUT = timedelta(seconds=60)

if TYPE_CHECKING or PEER == "ftrun":
    from ftrun import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
else:
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


class Side:
    """A model under one kind of DDP, and the times of its steps."""

    def __init__(self, wrap: Callable[..., tuple[nn.Module, Any]]) -> None:
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        inner = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.network, self.optimizer = wrap(self.model, inner)
        self.blocks: list[dict[str, Any]] = []
        self._last_gradient = 0.0
        if MARKS:
            weight: Any = self.model[0].weight
            weight.register_post_accumulate_grad_hook(self._note_last_gradient)

    def run(self, x: torch.Tensor, steps: int) -> None:
        """Train one block."""
        before = resource.getrusage(resource.RUSAGE_SELF)
        main_s = time.thread_time()
        marks: list[list[float]] = []
        for _ in range(steps):
            marks.append([time.perf_counter()])
            note = marks[-1].append
            self.optimizer.zero_grad()
            note(time.perf_counter())
            loss = self.network(x).square().mean()
            note(time.perf_counter())
            loss.backward()
            if MARKS:
                note(self._last_gradient)
            note(time.perf_counter())
            self.optimizer.step()
            note(time.perf_counter())
        main_s = time.thread_time() - main_s
        after = resource.getrusage(resource.RUSAGE_SELF)
        processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.blocks.append(
            {
                "steps_s": [mark[-1] - mark[0] for mark in marks],
                "parts_s": [[b - a for a, b in pairwise(m)] for m in marks],
                "processor_s": processor_s / steps,
                "main_thread_s": main_s / steps,
                "faults": (after.ru_minflt - before.ru_minflt) / steps,
                "switches": (after.ru_nvcsw - before.ru_nvcsw) / steps,
            }
        )

    def _note_last_gradient(self, _: torch.Tensor) -> None:
        self._last_gradient = time.perf_counter()


def main() -> None:
    """Warm up, let the two take turns, write the times."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(str(OUT / "store"), REPLICAS)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=REPLICAS, timeout=TIMEOUT)
    managers: list[Any] = []
    sides = {name: Side(lambda m, o, n=name: _wrap(n, m, o, managers)) for name in NAMES}
    x = torch.randn(BATCH, WIDTH)
    for side in sides.values():
        side.run(x, WARM_UP)
        side.blocks.clear()
    for block in range(BLOCKS):
        for side in list(sides.values())[:: 1 if block % 2 == 0 else -1]:
            side.run(x, STEPS)
    if RANK == 0:
        (OUT / "seen.json").write_text(json.dumps({n: s.blocks for n, s in sides.items()}))
    for manager in managers:
        manager.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _wrap(
    name: str, model: nn.Module, inner: torch.optim.Optimizer, managers: list[Any]
) -> tuple[nn.Module, Any]:
    if name == "ddp":
        return nn.parallel.DistributedDataParallel(model), inner
    named: dict[str, Any] = {} if PEER == "ftrun" else {"replica_id": f"bench_{RANK}"}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["m"])
        inner.load_state_dict(state["o"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=REPLICAS,
        load_state_dict=load,
        state_dict=lambda: {"m": model.state_dict(), "o": inner.state_dict()},
        timeout=TIMEOUT,
        **named,
    )
    managers.append(manager)
    return DistributedDataParallel(manager, model), Optimizer(manager, inner)


if __name__ == "__main__":
    main()
