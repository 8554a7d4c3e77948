"""Handwritten digits with a small convolutional network that survives the death of its replicas.

    ftrun --replicas 3 examples/train_digits.py

Kill any worker while it trains (``kill -9 PID``): the others go on at once, the replacement takes
the weights from them, and at the end all replicas print the same hash. The data are the 1,797
scans that scikit-learn ships, so nothing is downloaded.
"""

import hashlib
import os

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import ftrun
from ftrun import DistributedDataParallel, Optimizer

# ---------------------------------------------------------------- settings

STEPS = int(os.environ.get("STEPS", "600"))
BATCH = 64  # samples per replica and step
LEARNING_RATE = 2e-3
CHANNELS = 32
TEST_SAMPLES = 360
LOG_EVERY = 100
SEED = 1

device = "cuda" if torch.cuda.is_available() else "cpu"  # ftrun shows each worker its own GPUs

# ---------------------------------------------------------------- data: the same on every replica

images, labels = load_digits(return_X_y=True)
images = (torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16).to(device)
labels = torch.tensor(labels).to(device)
shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
test, train = shuffled.split([TEST_SAMPLES, len(images) - TEST_SAMPLES])


def batch(step: int, rank: int | None, contributors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of contributor ``rank`` in ``step``.

    They depend on these numbers alone, so deaths and joins before do not matter. A replica that
    still heals has no rank: what it computes does not count, so any samples will do.
    """
    generator = torch.Generator().manual_seed(SEED + step)
    drawn = torch.randint(len(train), (contributors, BATCH), generator=generator)
    mine = train[drawn[rank or 0]]
    return images[mine], labels[mine]


# ---------------------------------------------------------------- model

torch.manual_seed(SEED)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, CHANNELS, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(CHANNELS * 16, 10),
).to(device)
adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def state_dict() -> dict:
    """All that a replacement needs to be equal to its peers."""
    return {"model": model.state_dict(), "optimizer": adam.state_dict()}


def load_state_dict(state: dict) -> None:
    """Take over the state of a peer."""
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["optimizer"])


manager = ftrun.manager(min_replica_size=1, load_state_dict=load_state_dict, state_dict=state_dict)
optimizer = Optimizer(manager, adam)  # zero_grad() begins a step, step() commits it
network = DistributedDataParallel(manager, model)  # averages gradients over the replicas

# ---------------------------------------------------------------- training

print(f"training with pid {os.getpid()}: kill -9 it to see it replaced", flush=True)
while manager.current_step() < STEPS:
    optimizer.zero_grad()
    step = manager.current_step()
    inputs, targets = batch(step, manager.participating_rank(), manager.num_participants())
    loss = F.cross_entropy(network(inputs), targets)
    loss.backward()
    optimizer.step()
    manager.log(loss=loss.item())
    if step % LOG_EVERY == 0 and manager.participating_rank() == 0:
        print(
            f"step {step}: loss {loss.item():.3f}, {manager.num_participants()} replicas",
            flush=True,
        )

# ---------------------------------------------------------------- result

with torch.no_grad():
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
print(
    f"finished {manager.current_step()} steps: test accuracy {accuracy:.1%}, "
    f"parameters {digest.hexdigest()[:16]}",
    flush=True,
)
