"""A training script that writes down its samples, and a reader of its lines.

Each worker writes a line before it trains on a batch and a line after each commit, so a ``kill -9``
at any time hides nothing: together the lines show which samples each step trained.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = """
import contextlib, json, os, pathlib, signal, sys, time
import torch
import ftrun
from torch.utils.data import Dataset

EPOCHS, SAMPLES, WORKERS = map(int, sys.argv[1:4])
MOMENTS, RULES = sys.argv[4].split(","), json.loads(sys.argv[5])
HERE = pathlib.Path(__file__).parent
slot, rank = os.environ["REPLICA_GROUP_ID"], int(os.environ["RANK"])
lines = open(HERE / f"{slot}-{os.environ['FTRUN_INCARNATION']}-{rank}.jsonl", "a")

def note(**facts):
    print(json.dumps(dict(slot=slot, rank=rank, **facts)), file=lines, flush=True)

def moment(name, step):
    # SLOT@STEP:NAME kills this replica there, or at a later step: once, when all are here and
    # the ones before it have died.
    left = [x for x in MOMENTS if x and not (HERE / x).exists()]
    if not left or rank or len(manager.contributors()) < 3:
        return
    victim, _, place = left[0].partition("@")
    if victim == slot and place.partition(":")[2] == name and step >= int(place.partition(":")[0]):
        (HERE / left[0]).write_text("")
        os.kill(os.getpid(), signal.SIGKILL)

class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        torch.manual_seed(index)
        return index, torch.rand(4), torch.rand(1)

torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model.double()
adam = torch.optim.AdamW(model.parameters(), lr=0.01)

def load(state):
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["adam"])

manager = ftrun.manager(
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "adam": adam.state_dict()},
)
optimizer = ftrun.Optimizer(manager, adam)
network = ftrun.DistributedDataParallel(manager, model)
sampler = ftrun.ElasticSampler(manager, SAMPLES, seed=7, **RULES)
loader = ftrun.ElasticLoader(Numbers(), sampler, num_workers=WORKERS)

def forward(step, inputs, targets):
    moment("forward", step)
    return torch.nn.functional.mse_loss(network(inputs.double()), targets.double())

for epoch in sampler.epochs(EPOCHS):
    for indices, inputs, targets in loader:
        step, before = manager.current_step(), manager.state_dict()["lineage"]
        note(step=step, before=before, epoch=sampler.epoch, indices=indices.tolist(),
             samples=sampler.samples, attempt=[time.monotonic(), manager.session.step_under_way()])
        # Slowly while one is missing, so that the next one dies when all are back.
        time.sleep(0.02 if len(manager.contributors()) == 3 else 0.5)
        moment("draw", step)
        if sampler.begins_step:
            optimizer.zero_grad()
        alone = contextlib.nullcontext() if sampler.ends_step else network.no_sync()
        with alone:
            loss = forward(step, inputs, targets)
            note(step=step, before=before, indices=indices.tolist(), loss=loss.item())
            (loss * sampler.fraction).backward()
        if sampler.ends_step:
            moment("backward", step)
            contributors = manager.contributors()
            optimizer.step()
            if optimizer.committed:
                moment("committed", step)
                before = before if slot in contributors else None  # it has healed in this step
                note(committed=step, before=before, contributors=contributors,
                     after=sampler.state_dict())

manager.linger()
digest = [round(x, 12) for p in model.parameters() for x in p.flatten().tolist()]
print("ended", slot, manager.current_step(), flush=True)
(HERE / f"end-{slot}.{rank}.json").write_text(json.dumps(digest))
"""

UNMODIFIED = """
import json, os, pathlib, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, SAMPLES, WORKERS, MOMENTS = *map(int, sys.argv[1:4]), sys.argv[4].split(",")
HERE = pathlib.Path(__file__).parent
dist.init_process_group("gloo")
rank = dist.get_rank()
lines = open(HERE / f"{rank}-{os.getpid()}.jsonl", "a")

