"""On GPUs, as people write it: NCCL, pinned batches, autocast, a scaler, metrics, a file; or FSDP2.

Not in the matrix, which runs on CPUs: scripts/gpu_check.py runs it.
"""

import argparse
import os
import time
from pathlib import Path

import moment
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--epochs", type=int, default=4)
given = parser.parse_args()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.Identity() if given.fsdp else nn.BatchNorm1d(given.width)
        self.first = nn.Sequential(nn.Linear(16, given.width), norm, nn.Tanh())
        self.blocks = nn.ModuleList(nn.Linear(given.width, given.width) for _ in range(3))
        self.head = nn.Linear(given.width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)


def wrapped(model, device):
    if not given.fsdp:
        model = DDP(model, device_ids=[device.index])
        return torch.compile(model) if given.compile else model
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def evaluate(model, x, y):
    """Sums and lists over all ranks, in the forms that people use."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x[rank::world]).float(), y[rank::world])
    model.train()
    mean = loss.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    each = [torch.zeros_like(loss) for _ in range(world)]
    dist.all_gather(each, loss)
    whole = torch.empty(world, device=loss.device)
    dist.all_gather_into_tensor(whole, loss.view(1))
    assert torch.equal(torch.stack(each), whole), "two gathers differ"
    highest = loss.clone()
    dist.reduce(highest, 0, op=dist.ReduceOp.MAX)
    return mean


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank = dist.get_rank()
    names = [f"run of {dist.get_world_size()}" if rank == 0 else None]
    dist.broadcast_object_list(names, src=0, device=device)
    moment.at("set-up")
    torch.manual_seed(7)
    x = torch.randn(1024, 16)
    y = x @ torch.randn(16, 1)
    sampler = DistributedSampler(TensorDataset(x, y))
    loader = DataLoader(TensorDataset(x, y), 16, sampler=sampler, num_workers=1, pin_memory=True)
    x, y = x[:256].to(device), y[:256].to(device)
    model = wrapped(Model().to(device), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cuda", enabled=not given.fsdp)
    global_step, took, last = 0, [], None
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        for i, (bx, by) in enumerate(loader):
            moment.at(f"train {epoch} {i}")
            bx, by = bx.to(device, non_blocking=True), by.to(device, non_blocking=True)
            with torch.autocast("cuda", torch.float16, enabled=not given.fsdp):
                loss = nn.functional.mse_loss(model(bx).float(), by)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            global_step += 1
            now = time.monotonic()
            took.append(now - last if last else 0.0)
            last = now
        scheduler.step()
        score = evaluate(model, x, y)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if rank == 0:
            torch.save(state, Path(os.environ["FTRUN_TEST_DIR"]) / "model.pt")
        dist.barrier()
        last = None
    median = sorted(took)[len(took) // 2]
    print(
        f"score {score.item():.4f} step {1e3 * median:.1f} max {1e3 * max(took):.1f} ms", flush=True
    )
    moment.end({"model": model}, global_step=global_step, lr=scheduler.get_last_lr(), name=names[0])
    dist.destroy_process_group()


main()
