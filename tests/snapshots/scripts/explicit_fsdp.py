"""As explicit.py, with FSDP2 in replicas of several workers, and random numbers that resume."""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ftrun

STEPS, STEP_S = int(sys.argv[1]), float(sys.argv[2])
BATCH = 24  # of all replicas together

dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (workers,))
torch.manual_seed(1)
dropout = nn.Dropout(float(os.environ.get("DROPOUT", "0.1")))
model = nn.Sequential(nn.Linear(2, 33), nn.Tanh(), dropout, nn.Linear(33, 1))
for layer in (model[0], model[3]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
torch.manual_seed(10 + rank)  # each worker has drawings of its own, which only resume
adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
manager = ftrun.manager()
manager.register_state_dict_fn("model", model.load_state_dict, model.state_dict)
manager.register_state_dict_fn("adam", adam.load_state_dict, adam.state_dict)
manager.register_state_dict_fn("random", torch.set_rng_state, torch.get_rng_state)
optimizer = ftrun.Optimizer(manager, adam)
ftrun.replicate(manager, model)
is_first = True

with open(f"steps-{os.environ['REPLICA_GROUP_ID']}.{rank}.txt", "a", buffering=1) as steps:
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        step = manager.current_step()
        if is_first and not manager.is_healing():
            print(f"began at step {step}", flush=True)
            is_first = False
        inputs = torch.rand(BATCH, 2, generator=torch.Generator().manual_seed(step))
        place = (manager.participating_rank() or 0) * workers + rank
        count = manager.num_participants() * workers
        mine = inputs[place * BATCH // count : (place + 1) * BATCH // count]
        ((model(mine) - mine.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
        steps.write(f"{step} {time.monotonic()}\n")
        time.sleep(STEP_S)

whole = {name: value.full_tensor().detach() for name, value in model.state_dict().items()}
if rank == 0:
    torch.save(whole, f"parameters-{os.environ['REPLICA_GROUP_ID']}.pt")
parameters = b"".join(value.numpy().tobytes() for value in whole.values())
print(
    f"finished {manager.current_step()} {hashlib.sha256(parameters).hexdigest()[:16]}", flush=True
)
