"""Training that goes on where it was stopped: stop the whole job, run the same command again.

    ftrun --device cpu --replicas 2 examples/train_resume.py

Press Ctrl-C, send SIGTERM, or kill -9 everything: the next run starts at the last step in
``checkpoint.pt``, and ends with the same parameters as a run that nobody stopped. After a kill of
one worker there is nothing to resume: it heals from its peers, whatever it read from the file.
"""

import hashlib
import os
from pathlib import Path

import torch
from torch.nn import functional as F

import ftrun
from ftrun import DistributedDataParallel, Optimizer

# ---------------------------------------------------------------- settings

STEPS = int(os.environ.get("STEPS", "1000"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "100"))
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "checkpoint.pt"))  # where all nodes can read it
BATCH = 32  # samples per replica and step
SEED = 1

device = "cuda" if torch.cuda.is_available() else "cpu"  # ftrun shows each worker its own GPUs

# ---------------------------------------------------------------- data


def batch(step: int, rank: int | None, contributors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of contributor ``rank`` in ``step``: they depend on these numbers alone.

    So the step is the whole position in the data. A script that reads from an iterator has to save
    and restore that as well.
    """
    generator = torch.Generator().manual_seed(SEED + step)
    drawn = torch.rand(contributors, BATCH, 2, generator=generator)
    inputs = drawn[rank or 0].to(device)  # None: this replica heals, and its samples do not count
    return inputs, (6 * inputs).sin().prod(1, keepdim=True)


# ---------------------------------------------------------------- model

torch.manual_seed(SEED)
model = torch.nn.Sequential(
    torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
    torch.nn.Linear(64, 1),
).to(device)  # fmt: skip
adam = torch.optim.AdamW(model.parameters(), lr=2e-3)


def state_dict() -> dict:
    """All that a replica needs to be equal to its peers."""
    return {"model": model.state_dict(), "optimizer": adam.state_dict()}


def load_state_dict(state: dict) -> None:
    """Take over the state of a peer."""
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["optimizer"])


manager = ftrun.manager(load_state_dict=load_state_dict, state_dict=state_dict)
optimizer = Optimizer(manager, adam)  # zero_grad() begins a step, step() commits it
network = DistributedDataParallel(manager, model)  # averages gradients over the replicas

# ---------------------------------------------------------------- the checkpoint


def is_writer() -> bool:
    """Whether this worker writes: one worker does in each step, not always the same one."""
    return manager.participating_rank() == 0 and os.environ["RANK"] == "0"


def save() -> None:
    """Replace the checkpoint in one go: a kill at any moment leaves a whole file, old or new."""
    draft = CHECKPOINT.with_name(f"{CHECKPOINT.name}.{os.environ['FTRUN_INCARNATION']}")
    with open(draft, "wb") as file:
        torch.save({**state_dict(), "manager": manager.state_dict()}, file)
        os.fsync(file.fileno())  # whole also after a power cut
    draft.replace(CHECKPOINT)
    print(f"saved step {manager.current_step()}", flush=True)


# Before the first step, in every replica. The Manager's part is the step and a digest of the
# commits before it: replicas that hold the same begin at once, and one that holds less heals.
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT, map_location=device, weights_only=True)
    load_state_dict(saved)
    manager.load_state_dict(saved["manager"])
    print(f"resumed at step {manager.current_step()}", flush=True)

# ---------------------------------------------------------------- training

try:
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        step = manager.current_step()
        inputs, targets = batch(step, manager.participating_rank(), manager.num_participants())
        loss = F.mse_loss(network(inputs), targets)
        loss.backward()
        optimizer.step()
        is_due = manager.current_step() % SAVE_EVERY == 0 or manager.current_step() == STEPS
        if optimizer.committed and is_due and is_writer():
            save()
except ftrun.Drained:  # Ctrl-C, SIGTERM: this replica has left, and has what is left of --grace
    if is_writer():
        save()
    raise  # it ends with exit code 75, which says: stopped on request, start me again

# ---------------------------------------------------------------- result

digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
print(f"finished {manager.current_step()} steps: parameters {digest.hexdigest()[:16]}", flush=True)