def moment(name, step):
    left = [x for x in MOMENTS if x and not (HERE / x).exists()]
    if left and left[0].startswith(f"{rank}@") and left[0].endswith(f":{name}"):
        others = sum((HERE / f"at-{other}").exists() for other in "012")
        if step >= int(left[0][2:].partition(":")[0]) and others == 3:
            (HERE / left[0]).write_text("")
            (HERE / f"at-{rank}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        torch.manual_seed(index)
        return index, torch.rand(4), torch.rand(1)

def main():
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Numbers()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=WORKERS)
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (indices, inputs, targets) in enumerate(loader):
            everybody = all((HERE / f"at-{other}").exists() for other in "012")
            time.sleep(0.02 if everybody or step == 0 else 0.5)
            moment("draw", step)
            before = net[0].weight.detach().clone()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            trained = not torch.equal(before, net[0].weight)
            print(json.dumps([epoch, trained, indices.tolist()]), file=lines, flush=True)
            step += 1
            if step > 1:
                (HERE / f"at-{rank}").write_text("")
            moment("between", step)
    digest = [round(x, 6) for p in model.parameters() for x in p.flatten().tolist()]
    (HERE / f"end-{rank}.0.json").write_text(json.dumps(digest))

main()
dist.destroy_process_group()
"""


_Try = tuple[str, int, int, str | None]
"""Slot, rank, step, and the state before it."""


@dataclass(slots=True)
class Commit:
    """A committed step, as all its workers have written it down."""

    step: int
    before: str | None
    contributors: list[str]
    after: dict[str, Any]


class Lines:
    """The lines of all workers of a run in ``directory``; ``workers``: per replica."""

    def __init__(self, directory: Path, workers: int = 1) -> None:
        self.workers = workers
        self.drawn: dict[_Try, list[list[int]]] = {}
        self._tries: dict[_Try, tuple[float, int]] = {}
        self.epochs: dict[tuple[int, str | None], int] = {}
        self.commits: dict[int, Commit] = {}
        self._losses: dict[tuple[int, str | None, tuple[int, ...]], float] = {}
        for line in _read(directory):
            if "committed" in line:
                self._committed(line)
            elif "loss" in line:
                where = (line["step"], line["before"], tuple(line["indices"]))
                self._losses[where] = line["loss"]
            else:
                self._drew(line)

    def _drew(self, line: dict[str, Any]) -> None:
        """Note a batch. For a step that is computed again, the last attempt counts."""
        where = (line["slot"], line["rank"], line["step"], line["before"])
        when, number = line["attempt"]
        before, known = self._tries.get(where, (when, number))
        if when < before and number != known:
            return
        if number != known or where not in self.drawn:
            self.drawn[where] = []
        self._tries[where] = (when, number)
        if line["samples"]:
            self.drawn[where].append(line["indices"])
        self.epochs[line["step"], line["before"]] = line["epoch"]

    def _committed(self, line: dict[str, Any]) -> None:
        made = Commit(line["committed"], line["before"], line["contributors"], line["after"])
        known = self.commits.setdefault(made.step, made)
        same = (known.contributors, known.after)
        assert same == (made.contributors, made.after), "D2: unlike positions"
        known.before = known.before or made.before
        assert made.before in (None, known.before), "two histories of one step"

    def batches(self, commit: Commit) -> list[list[int]]:
        """The batches that a committed step trained."""
        return [
            batch
            for slot in commit.contributors
            for rank in range(self.workers)
            for batch in self.drawn.get((slot, rank, commit.step, commit.before), [])
        ]

    def samples(self, commit: Commit) -> list[int]:
        """The samples that a committed step trained."""
        return [index for batch in self.batches(commit) for index in batch]

    def _loss(self, commit: Commit) -> float:
        """The mean over all samples of a step."""
        found = [
            (self._losses[commit.step, commit.before, tuple(batch)], len(batch))
            for batch in self.batches(commit)
        ]
        return sum(loss * count for loss, count in found) / sum(count for _, count in found)

    def trained(self) -> dict[int, Counter[int]]:
        """How many times each sample was trained in each epoch."""
        found: dict[int, Counter[int]] = {}
        for commit in self.commits.values():
            epoch = self.epochs[commit.step, commit.before]
            found.setdefault(epoch, Counter()).update(self.samples(commit))
        return found

    def losses(self) -> list[float]:
        """The loss of each step."""
        return [self._loss(self.commits[step]) for step in sorted(self.commits)]

    def sizes(self) -> list[int]:
        """The samples of each step."""
        return [len(self.samples(self.commits[step])) for step in sorted(self.commits)]


def _read(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def parameters(directory: Path) -> dict[str, list[float]]:
    """The parameters of each worker at its end, by replica and rank."""
    return {
        path.stem.removeprefix("end-"): json.loads(path.read_text())
        for path in directory.glob("end-*.json")
    }
