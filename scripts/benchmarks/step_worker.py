"""The training script of ``bench.py step``: nothing in the loop but a step.

The same for plain DDP (started by torchrun), ftrun and torchft but for the import and, with plain
DDP, the step counter. Every process writes the seconds of each step when it ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

PEER = os.environ["BENCH_PEER"]  # ddp, ftrun or torchft
OUT = Path(os.environ["BENCH_OUT"])
WIDTH = int(os.environ["BENCH_WIDTH"])
LAYERS = int(os.environ["BENCH_LAYERS"])
BATCH = int(os.environ["BENCH_BATCH"])
WARM_UP = int(os.environ["BENCH_WARM_UP"])
STEPS = int(os.environ["BENCH_STEPS"])

if PEER == "ftrun":
    from ftrun import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
elif PEER == "torchft":
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
else:
    import torch.distributed as dist


def main() -> None:
    """Warm up, take the time of each step, write the times."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    inner = torch.optim.SGD(model.parameters(), lr=1e-4)
    network, optimizer, manager = _wrap(model, inner)
    x = torch.randn(BATCH, WIDTH)
    times: list[float] = []
    while len(times) < WARM_UP + STEPS:
        began = time.perf_counter()
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    (OUT / f"times.{os.getpid()}").write_text(json.dumps(times[WARM_UP:]))
    if manager is not None:
        manager.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _wrap(model: nn.Module, inner: torch.optim.Optimizer) -> tuple[Any, Any, Any]:
    timeout = timedelta(seconds=60)
    if PEER == "ddp":
        dist.init_process_group("gloo", timeout=timeout)
        return nn.parallel.DistributedDataParallel(model), inner, None
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=2,
        load_state_dict=lambda s: (model.load_state_dict(s["m"]), inner.load_state_dict(s["o"])),
        state_dict=lambda: {"m": model.state_dict(), "o": inner.state_dict()},
        timeout=timeout,
        **({} if PEER == "ftrun" else {"replica_id": "bench_" + os.environ["REPLICA_GROUP_ID"]}),
    )
    return DistributedDataParallel(manager, model), Optimizer(manager, inner), manager


if __name__ == "__main__":
    main()
