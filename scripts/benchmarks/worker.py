"""The training script of the benchmarks: the same for every peer but for the import.

Writes one line per step to ``$BENCH_OUT/<replica>.<pid>``: monotonic time, step, committed or not.
The monotonic clock is one for all processes of a machine, so times compare across files.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
from torch import nn

PEER = os.environ["BENCH_PEER"]  # ftrun or torchft
OUT = os.environ["BENCH_OUT"]
STEPS = int(os.environ.get("BENCH_STEPS", "1000000"))
STEP_S = float(os.environ.get("BENCH_STEP_S", "0.04"))  # forward pass stretched to this
WIDTH = int(os.environ.get("BENCH_WIDTH", "256"))
REPLICA = os.environ["REPLICA_GROUP_ID"]

if PEER == "ftrun":
    from ftrun import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
else:
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    """Train a small network until told to stop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=1,
        load_state_dict=lambda s: (
            model.load_state_dict(s["model"]),
            inner.load_state_dict(s["optim"]),
        ),
        state_dict=lambda: {"model": model.state_dict(), "optim": inner.state_dict()},
        timeout=timedelta(seconds=20),
        **_peer_arguments(),
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    loss_of = nn.CrossEntropyLoss()
    with open(f"{OUT}/{REPLICA}.{os.getpid()}", "w", buffering=1) as lines:
        lines.write(f"{time.monotonic()} -1 start\n")
        while manager.current_step() < STEPS and not os.path.exists(f"{OUT}/stop"):
            step = manager.current_step()
            x, y = torch.randn(32, WIDTH), torch.randint(10, (32,))
            began = time.monotonic()
            optimizer.zero_grad()
            loss = loss_of(ddp(x), y)
            time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
            loss.backward()
            optimizer.step()
            committed = manager.current_step() > step
            lines.write(f"{time.monotonic()} {manager.current_step()} {int(committed)}\n")
    manager.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _peer_arguments() -> dict[str, str]:
    return {} if PEER == "ftrun" else {"replica_id": f"bench_{REPLICA}"}


if __name__ == "__main__":
    main()
