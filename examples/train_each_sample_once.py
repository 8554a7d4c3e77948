"""Handwritten digits, each exactly once per epoch, whichever replicas die and come back.

    ftrun --replicas 3 examples/train_each_sample_once.py
    ftrun --replicas 3 --global-batch 96 examples/train_each_sample_once.py

With ``--global-batch`` each step trains on 96 samples, also while a replica is missing: the others
read more batches then. Without it a step has 32 samples of each replica. Kill a worker
(``kill -9 PID``): the last line still counts each sample once per epoch.
"""

import contextlib
import os

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ftrun

# ---------------------------------------------------------------- settings

EPOCHS = int(os.environ.get("EPOCHS", "20"))
BATCH = 32  # samples that one replica reads at once
LEARNING_RATE = 2e-3
LOADER_WORKERS = 2
SEED = 1

# ---------------------------------------------------------------- data and model

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32) / 16
digits = TensorDataset(torch.arange(len(images)), images, torch.tensor(labels))

torch.manual_seed(SEED)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
times_trained = torch.zeros(len(digits))  # state like the weights: it shows what was trained


def state_dict() -> dict:
    """All that a replacement needs to be equal to its peers; the sampler heals by itself."""
    return {"model": model.state_dict(), "adam": adam.state_dict(), "times": times_trained}


def load_state_dict(state: dict) -> None:
    """Take over the state of a peer."""
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["adam"])
    times_trained.copy_(state["times"])


manager = ftrun.manager(load_state_dict=load_state_dict, state_dict=state_dict)
optimizer = ftrun.Optimizer(manager, adam)
network = ftrun.DistributedDataParallel(manager, model)
sampler = ftrun.ElasticSampler(manager, digits, BATCH, seed=SEED)
loader = ftrun.ElasticLoader(digits, sampler, num_workers=LOADER_WORKERS)

# ---------------------------------------------------------------- training

print(f"training with pid {os.getpid()}: kill -9 it to see it replaced", flush=True)
for epoch in sampler.epochs(EPOCHS):
    for indices, inputs, targets in loader:
        if sampler.begins_step:
            optimizer.zero_grad()
            counted = torch.zeros(len(digits))
        # A step has several batches under --global-batch: gradients are reduced after its last one.
        with contextlib.nullcontext() if sampler.ends_step else network.no_sync():
            loss = F.cross_entropy(network(inputs), targets)
            (loss * sampler.fraction).backward()
        counted[indices[: sampler.samples]] = 1
        if sampler.ends_step:
            manager.allreduce(counted, reduce_op=torch.distributed.ReduceOp.SUM).wait()
            optimizer.step()
            if optimizer.committed:
                times_trained += counted
                manager.log(loss=loss.item(), epoch=epoch, samples=counted.sum().item())

manager.linger()  # one that has died in the last second heals and finishes too
once = bool((times_trained == EPOCHS).all())
print(f"{EPOCHS} epochs, {manager.current_step()} steps: each sample once in each: {once}")
