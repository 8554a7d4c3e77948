"""A script as under torchrun, with a sampler, a schedule and an evaluation with collectives."""

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS, STEP_S = int(sys.argv[1]), float(sys.argv[2])
SAMPLES, BATCH = 768, 8


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    network = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
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
            loss = ((network(batch) - targets) ** 2).mean()
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
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(parameters).hexdigest()[:16]
    print(f"finished {done} {digest} rate {schedule.get_last_lr()[0]:.12f}", flush=True)


main()
