"""The training script of the benchmarks: the same for every peer except for the import.

It learns the function of a fixed random network, on samples that follow from step and rank, so that
every run has the same loss curve. It writes one line per step to
``$BENCH_OUT/steps.<replica>.<pid>`` (monotonic time, step, committed or not, loss) and, at the end,
its step and a hash of its parameters to ``end.<replica>.<pid>``. The monotonic clock is common to
all processes of a machine, so times compare across files.

It ends at the step that the file ``stop`` names. If the benchmark requires it, a replacement begins
only once the file ``go`` exists.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

PEER = os.environ["BENCH_PEER"]  # ftrun or torchft
OUT = Path(os.environ["BENCH_OUT"])
STEP_S = float(os.environ.get("BENCH_STEP_S", "0.04"))  # the forward pass is stretched to this
WIDTH = int(os.environ.get("BENCH_WIDTH", "256"))
BALLAST_BYTES = int(os.environ.get("BENCH_BALLAST_BYTES", "0"))  # more state, to be healed
HELD_BYTES = int(os.environ.get("BENCH_HELD_BYTES", "0"))  # memory that is no state
AWAITS_GO = os.environ.get("BENCH_AWAITS_GO") == "1"
GO_TIMEOUT_S = 60.0
CLASSES, BATCH = 10, 32
REPLICA = os.environ["REPLICA_GROUP_ID"]

if TYPE_CHECKING or PEER == "ftrun":
    from ftrun import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
else:
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    """Train until the step in ``stop``."""
    if AWAITS_GO and list(OUT.glob(f"steps.{REPLICA}.*")):
        _await_go()
    held = torch.ones(HELD_BYTES // 4)  # every page is touched, as in a model in use
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teacher = nn.Linear(WIDTH, CLASSES)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if BALLAST_BYTES:  # moments, as a large model's optimizer has them
        inner.state[next(model.parameters())]["ballast"] = torch.ones(BALLAST_BYTES // 4)

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optim"])

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optim": inner.state_dict()}

    named: dict[str, Any] = {} if PEER == "ftrun" else {"replica_id": f"bench_{REPLICA}"}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        timeout=timedelta(seconds=20),
        **named,
    )
    network = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    with open(OUT / f"steps.{REPLICA}.{os.getpid()}", "w", buffering=1) as lines:
        lines.write(f"{time.monotonic()} -1 start 0\n")
        while not _stopped(manager.current_step()):
            began = time.monotonic()
            optimizer.zero_grad()
            step = manager.current_step()
            x, y = _batch(teacher, step, manager.participating_rank())
            loss = nn.functional.cross_entropy(network(x), y)
            time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
            loss.backward()
            optimizer.step()
            reached = manager.current_step()
            committed = int(reached > step)
            lines.write(f"{time.monotonic()} {reached} {committed} {loss.item():.6f}\n")
    assert len(held) == HELD_BYTES // 4
    _write_end(manager.current_step(), model)
    manager.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _batch(teacher: nn.Module, step: int, rank: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step * 64 + (rank or 0))
    x = torch.randn(BATCH, WIDTH, generator=generator)
    with torch.no_grad():
        return x, teacher(x).argmax(1)


def _stopped(step: int) -> bool:
    try:
        return step >= int((OUT / "stop").read_text())
    except FileNotFoundError:
        return False


def _await_go() -> None:
    deadline = time.monotonic() + GO_TIMEOUT_S
    while not (OUT / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def _write_end(step: int, model: nn.Module) -> None:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    (OUT / f"end.{REPLICA}.{os.getpid()}").write_text(f"{step} {digest.hexdigest()[:16]}\n")


if __name__ == "__main__":
    try:
        main()
    except SystemExit as drained:
        # A node that leaves shares no processors with those that train on. So the end of its
        # interpreters, a second of CPU time, must not disturb them here either.
        os._exit(int(drained.code or 0))
