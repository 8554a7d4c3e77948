"""Values in objects that only a list, a tuple or a dict holds: callbacks, meters, environments."""

import argparse
from collections import defaultdict, deque

import moment
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Smoothed:
    """As in the references of torchvision: a defaultdict makes it at the first value."""

    def __init__(self):
        self.deque, self.total, self.count = deque(maxlen=5), 0.0, 0

    def update(self, value):
        self.deque.append(value)
        self.total += value
        self.count += 1


class Meters:
    """Makes one meter for each name, and draws the batches."""

    def __init__(self):
        self.meters = defaultdict(Smoothed)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value)

    def batches(self, loader):
        yield from loader


class Average:
    """A plain meter, which the loop makes where it lacks one."""

    def __init__(self):
        self.sum, self.count, self.by_batch = 0, 0, []

    def update(self, value):
        self.sum += value
        self.count += 1
        self.by_batch.append(value)


class Stopping:
    """A callback."""

    def __init__(self):
        self.calls, self.waited, self.scores = 0, 0, []
        self.average = torch.zeros(3)

    def __call__(self, epoch):
        self.calls += 1
        self.waited = self.waited + 1 if epoch % 2 else 0
        self.scores.append(epoch)
        self.average += epoch


class Environment:
    """One of several, which are counted by themselves."""

    def __init__(self, place):
        self.place, self.steps, self.episode = place, 0, 0

    def step(self):
        self.steps += 1
        if self.steps % (5 + self.place) == 0:
            self.episode += 1


class Trainer:
    """Holds callbacks in a list, and others in a tuple."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.callbacks = [Stopping()]
        self.environments = tuple(Environment(place) for place in range(3))
        self.epochs = []

    def epoch(self, loader, epoch, all_time):
        meters, plain = Meters(), {}
        for i, (x, y) in enumerate(meters.batches(loader)):
            moment.at(f"train {epoch} {i}")
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
            number = epoch * 100 + i
            meters.update(number=number, batch=i)
            if "number" not in plain:
                plain["number"] = Average()
            plain["number"].update(number)
            all_time["steps"].update(number)
            for environment in self.environments:
                environment.step()
        for callback in self.callbacks:
            callback(epoch)
        smoothed = {
            name: [meter.count, meter.total, list(meter.deque)]
            for name, meter in meters.meters.items()
        }
        average = plain["number"]
        self.epochs.append([smoothed["number"][1], average.sum, average.count])
        return [*smoothed.values(), sum(average.by_batch)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    x = torch.randn(240, 8)
    data = TensorDataset(x, x @ torch.randn(8, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer, all_time = Trainer(model, optimizer), {"steps": Average()}
    last = None
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        last = trainer.epoch(loader, epoch, all_time)
    moment.at("the end")
    callback = trainer.callbacks[0]
    counted = {
        "calls": [callback.calls, callback.waited, *callback.scores],
        "average": callback.average.tolist(),
        "environments": [[x.steps, x.episode] for x in trainer.environments],
        "steps": [all_time["steps"].count, all_time["steps"].sum],
        "last": last,
        "epochs": trainer.epochs,
    }
    moment.end({"model": model.module}, **counted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
