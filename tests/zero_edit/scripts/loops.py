"""Loops of other shapes: without a loader, over a range, two models, a resume without set_epoch."""

import argparse
import contextlib
import math
import os
from functools import partial
from pathlib import Path

import moment
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset


def data(rank):
    torch.manual_seed(7)
    weights = torch.randn(6, 1)
    torch.manual_seed(100 + rank)
    x = torch.randn(96, 6)
    return x, x @ weights


def small():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))


def while_loop(rank):
    """nanoGPT's shape: no loader, a learning rate by hand."""
    x, y = data(rank)
    model = DDP(small())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    it = 0
    while it < 40:
        moment.at(f"train {it}")
        lr = 0.02 * 0.5 * (1 + math.cos(math.pi * it / 40))
        for group in optimizer.param_groups:
            group["lr"] = lr
        rows = torch.randint(96, (16,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if it % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        it += 1
    return {"model": model.module}, {"it": it, "lr": round(lr, 8)}


def range_loop(rank):
    x, y = data(rank)
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    total = 0
    for it in range(40):
        moment.at(f"train {it}")
        rows = slice((it * 16) % 96, (it * 16) % 96 + 16)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        total += it
    return {"model": model.module}, {"it": it, "total": total}


def two_models(rank):
    x, y = data(rank)
    loader = DataLoader(TensorDataset(x, y), 8)
    real, fake = DDP(small()), DDP(nn.Linear(6, 6))
    first = torch.optim.Adam(real.parameters(), lr=1e-3)
    second = torch.optim.Adam(fake.parameters(), lr=1e-3)
    steps = 0
    for epoch in range(3):  # noqa: B007 - reported at the end
        for bx, by in loader:
            moment.at(f"train {steps}")
            first.zero_grad()
            nn.functional.mse_loss(real(fake(bx).detach()), by).backward()
            first.step()
            second.zero_grad()
            for parameter in real.parameters():
                parameter.requires_grad_(False)
            nn.functional.mse_loss(real.module(fake(bx)), by).backward()
            for parameter in real.parameters():
                parameter.requires_grad_(True)
            second.step()
            steps += 1
    return {"real": real.module, "fake": fake.module}, {"steps": steps, "epoch": epoch}


def resume(rank):
    """Forgets set_epoch, evaluates on rank 0 only, and resumes from its own snapshot."""
    x, y = data(rank)
    set_ = TensorDataset(x, y)
    loader = DataLoader(set_, 8, sampler=DistributedSampler(set_))
    model, begin = small(), 0
    path = Path(os.environ["FTRUN_TEST_DIR"]) / "snapshot.pt"
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        begin = saved["epoch"] + 1
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    epoch = begin - 1
    for epoch in range(begin, 6):
        for i, (bx, by) in enumerate(loader):
            moment.at(f"train {epoch} {i}")
            optimizer.zero_grad()
            nn.functional.mse_loss(model(bx), by).backward()
            optimizer.step()
        if rank == 0:
            model.eval()
            with torch.no_grad():
                nn.functional.mse_loss(model.module(x), y).item()
            model.train()
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, path)
        dist.barrier()
    return {"model": model.module}, {"epoch": epoch}


def one_ahead(loader):
    """accelerate's shape: the loop knows its last batch, because it draws one ahead."""
    batches = iter(loader)
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now


def look_ahead(rank, size, epochs):
    """Hugging Face's shape: a collective after the draws, a group of batches for each step."""
    x, y = data(rank)
    set_ = TensorDataset(x, y)
    loader = DataLoader(set_, size, sampler=DistributedSampler(set_))
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = samples = 0
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        batches = one_ahead(loader)
        for _ in range((len(loader) + 2) // 3):
            group = [batch for _, batch in zip(range(3), batches, strict=False)]
            moment.at(f"train {steps}")
            count = torch.tensor(sum(len(bx) for bx, _ in group))
            dist.all_reduce(count)
            optimizer.zero_grad()
            for index, (bx, by) in enumerate(group):
                with contextlib.nullcontext() if index + 1 == len(group) else model.no_sync():
                    loss = nn.functional.mse_loss(model(bx), by, reduction="sum")
                    (loss * dist.get_world_size() / count).backward()
            optimizer.step()
            steps += 1
            samples += sum(len(bx) for bx, _ in group)
            if steps % 5 == 0:
                dist.all_reduce(loss.detach().clone())
    return {"model": model.module}, {"epoch": epoch, "steps": steps, "samples": samples}


class Prefetcher:
    """NVIDIA's shape: the next batch is on its way while the model trains on this one."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.load()

    def load(self):
        self.batch = next(self.batches, None)

    def next(self):
        batch = self.batch
        self.load()
        return batch


def prefetch(rank):
    x, y = data(rank)
    set_ = TensorDataset(x, y)
    loader = DataLoader(set_, 4, sampler=DistributedSampler(set_))
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = total = 0
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        batches = Prefetcher(loader)
        i = 0
        batch = batches.next()
        while batch is not None:
            moment.at(f"train {steps}")
            nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            i += 1
            steps += 1
            total += i
            batch = batches.next()
    return {"model": model.module}, {"steps": steps, "total": total, "epoch": epoch}


def early(rank):
    """nanoGPT's other shape: the next batch is drawn between the forward pass and its step."""
    x, y = data(rank)
    set_ = TensorDataset(x, y)
    loader = DataLoader(set_, 4, sampler=DistributedSampler(set_))
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = epoch = 0
    batches = iter(loader)
    bx, by = next(batches)
    while steps < 40:
        moment.at(f"train {steps}")
        loss = nn.functional.mse_loss(model(bx), by)
        try:
            bx, by = next(batches)
        except StopIteration:
            epoch += 1
            loader.sampler.set_epoch(epoch)
            batches = iter(loader)
            bx, by = next(batches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return {"model": model.module}, {"steps": steps, "epoch": epoch}


def again(rank):
    """Another iterator when one has come to its end, made at another line."""
    x, y = data(rank)
    set_ = TensorDataset(x, y)
    loader = DataLoader(set_, 4, sampler=DistributedSampler(set_))
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches, epoch = iter(loader), 0
    for step in range(40):
        moment.at(f"train {step}")
        try:
            bx, by = next(batches)
        except StopIteration:
            epoch += 1
            loader.sampler.set_epoch(epoch)
            batches = iter(loader)
            bx, by = next(batches)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(bx), by).backward()
        optimizer.step()
    return {"model": model.module}, {"step": step, "epoch": epoch}


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y, self.epoch = x, y, 0

    def __iter__(self):
        for index in range(len(self.x)):
            place = (index + 7 * self.epoch) % len(self.x)
            yield self.x[place], self.y[place]


def stream(rank):
    """An IterableDataset, whose order follows from an epoch of its own."""
    data_set = Stream(*data(rank))
    loader = DataLoader(data_set, 8)
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = seen = 0
    for epoch in range(4):
        data_set.epoch = epoch
        for i, (bx, by) in enumerate(loader):
            moment.at(f"train {steps}")
            optimizer.zero_grad()
            nn.functional.mse_loss(model(bx), by).backward()
            optimizer.step()
            firsts = (data_set.x == bx[0]).all(1).nonzero()
            seen += firsts[0].item() * i
            steps += 1
    return {"model": model.module}, {"steps": steps, "epoch": epoch, "i": i, "seen": seen}


def pairs(rank):
    """Semi-supervised: a second loader within the loop over the first, begun anew at its end."""
    x, y = data(rank)
    marked, plain = TensorDataset(torch.arange(20), x[:20], y[:20]), TensorDataset(x[20:])
    samplers = [DistributedSampler(z, num_replicas=1, rank=0, seed=3) for z in (marked, plain)]
    few = DataLoader(marked, 4, sampler=samplers[0])
    many = DataLoader(plain, 8, sampler=samplers[1])
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    batches, again, steps, seen = iter(few), 0, 0, 0
    for epoch in range(4):
        samplers[1].set_epoch(epoch)
        for (guessed,) in many:
            moment.at(f"train {steps}")
            try:
                numbers, bx, by = next(batches)
            except StopIteration:
                again += 1
                samplers[0].set_epoch(again)
                batches = iter(few)
                numbers, bx, by = next(batches)
            seen += steps * int(numbers[0])
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(torch.cat([bx, guessed]))[: len(bx)], by)
            loss.backward()
            optimizer.step()
            steps += 1
    return {"model": model.module}, {"again": again, "epoch": epoch, "seen": seen, "steps": steps}


def fast(rank):
    """Steps of a few milliseconds, and evaluations by another loader between them."""
    x, y = data(rank)
    shared = torch.randn(40, 6, generator=torch.Generator().manual_seed(4))
    marked = TensorDataset(torch.arange(500), x.repeat(6, 1)[:500], y.repeat(6, 1)[:500])
    sampler = DistributedSampler(marked, num_replicas=1, rank=0, seed=3)
    loader, checks = DataLoader(marked, 1, sampler=sampler), DataLoader(TensorDataset(shared), 20)
    model = DDP(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    average = {k: v.clone() for k, v in model.module.state_dict().items()}
    steps, seen, found = 0, 0, 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for numbers, bx, by in loader:
            moment.at(f"fast {steps}")
            optimizer.zero_grad()
            nn.functional.mse_loss(model(bx), by).backward()
            optimizer.step()
            with torch.no_grad():
                for key, value in model.module.state_dict().items():
                    average[key].lerp_(value, 0.05)
            seen += steps * int(numbers[0])
            steps += 1
            if steps % 200 == 0:
                with torch.no_grad():
                    found += sum(len(model.module(z)) for (z,) in checks)
    slow = small()
    slow.load_state_dict(average)
    facts = {"epoch": epoch, "found": found, "seen": seen, "steps": steps}
    return {"model": model.module, "average": slow}, facts


SHAPES = {
    "fast": fast,
    "again": again,
    "pairs": pairs,
    "stream": stream,
    "while": while_loop,
    "range": range_loop,
    "two": two_models,
    "resume": resume,
    "prefetch": prefetch,
    "early": early,
}
SHAPES["ahead"] = partial(look_ahead, size=4, epochs=14)
SHAPES["last"] = partial(look_ahead, size=32, epochs=40)
"""Each epoch of ``last`` has one batch, so that the loader has ended at every step."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=sorted(SHAPES))
    shape = parser.parse_args().shape
    dist.init_process_group("gloo")
    modules, facts = SHAPES[shape](dist.get_rank())
    moment.at("the end")
    moment.end(modules, **facts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
