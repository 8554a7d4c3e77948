"""A script as under torchrun that shards its model with FSDP2 over all ranks."""

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS, STEP_S = int(sys.argv[1]), float(sys.argv[2])
SAMPLES, BATCH = 768, 8


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 33), nn.Tanh(), nn.Linear(33, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.9)
    inputs = torch.rand(SAMPLES, 2, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    done = epoch = 0
    losses = []
    while done < STEPS:
        sampler.set_epoch(epoch)
        for batch, targets in loader:
            loss = ((model(batch) - targets) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            with open(f"steps-{rank}.txt", "a") as steps:
                steps.write(f"{done} {time.monotonic()}\n")
            done += 1
            time.sleep(STEP_S)
            if done == STEPS:
                break
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
        epoch += 1
    whole = [value.full_tensor().detach() for value in model.parameters()]
    digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in whole)).hexdigest()[:16]
    print(f"finished {done} {digest} rate {schedule.get_last_lr()[0]:.12f}", flush=True)


main()
