"""FSDP2 over all ranks, or over (replicate, shard): evaluation, schedule, clipping and a file.

``--prefetch``: made without memory, and whole before each forward pass, as torch's own example.
"""

import argparse
import os
from pathlib import Path

import moment
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--hsdp", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--prefetch", action="store_true")
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--epochs", type=int, default=3)
given = parser.parse_args()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 1)  # one row: a rank may hold nothing of it

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes, names = ((world // 2, 2), ("replicate", "shard")) if given.hsdp else ((world,), ("dp",))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    moment.at("set-up")
    torch.manual_seed(7)
    x = torch.randn(288, 6)
    data = TensorDataset(x, x @ torch.randn(6, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler)
    torch.manual_seed(3)
    with torch.device("meta" if given.prefetch else "cpu"):
        model = Model()
    for block in model.blocks:
        if given.compile:
            block.compile(backend="aot_eager")
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if given.prefetch:
        model.to_empty(device="cpu")
        for part in (*model.blocks, model.head):
            part.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    total = given.epochs * len(loader) // given.accum
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=total)
    global_step, best = 0, float("inf")
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for i, (bx, by) in enumerate(loader):
            moment.at(f"train {epoch} {i}")
            last = (i + 1) % given.accum == 0
            model.set_requires_gradient_sync(last)
            if given.prefetch:
                model.unshard()
            (nn.functional.mse_loss(model(bx), by) / given.accum).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                global_step += 1
        model.eval()
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(x[rank::world]), data.tensors[1][rank::world])
        moment.at(f"evaluation {epoch}")
        dist.all_reduce(loss)
        best = min(best, round(loss.item() / world, 5))
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if rank == 0:
            torch.save(state, Path(os.environ["FTRUN_TEST_DIR"]) / "model.pt")
        dist.barrier()
    moment.at("the end")
    moment.end({"model": model}, global_step=global_step, lr=round(scheduler.get_last_lr()[0], 8))
    dist.destroy_process_group()


main()
