"""A torchft trainer, as its users write one: an unmodified script, started by hand.

It prints one JSON line for each committed step and ends at the step that the file ``GOAL`` names.
Not here: anything of ftrun's.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def digest(module: torch.nn.Module) -> str:
    """The weights in one word."""
    raw = b"".join(bytes(p.detach().contiguous().untyped_storage()) for p in module.parameters())
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def main() -> None:
    """Train until the goal."""
    group, goal = int(os.environ["REPLICA_GROUP_ID"]), Path(os.environ["GOAL"])
    torch.manual_seed(group)
    module = torch.nn.Linear(16, 4)
    inner = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    def load(state: dict[str, dict[str, object]]) -> None:
        module.load_state_dict(state["module"])
        inner.load_state_dict(state["inner"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"module": module.state_dict(), "inner": inner.state_dict()},
        replica_id=f"train_{group}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
        quorum_timeout=timedelta(seconds=120),
        hostname="localhost",
    )
    model = DistributedDataParallel(manager, module)
    optimizer = Optimizer(manager, inner)
    print(json.dumps({"started": os.getpid()}), flush=True)
    while not goal.exists() or manager.current_step() < int(goal.read_text()):
        step = manager.current_step()
        data = torch.Generator().manual_seed(2 * step + group)
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=data)).square().mean().backward()
        optimizer.step()
        facts = {
            "step": manager.current_step(),
            "committed": manager.current_step() > step,
            "replicas": manager.num_participants(),
            "quorum_id": manager._quorum_id,
            "weights": digest(module),
        }
        print(json.dumps(facts), flush=True)
    manager.shutdown()
    sys.exit(0)


if __name__ == "__main__":
    main()
