"""The training script of ``scripts/bench.py rivals``: one small training under every launcher.

The model (0.53 M parameters, Adam), its batches and the length of a step are the same everywhere. A
launcher needs one of these forms, which the environment selects:

- ``BENCH_PEER=torchft``: torchft's Manager, DistributedDataParallel and Optimizer.
- otherwise a script for torchrun, with torch's DistributedDataParallel or, with
  ``BENCH_MODE=fsdp``, FSDP2. ``BENCH_CHECKPOINTS=DIR``: it saves its own checkpoint every 10 steps,
  and resumes from the newest. lm-resiliency restores model and optimizer itself, and provides the
  step.

It writes what ``benchmarks/worker.py`` writes: a line per step to ``steps.<rank>.<pid>``, and
``end.<rank>.<pid>``. It ends at the step that the file ``stop`` names. With
``BENCH_REFERENCE=STEPS`` it takes this number of steps without pause, and rank 0 writes the result
of each to ``reference``: the undisturbed run for comparisons. Each form imports only what it needs,
because a launcher that restarts workers pays for their imports.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PEER = os.environ["BENCH_PEER"]
IS_SHARDED = os.environ["BENCH_MODE"] == "fsdp"
OUT = Path(os.environ["BENCH_OUT"])
CHECKPOINTS = os.environ.get("BENCH_CHECKPOINTS", "")
REFERENCE = int(os.environ.get("BENCH_REFERENCE", "0"))
RANK = int(os.environ["REPLICA_GROUP_ID" if PEER == "torchft" else "RANK"])
RESTORED_STEP = "LM_RESILIENCY_TORCHRUN_CHECKPOINT_STEP"
STEP_S, STEPS_MAX = 0.05, 1_000_000
CHECKPOINT_STEPS, CHECKPOINTS_KEPT = 10, 3
WIDTH, CLASSES, BATCH = 512, 10, 8
TIMEOUT = timedelta(seconds=20)  # as worker.py has it for torchft


def main() -> None:
    """Train until the step in ``stop``."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    if PEER == "torchft":
        train_with_torchft(model)
    else:
        train(model)


def train(model: nn.Module) -> None:
    """The form for torchrun, which ftrun, NVRx and lm-resiliency run unchanged."""
    dist.init_process_group("gloo")
    network = sharded(model) if IS_SHARDED else DistributedDataParallel(model)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    first = load(network, optimizer) if CHECKPOINTS else int(os.environ.get(RESTORED_STEP, "0"))
    log = open_log()
    for step in range(first, REFERENCE or STEPS_MAX):
        if is_over(step):
            break
        began = time.monotonic()
        x, y = batch(step, RANK)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        time.sleep(0.0 if REFERENCE else max(0.0, STEP_S - (time.monotonic() - began)))
        loss.backward()
        optimizer.step()
        write_step(log, step + 1, True, loss.item())
        if REFERENCE:
            write_reference(step + 1, network)
        if CHECKPOINTS and (step + 1) % CHECKPOINT_STEPS == 0:
            save(step + 1, network, optimizer)
    write_end(step, network)
    dist.destroy_process_group()


def train_with_torchft(model: nn.Module) -> None:
    """The same with torchft's API: one replica is one process."""
    from torchft import DistributedDataParallel as Averaged
    from torchft import Manager, Optimizer, ProcessGroupGloo

    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": adam.state_dict()},
        replica_id=f"bench_{RANK}",
        timeout=TIMEOUT,
    )
    network, optimizer = Averaged(manager, model), Optimizer(manager, adam)
    log = open_log()
    while not is_over(step := manager.current_step()):
        began = time.monotonic()
        optimizer.zero_grad()
        x, y = batch(step, manager.participating_rank() or 0)
        loss = nn.functional.cross_entropy(network(x), y)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
        loss.backward()
        optimizer.step()
        reached = manager.current_step()
        write_step(log, reached, reached > step, loss.item())
    write_end(step, model)
    manager.shutdown()
    sys.stdout.flush()
    os._exit(0)  # threads of torchft may outlive shutdown()


def sharded(model: nn.Sequential | nn.Module) -> nn.Module:
    """The model under FSDP2, each layer by itself."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of ``rank`` in ``step``."""
    generator = torch.Generator().manual_seed(1_000_003 * (rank + 1) + step)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (BATCH,), generator=generator)


# ---------------------------------------------------------------- the script's own checkpoints


def save(step: int, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save the state after ``step`` steps; ``newest`` names it once it is complete."""
    folder = Path(CHECKPOINTS)
    folder.mkdir(exist_ok=True)
    if IS_SHARDED:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model_state, optimizer_state = get_state_dict(network, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.save(state, checkpoint_id=folder / f"step-{step}")
    elif RANK == 0:
        (folder / f"step-{step}").mkdir(exist_ok=True)
        both = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(both, folder / f"step-{step}" / "state.pt")
    if RANK == 0:
        (folder / "draft").write_text(str(step))
        (folder / "draft").rename(folder / "newest")
        for old in folder.glob("step-*"):
            if int(old.name[5:]) <= step - CHECKPOINTS_KEPT * CHECKPOINT_STEPS:
                shutil.rmtree(old, ignore_errors=True)


def load(network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint, if there is one; returns its step."""
    folder = Path(CHECKPOINTS)
    if not (folder / "newest").exists():
        return 0
    step = int((folder / "newest").read_text())
    if not IS_SHARDED:
        state = torch.load(folder / f"step-{step}" / "state.pt", weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return step
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model_state, optimizer_state = get_state_dict(network, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder / f"step-{step}")
    set_state_dict(
        network,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return step


# ---------------------------------------------------------------- what the benchmark reads


def open_log() -> int:
    """A descriptor, because a launcher may keep the script's file objects across a death."""
    log = os.open(OUT / f"steps.{RANK}.{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(log, f"{time.monotonic()} -1 start 0\n".encode())
    return log


def write_step(log: int, reached: int, is_committed: bool, loss: float) -> None:
    """Write a line atomically."""
    os.write(log, f"{time.monotonic()} {reached} {int(is_committed)} {loss:.6f}\n".encode())


def write_end(step: int, network: nn.Module) -> None:
    """The last step and a hash of all parameters."""
    (OUT / f"end.{RANK}.{os.getpid()}").write_text(f"{step} {digest_of(network)}\n")


def write_reference(step: int, network: nn.Module) -> None:
    """Write the result that an end at this step would have."""
    text = f"{step} {digest_of(network)}\n"
    if RANK == 0:
        with open(OUT / "reference", "a") as reference:
            reference.write(text)


def digest_of(network: nn.Module) -> str:
    """A hash of all parameters."""
    digest = hashlib.sha256()
    for parameter in network.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(whole.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def is_over(step: int) -> bool:
    """Whether the benchmark ends the job at this step."""
    try:
        return step >= int((OUT / "stop").read_text())
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
