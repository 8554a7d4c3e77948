"""Iterators of loaders that the script asks by itself, or that generators hold. For one group."""

import hashlib
import itertools
import os
import random
import sys

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

RANK, KIND, DEATHS = int(os.environ["RANK"]), sys.argv[1], sys.argv[2:]


def at(place):
    if f"{RANK} {place}" in DEATHS and not os.path.exists(f"died {place}"):
        open(f"died {place}", "w").close()
        os.kill(os.getpid(), 9)


class Noisy(Dataset):
    """Each sample draws from all generators."""

    def __init__(self, size, begin=0):
        self.rows = torch.arange(size * 4.0).reshape(size, 4) / (size * 4) + begin

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        drawn = random.random() + numpy.random.rand() + torch.rand(())
        return self.rows[index] + float(drawn) / 10


class Stream(IterableDataset):
    """What each worker reads is shuffled by its own generator."""

    def __iter__(self):
        order = list(range(30))
        random.shuffle(order)
        for index in order:
            yield torch.full((4,), index / 30) + torch.rand(4) / 10


class Shard(BatchSampler):
    """As accelerate's: the part of one rank of another sampler's batches."""

    def __init__(self, inner):
        self.batch_sampler = inner

    def __len__(self):
        return len(self.batch_sampler) // 2

    def __iter__(self):
        for number, batch in enumerate(self.batch_sampler):
            if number % 2 == RANK:
                yield batch


class Prepared:
    """As accelerate's: its generator is rank 0's at each epoch, and it draws one batch ahead."""

    def __init__(self, loader):
        loader.sampler.generator = torch.Generator()
        loader.sampler.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        self.generator = loader.sampler.generator
        kept = {"num_workers": loader.num_workers, "batch_sampler": Shard(loader.batch_sampler)}
        self.loader, self.epoch = DataLoader(loader.dataset, **kept), 0

    def __iter__(self):
        state = self.generator.get_state()
        dist.broadcast(state, 0)
        self.generator.set_state(state)
        batches = iter(self.loader)
        now = next(batches)
        while True:
            try:
                following = next(batches)
                yield now
                now = following
            except StopIteration:
                yield now
                break
        self.epoch += 1


def cycle(loader):
    epoch = 0
    while True:
        for batch in loader:
            yield batch + epoch / 100
        epoch += 1


def numbers():
    """The script's own data: an order for each epoch, and what it has seen."""
    seen = 0
    for epoch in itertools.count():
        order = torch.randperm(6)
        for at_row in range(0, 6, 2):
            seen += int(order[at_row])
            yield order[at_row : at_row + 2].float().sum() / 20 + seen / 1000 + epoch / 50


class Meters(dict):
    """Items and attributes."""

    def __init__(self):
        super().__init__(mean=0.0)
        self.count = 0

    def add(self, value):
        self["mean"] = 0.9 * self["mean"] + value
        self.count += 1


class Last(list):
    def append(self, value):
        super().append(value)
        del self[:-3]


def shuffled(data, size, **more):
    return DataLoader(data, size, shuffle=True, **more)


torch.manual_seed(5 + RANK)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
noted, flags, meters, last = [], bytearray(40), Meters(), Last()


def train(x):
    """One step."""
    loss = trained(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    at(f"in {len(noted)}")
    optimizer.step()
    noted.append(round(loss.item(), 6))
    flags[len(noted) % 40] ^= len(noted)
    meters.add(loss.item())
    last.append(loss.item())
    at(f"after {len(noted)}")


def counted():
    """The loop counts, and asks all by ``next``; some only in an evaluation."""
    few, many = shuffled(Noisy(12), 2), shuffled(Noisy(40, 1), 4, num_workers=1)
    checks = cycle(shuffled(Noisy(10, 3), 3))
    pairs = zip(cycle(many), cycle(shuffled(Noisy(8, 2), 4)), strict=False)
    held, own = iter(few), numbers()
    found = 0.0
    for step in range(22):
        with torch.no_grad():
            try:
                x = next(held)
            except StopIteration:
                held = iter(few)
                x = next(held)
        y, z = next(pairs)
        train(torch.cat([x, y, z]) + next(own))
        if step % 3 == 2:
            with torch.no_grad():
                found += next(checks).sum().item()
    return found


def epochs():
    """Loops that draw ahead, with what each sample draws in this process."""
    first, other = Prepared(shuffled(Noisy(40), 4)), shuffled(Noisy(15, 1), 3)
    found = 0.0
    for epoch in range(4):
        for number, (x, y) in enumerate(zip(first, other, strict=False)):
            train(torch.cat([x, y]))
            found += number * epoch
        for number, x in enumerate(itertools.islice(other, 2)):
            train(x)
            found += number
    return found


def endless():
    """No loop counts."""
    batches = cycle(Prepared(shuffled(Noisy(24), 4, num_workers=1)))
    stream = cycle(DataLoader(Stream(), 4, num_workers=2))
    while len(noted) < 22:
        with torch.no_grad():
            x = next(batches)
        train(torch.cat([x, next(stream)]))
    return 0.0


if __name__ == "__main__":
    dist.init_process_group("gloo")
    random.seed(RANK)
    numpy.random.seed(RANK)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = {"counted": counted, "epochs": epochs, "endless": endless}[KIND]()
    every = [found, noted, bytes(flags), dict(meters), meters.count, list(last)]
    digest = hashlib.sha256(repr(every).encode())
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print(f"end {digest.hexdigest()[:16]}", flush=True)
