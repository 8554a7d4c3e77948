"""Loops that a newcomer joins exactly where its peers are: without a loader where a turn begins,
before its batch is made; with one where the batch is drawn, whatever the model is called for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jobs import Job, ask

SCRIPT = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

class Own:
    def __init__(self):
        self.at = rank

    def next(self):
        self.at += world
        return torch.full((2, 4), self.at / 100)

def step(x):
    global steps
    print("READ", rank, steps, x.sum().item(), flush=True)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and (rank, steps) in DEATHS:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    steps += 1

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
own, steps, data = Own(), 0, torch.arange(128.0).reshape(32, 4) / 128
for epoch in range(5):
    together = [None] * world
    dist.all_gather_object(together, steps)
    assert len(set(together)) == 1, together
    BODY
print("READ", rank, "END", *[x.data for x in model.parameters()], flush=True)
"""
FORMS = {
    "an object gives the batches": """for turn in range(4):
        step(own.next())""",
    "a generator": """for x in (data[i + rank :: 16] for i in range(0, 8, 2)):
        step(x)""",
    "pieces": """for number, x in enumerate(data[rank::2].split(4)):
        step(x)""",
    "a sampler": """sampler = DistributedSampler(range(32))
    sampler.set_epoch(epoch)
    for batch in BatchSampler(sampler, 4, False):
        step(data[batch])""",
    "rows that are collected, then passes over them": """rows = []
    for turn in range(4):
        rows.append(data[4 * epoch + turn][None])
        model(rows[-1])
    rows = torch.cat(rows)
    for again in range(2):
        order = torch.arange(len(rows)).roll(again)
        for start in range(0, len(rows), 2):
            step(rows[order[start : start + 2]])""",
    "a pass after each step": """sampler = DistributedSampler(range(32))
    sampler.set_epoch(epoch)
    for batch in DataLoader(range(32), 4, sampler=sampler):
        step(data[batch])
        model(data[batch])""",
    "a model that changes between a draw and its pass": """if not epoch:
        average, teacher = torch.zeros(1, 4), torch.nn.Linear(4, 1)
    for x in DataLoader(data, 4, sampler=DistributedSampler(range(32))):
        weight = model.module.weight
        with torch.no_grad():
            weight.mul_(1.01)
            average.add_(weight)
            teacher.weight.lerp_(weight, 0.1)
            weight.add_(average, alpha=0.01).add_(teacher.weight, alpha=0.01)
        step(x)""",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.timeout(300)
def test_what_each_replica_reads_is_as_undisturbed(tmp_path: Path, form: str) -> None:
    ends = []
    for deaths in ((), ((1, 6), (0, 13))):
        (here := tmp_path / str(len(deaths))).mkdir()
        script = SCRIPT.replace("BODY", FORMS[form]).replace("DEATHS", repr(deaths))
        with Job(here, script, "--replicas", "2", "--min-replicas", "2") as job:
            assert job.end() == 0, job.output
            assert job.output.count("healed from replica") == len(deaths), job.output
            read = [x.partition("READ ")[2] for x in job.output.splitlines() if "READ " in x]
            ends.append({tuple(line.split()[:2]): line for line in read})
    assert ends[0] == ends[1] and len(ends[0]) == 2 * (20 + 1)


APART = """import time
    from pathlib import Path
    def wait(name):
        until = time.monotonic() + 120.0
        while name not in os.listdir():  # else who is asked for it may join here
            assert time.monotonic() < until
            time.sleep(0.01)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        wait("stands")
    for turn in range(2):
        for x in DataLoader(data[:4], 2, sampler=DistributedSampler(range(4))):
            step(x)
        for x in DataLoader(data[4:8], 2, sampler=DistributedSampler(range(4))):
            step(x)
        if (rank, steps) == (0, 12):
            Path("stands").touch()
            wait("proposed")
        for x in DataLoader(data, 2, sampler=DistributedSampler(range(32))):
            step(x)"""


@pytest.mark.timeout(300)
def test_peers_that_go_on_to_another_loop_wait_there_for_who_joins_them(tmp_path: Path) -> None:
    """Seen: each loop of some takes one batch, so that a newcomer came to one of them when its
    peers had gone on to another. It ended with an error each time, and was never back.

    Rank 0 stands behind such a loop until the lighthouse has proposed a step at which the newcomer
    joins. That is one of the next steps, all of which are in the loop that follows.
    """
    script = SCRIPT.replace("BODY", APART).replace("DEATHS", "((1, 4),)")
    script = script.replace("dist.all_gather_object(together, steps)", "together = [steps]")
    with Job(tmp_path, script, "--replicas", "2") as job:
        job.until((tmp_path / "stands").exists, "rank 0 stands between two loops")
        job.until(lambda: _phase(tmp_path) in ("propose", "switch"), "a step is proposed")
        (tmp_path / "proposed").touch()
        assert job.end() == 0, job.output
        assert job.output.count("it goes there, and they wait for it") == 1, job.output
        assert job.output.count("Restart ") == job.output.count("healed from replica") == 1
        ends = {x.partition(" END ")[2] for x in job.output.splitlines() if " END " in x}
    assert len(ends) == 1


def _phase(directory: Path) -> str:
    """What the lighthouse waits for."""
    told = ask(directory, "status", "--json")
    return str(json.loads(told.stdout)["phase"]) if told.returncode == 0 else ""
