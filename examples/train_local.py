"""DiLoCo: replicas train by themselves and exchange 8 bits per weight every twenty steps.

    ftrun --replicas 3 examples/train_local.py

Kill any worker while it trains (``kill -9 PID``), also while it exchanges: the others go on, and at
the end all replicas print the same hash of the global weights. docs/LOCAL_TRAINING.md explains.
"""

import hashlib
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import ftrun
from ftrun import DiLoCo

# ---------------------------------------------------------------- settings

OUTER_STEPS = int(os.environ.get("STEPS", "100"))
INNER_STEPS = 20
BATCH = 64  # samples per replica and inner step
TEST_SAMPLES = 360
SEED = 1

# ---------------------------------------------------------------- data and model

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32) / 16
labels = torch.tensor(labels)
shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
test, train = shuffled.split([TEST_SAMPLES, len(images) - TEST_SAMPLES])

torch.manual_seed(SEED)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def load_state_dict(state: dict) -> None:
    """Take over the local state of a peer; DiLoCo adds the global one."""
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["inner"])


manager = ftrun.manager(
    load_state_dict=load_state_dict,
    state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
    use_async_quorum=False,
)

# ---------------------------------------------------------------- training

print(f"training with pid {os.getpid()}: kill -9 it to see it replaced", flush=True)
torch.manual_seed(os.getpid())  # each replica draws samples of its own
with DiLoCo(
    manager, [model], inner, outer, sync_every=INNER_STEPS, use_bucketization=True,
    should_quantize=True,
):  # fmt: skip
    while manager.current_step() < OUTER_STEPS:
        mine = train[torch.randint(len(train), (BATCH,))]
        inner.zero_grad()
        loss = F.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        inner.step()  # every twentieth also averages, and takes the outer step
        manager.log(loss=loss.item())

# ---------------------------------------------------------------- result

with torch.no_grad():
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print(
    f"finished {manager.current_step()} outer steps: test accuracy {accuracy:.1%}, "
    f"parameters {digest.hexdigest()[:16]}",
    flush=True,
)
