"""Scripts that train in several loops, which a newcomer passes over to come to its peers.

two: a warm-up with an optimizer of its own, an evaluation, a file, and then the rest.
twice: the same function called twice, two batches for a step. alternate: two loaders in each epoch.
stages: a list of stages around one loop. counted: the first loop has no loader.
rounds: each has other data, of another size, in a loader of its own. fresh: each has another model,
with an optimizer and a scheduler. numbered: the numbers of each epoch follow those of the last.
generated: a generator gives the batches of each epoch.
sharded: with FSDP2. average: two calls in one line, and then an average that begins late.
"""

import argparse
import functools
import gc
import json
import os
from pathlib import Path

import moment
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DIRECTORY = Path(os.environ.get("FTRUN_TEST_DIR", "."))


class Job:
    """What all forms share."""

    def __init__(self, sharded=False):
        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(1)
        x = torch.randn(240, 8)
        data = TensorDataset(x, x @ torch.randn(8, 1))
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, 8, sampler=self.sampler)
        self.other_sampler = DistributedSampler(data)
        self.other = DataLoader(data, 10, sampler=self.other_sampler)
        self.whole = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.model = fully_shard(self.whole) if sharded else DDP(self.whole)
        self.optimizer = self.new_optimizer(0.05)
        self.steps, self.seen, self.log = 0, 0, []

    def new_optimizer(self, rate):
        return torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)

    def step(self, x, y, optimizer=None, steps=True):
        optimizer = optimizer or self.optimizer
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        self.seen += len(x)
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total = torch.zeros(1)
        for x, y in DataLoader(self.loader.dataset, 60):
            total += nn.functional.mse_loss(self.model(x), y)
        dist.all_reduce(total)
        self.model.train()
        return total.item()

    def end(self, alike=None, **facts):
        moment.at("the end")
        counted = {"steps": self.steps, "seen": self.seen, "log": self.log}
        moment.end({"model": self.whole}, alike, **counted, **facts)
        dist.destroy_process_group()


def saved_of(job):
    return {} if isinstance(job.model, FSDPModule) else job.model.module.state_dict()


def two():
    job = Job()
    path = DIRECTORY / f"journal-{job.rank}"
    journal = open(path, "a")  # noqa: SIM115 - as long as the job
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1, 0.5)
    for epoch in range(2):
        job.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(job.loader):
            moment.at(f"train warm {epoch} {i}")
            job.step(x, y)
        scheduler.step()
        job.log.append(f"warm {epoch}")
        print("warm", epoch, job.steps, file=journal, flush=True)
    job.evaluate()
    if job.rank == 0:
        torch.save({"steps": job.steps, **saved_of(job)}, DIRECTORY / "warm.pt")
        (DIRECTORY / "warm.json").write_text(json.dumps({"steps": job.steps}))
    chosen = [f"stage of {job.steps}" if job.rank == 0 else None]
    dist.broadcast_object_list(chosen)
    saved = torch.load(DIRECTORY / "warm.pt")
    optimizer = job.new_optimizer(0.01)
    for epoch in range(3):
        job.other_sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(job.other):
            moment.at(f"train main {epoch} {i}")
            job.step(x, y, optimizer)
        job.log.append(f"main {epoch}")
        print("main", epoch, job.steps, file=journal, flush=True)
    journal.close()
    warm, main = len(job.loader), len(job.other)
    right = {f"warm {x} {warm * (x + 1)}" for x in range(2)}
    right |= {f"main {x} {2 * warm + main * (x + 1)}" for x in range(3)}
    assert json.loads((DIRECTORY / "warm.json").read_text()) == {"steps": 2 * warm}
    lines = path.read_text().splitlines()
    assert set(lines) <= right, lines
    assert saved.pop("steps") == 2 * warm
    sums = [round(float(x.sum()), 5) for x in saved.values()]
    job.end({"saved": str(sums)}, chosen=chosen)


def sharded():
    job = Job(sharded=True)
    run_epochs(job, job.loader, job.sampler, 2, "first", 0.05)
    job.evaluate()
    second = run_epochs(job, job.other, job.other_sampler, 3, "second", 0.01)
    job.end(second=second)


def run_epochs(job, loader, sampler, epochs, name, rate, accumulate=1):
    optimizer = job.new_optimizer(rate)
    total = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            moment.at(f"train {name} {epoch} {i}")
            job.step(x, y, optimizer, steps=(i + 1) % accumulate == 0)
            total += 1
    return total


