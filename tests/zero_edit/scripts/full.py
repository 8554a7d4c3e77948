"""A script as people write it: evaluation with collectives, logging, a scheduler, checkpoints."""

import argparse
import os
import random

import moment
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, loader):
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for index, (x, y) in enumerate(loader):
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
            count += len(x)
            if index == 1:
                moment.at(f"evaluation {evaluate.epoch}")
    both = torch.tensor([total, count])
    dist.all_reduce(both)
    model.train()
    return (both[0] / both[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--ema", action="store_true")
    parser.add_argument("--stop", action="store_true", help="early stopping")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    names = [f"run of {world}" if rank == 0 else None]
    dist.broadcast_object_list(names, src=0)
    moment.at("set-up")
    x = torch.randn(240, 8)
    y = x @ torch.randn(8, 1) + 0.1 * torch.randn(240, 1)
    train, test = TensorDataset(x[:192], y[:192]), TensorDataset(x[192:], y[192:])
    sampler = DistributedSampler(train)
    loader = DataLoader(train, 8, sampler=sampler, num_workers=args.workers)
    test_loader = DataLoader(test, 8, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = args.epochs * len(loader) // args.accum
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)
    scaler = torch.amp.GradScaler("cpu", enabled=args.amp)
    ema = torch.optim.swa_utils.AveragedModel(model.module) if args.ema else None
    best, bad, history = float("inf"), 0, {}
    global_step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = 0.0
        for i, (bx, by) in enumerate(loader):
            moment.at(f"train {epoch} {i}")
            with torch.autocast("cpu", enabled=args.amp, dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(model(bx).float(), by) / args.accum
            scaler.scale(loss).backward()
            running += loss.item()
            if (i + 1) % args.accum:
                continue
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            if ema is not None:
                ema.update_parameters(model.module)
            global_step += 1
            if global_step % 5 == 0:
                mean = torch.tensor([running / (i + 1)])
                dist.all_reduce(mean, op=dist.ReduceOp.SUM)
                history["last"] = mean.item() / world
        evaluate.epoch = epoch
        score = evaluate(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch} score {score:.4f} step {global_step}", flush=True)
        bad = 0 if score < best else bad + 1
        best = min(best, score)
        if rank == 0:
            moment.at(f"save {epoch}")
            torch.save(
                {"model": model.module.state_dict(), "epoch": epoch},
                os.path.join(os.environ["FTRUN_TEST_DIR"], "last.pt"),
            )
        dist.barrier()
        if args.stop and bad >= 3:
            break
    moment.at("the end")
    modules = {"model": model.module, **({"ema": ema} if ema is not None else {})}
    moment.end(
        modules,
        global_step=global_step,
        epoch=epoch,
        lr=scheduler.get_last_lr(),
        last=scheduler.last_epoch,
        name=names[0],
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
