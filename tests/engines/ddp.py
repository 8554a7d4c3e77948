"""Trains with torch's DistributedDataParallel forever, without any use of ftrun.

Prints each 10th step with a digest of the parameters.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, PAUSE_S = 100, 0.05

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(2400, 16))
sampler: DistributedSampler[torch.Tensor] = DistributedSampler(data)
step = 0
print(f"begins on {socket.gethostname()} with pid {os.getpid()}", flush=True)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for (inputs,) in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            parameters = b"".join(p.detach().numpy().tobytes() for p in network.parameters())
            print(f"step {step}: {hashlib.sha256(parameters).hexdigest()}", flush=True)
        time.sleep(PAUSE_S)