def twice():
    job = Job()
    first = run_epochs(job, job.loader, job.sampler, 2, "first", 0.05, 2)
    second = run_epochs(job, job.loader, job.sampler, 3, "second", 0.01, 2)
    job.end(first=first if job.steps == 50 else None, second=second)


def average():
    job = Job()
    fit = functools.partial(run_epochs, job, job.loader, job.sampler)
    one, two = fit(2, "one", 0.05), fit(1, "two", 0.02)
    average = AveragedModel(job.whole)
    averaged = 0
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(job.loader):
            moment.at(f"train average {epoch} {i}")
            job.step(x, y)
        average.update_parameters(job.whole)
        averaged += 1
    assert int(average.n_averaged) == averaged
    job.end({"average": digest_of(average)}, counts=(one, two, averaged))


def digest_of(module):
    return str([round(float(x.double().sum()), 6) for x in module.state_dict().values()])


def alternate():
    job = Job()
    for epoch in range(4):
        job.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(job.loader):
            moment.at(f"train one {epoch} {i}")
            job.step(x, y)
        job.other_sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(job.other):
            moment.at(f"train other {epoch} {i}")
            job.step(x, y)
        job.log.append(epoch)
    job.end()


def stages():
    job = Job()
    for name, epochs in [("low", 1), ("middle", 2), ("high", 2)]:
        optimizer = job.new_optimizer(0.01 * epochs)
        for epoch in range(epochs):
            job.sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(job.loader):
                moment.at(f"train {name} {epoch} {i}")
                job.step(x, y, optimizer)
        job.log.append(name)
    job.end()


def counted():
    job = Job()
    for step in range(15):
        moment.at(f"train warm {step}")
        x = torch.randn(8, 8)
        job.step(x, x[:, :1])
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(job.loader):
            moment.at(f"train main {epoch} {i}")
            job.step(x, y)
    job.end()


def rounds():
    job = Job()
    for number in range(4):
        draw = torch.Generator().manual_seed(number)
        x = torch.randn(80 + 40 * number, 8, generator=draw)
        data = TensorDataset(x, x[:, :1])
        sampler = DistributedSampler(data, seed=number)
        loader = DataLoader(data, 8, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(loader):
                moment.at(f"train round {number} {epoch} {i}")
                job.step(x, y)
        job.log.append((number, len(loader)))
    job.end()


def fresh():
    job = Job()
    for number in range(4):
        torch.manual_seed(number)
        job.whole = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        job.model = DDP(job.whole)
        job.optimizer = job.new_optimizer(0.01 * (number + 1))
        scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1, 0.5)
        for epoch in range(2):
            job.sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(job.loader):
                moment.at(f"train model {number} {epoch} {i}")
                job.step(x, y)
            scheduler.step()
        job.log.append(number)
    alive = [x for x in gc.get_objects() if type(x) is DDP]
    assert len(alive) <= 2, "those of the rounds before take memory"
    job.end()


def numbered():
    job = Job()
    x, y = job.loader.dataset.tensors
    for epoch in range(4):
        for i in range(epoch * 10, (epoch + 1) * 10):
            moment.at(f"train numbered {epoch} {i}")
            rows = torch.randperm(240, generator=torch.Generator().manual_seed(i))
            rows = rows[job.rank :: job.world][:8]
            job.step(x[rows], y[rows])
            job.log.append(i)
    job.end()


def batches_of(job, epoch):
    x, y = job.loader.dataset.tensors
    order = torch.randperm(240, generator=torch.Generator().manual_seed(epoch))
    for rows in order[job.rank :: job.world].split(8):
        yield epoch, x[rows], y[rows]


def generated():
    job = Job()
    for epoch in range(4):
        for i, (of, x, y) in enumerate(batches_of(job, epoch)):
            moment.at(f"train generated {epoch} {i}")
            assert of == epoch, "the batches of another epoch"
            job.step(x, y)
        job.log.append(epoch)
    job.end()


FORMS = [
    "two",
    "twice",
    "alternate",
    "stages",
    "rounds",
    "fresh",
    "numbered",
    "generated",
    "counted",
    "sharded",
    "average",
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=FORMS)
    globals()[parser.parse_args().form]()
