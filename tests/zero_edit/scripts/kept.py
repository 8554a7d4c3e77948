"""Values that rank 0 alone keeps, a cursor by rank, and histories: lists, dicts of lists, sets."""

import argparse
import math
from collections import Counter, defaultdict, deque

import logs
import moment
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Meter:
    """As people write it: an object that collects."""

    def __init__(self, rank, world):
        self.world, self.cursor = world, rank
        self.values, self.by_epoch = [], {}
        self.best_epoch = None

    def add(self, epoch, value):
        self.cursor += self.world
        self.values.append(value)
        self.by_epoch.setdefault(epoch, []).append(value)


def train_epoch(model, loader, optimizer, epoch, meter, losses):
    running, results = [], []
    seen = total = 0
    for i, (x, y) in enumerate(loader):
        moment.at(f"train {epoch} {i}")
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        number = epoch * 100 + i
        losses.append(number)
        running.append(number)
        total += number + 0 * loss  # with its gradients, as many do
        results.append(number + 0 * loss)
        logs.add_mean("loss", number)
        meter.add(epoch, number)
        seen += len(x)
    assert total == sum(results) == sum(running), (total, results, running)
    return sum(running) / len(running), seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logs.configure()
    torch.manual_seed(1)
    x = torch.randn(240, 8)
    data = TensorDataset(x, x @ torch.randn(8, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, meter, window = [], Meter(rank, dist.get_world_size()), deque(maxlen=3)
    history, names, counts = defaultdict(list), set(), Counter()
    best, best_epochs, log = math.inf, [], []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        mean, seen = train_epoch(model, loader, optimizer, epoch, meter, losses)
        history["mean"].append(mean)
        history["seen"].append(seen)
        window.append(mean)
        names.add(f"epoch {epoch}")
        counts[epoch % 2] += 1
        logs.write()
        if rank == 0 and epoch < 2:  # who is away at the end of an epoch has no score of it
            score = 5 - epoch
            log.append({"epoch": epoch, "score": score})
            if score < best:
                best = score
                best_epochs.append((epoch, score))
                meter.best_epoch = epoch
    moment.at("the end")
    assert meter.cursor == rank + meter.world * len(losses), (rank, meter.cursor)
    counted = {
        "losses": sum(losses),
        "steps": len(losses),
        "values": sum(meter.values),
        "by_epoch": {str(key): sum(value) for key, value in meter.by_epoch.items()},
        "history": dict(history),
        "window": list(window),
        "names": sorted(names),
        "counts": sorted(counts.items()),
        "logged": [logs.Logger.calls, logs.Logger.CURRENT.rows],
    }
    if rank == 0:  # nobody else has these, so nobody else can compare them
        assert (best, meter.best_epoch, best_epochs) == (4, 1, [(0, 5), (1, 4)]), (best, log)
        assert log == [{"epoch": 0, "score": 5}, {"epoch": 1, "score": 4}], log
    moment.end({"model": model.module}, **counted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
