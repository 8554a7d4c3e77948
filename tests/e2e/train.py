"""The script of the whole-job tests: a tiny model; writes its state after every commit.

``$E2E_OUT/<replica>.<group_rank>.<pid>``: a line per commit: step, lineage, digest of the weights.
``$E2E_STOP``: when this file is there, the step to end at.
``E2E_DIES=1@50``: each worker of replica 1 kills itself before its backward pass of step 50, once.
"""

import contextlib
import hashlib
import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch

import ftrun
from ftrun import DistributedDataParallel, Optimizer

OUT = os.environ["E2E_OUT"]
STEPS = int(os.environ.get("E2E_STEPS", "100000"))
STEP_S = float(os.environ.get("E2E_STEP_S", "0.02"))
WIDTH = int(os.environ.get("E2E_WIDTH", "8")) + int(os.environ.get("E2E_ODD", "0")) * int(
    os.environ["REPLICA_GROUP_ID"]
)

VICTIM, _, DIES_AT = os.environ.get("E2E_DIES", "").partition("@")

torch.manual_seed(os.getpid())  # different weights everywhere: only healing makes them equal
model = torch.nn.Sequential(torch.nn.Linear(16, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
inner = torch.optim.Adam(model.parameters(), lr=0.01)


def load(state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optim"])


manager = ftrun.manager(
    load,
    lambda: {"model": model.state_dict(), "optim": inner.state_dict()},
    use_async_quorum=os.environ.get("E2E_SYNC") != "1",
    timeout=timedelta(seconds=20),
    quorum_timeout=timedelta(seconds=60),
)
optimizer = Optimizer(manager, inner)
ddp = DistributedDataParallel(manager, model)


def is_over(step: int) -> bool:
    """All steps are trained: as many as ordered, or as the test has set since."""
    with contextlib.suppress(FileNotFoundError), open(os.environ["E2E_STOP"]) as stop:
        return step >= int(stop.read())
    return step >= STEPS


def digest() -> str:
    """All weights in 16 hex digits."""
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(data).hexdigest()[:16]


def die_once(step: int) -> None:
    """A death at a known place: the peers wait in this step's reductions."""
    replica = os.environ["REPLICA_GROUP_ID"]
    done = f"{OUT}.died.{replica}.{os.environ['RANK']}"
    if replica == VICTIM and step == int(DIES_AT) and not os.path.exists(done):
        open(done, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)


name = f"{OUT}/{os.environ['REPLICA_GROUP_ID']}.{os.environ['RANK']}.{os.getpid()}"
uncommitted = 0
with open(name, "w", buffering=1) as lines:
    while not is_over(manager.current_step()):
        before = manager.state_dict()["step"]
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 16)).square().mean()
        die_once(before)
        loss.backward()
        time.sleep(STEP_S)
        optimizer.step()
        held = manager.state_dict()
        if held["step"] > before:
            lines.write(f"{held['step']} {held['lineage']} {digest()}\n")
        else:
            uncommitted += 1
print(f"hash {digest()}", flush=True)
print(f"uncommitted {uncommitted}", flush=True)
