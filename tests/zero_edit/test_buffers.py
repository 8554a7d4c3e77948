"""A newcomer broadcasts its model's buffers in those passes in which its peers do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

EVALUATES = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))  # so the next pass in training broadcasts no buffers
    model.train()
    if epoch == 1 and rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
print("END", int(model.module[1].num_batches_tracked), flush=True)
"""


def test_a_newcomer_that_joins_after_an_evaluation(tmp_path: Path) -> None:
    """Its peer waits for it: it joins in the first step after the evaluation."""
    with Job(tmp_path, EVALUATES, "--replicas", "2", "--min-replicas", "2") as job:
        assert job.end() == 0, job.output
        assert "Replica 0 healed from replica 1: step 6" in job.output
        assert job.output.count("END ") == 2


SYNCED = """
import os, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
while not (first or os.path.exists("synced")):
    time.sleep(0.01)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = lambda: [float(x.double().sum()) for x in model.state_dict().values()]
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 4) * (1 + step)).pow(2).mean().backward()
    optimizer.step()
    if (rank, step, first) == (0, 12, True):
        os.kill(os.getpid(), signal.SIGKILL)
    if step % 5 == 4:
        before = state()
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, 0)
        if rank == 1:
            print("SYNCED", step, before == state(), flush=True)
        if step == 14:
            open("synced", "w").close()
print("END", rank, state(), flush=True)
"""


def test_what_the_dead_rank_broadcast_of_the_model_last_does_not_come_back(tmp_path: Path) -> None:
    """Rank 0 broadcasts the model every five steps. While it is away the others have it newer."""
    with Job(tmp_path, SYNCED, "--replicas", "2") as job:
        assert job.end() == 0, job.output
        assert job.output.count("healed from replica") == 1, job.output
        read = [line.partition("SYNCED ")[2] for line in job.output.splitlines()]
        assert [line for line in read if line] == [f"{x} True" for x in range(4, 30, 5)]
        ends = [x.partition("END ")[2][2:] for x in job.output.splitlines() if "END " in x]
        assert len(ends) == 2 and len(set(ends)) == 1


APART = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
model = DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4) + rank).pow(2).mean().backward()
    optimizer.step()
    if (rank, step, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (1, 6, "0"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_buffers_that_nobody_broadcasts_are_each_ranks_own(tmp_path: Path) -> None:
    """Seen: a newcomer silently had its donor's."""
    with Job(tmp_path, APART, "--replicas", "2", "--min-replicas", "2") as job:
        assert job.end() == 0, job.output
        what = r"buffers of Sequential \(script\.py:\d+\)"
        words = rf"(from its predecessor: .*{what}|not restored: .*{what} of this rank, which)"
        assert re.search(rf"replica 1 joined .*{words}", job.output), job.output


CACHED = """
import os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, deaths = dist.get_rank(), sys.argv[1:]
torch.manual_seed(0)

class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("positions", None, persistent=False)
        self.register_buffer("passes", torch.tensor(0.0), persistent=False)

    def forward(self, x):
        if self.positions is None:
            self.register_buffer("positions", torch.arange(12.0).reshape(3, 4), persistent=False)
            self.register_buffer("seen", torch.zeros(4))
        self.passes += 1
        self.seen += x.detach().mean(0)
        return self.linear(x * self.scale) + self.positions[1] + self.seen.tanh() / self.passes

net = Cached()
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    torch.manual_seed(step)
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if f"{rank} in {step}" in deaths and not os.path.exists(f"died {step}"):
        open(f"died {step}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
state = [*net.state_dict().values(), net.positions, net.passes]
print("END", [float(x.double().sum()) for x in state], flush=True)
"""


@pytest.mark.parametrize(
    "options",
    [
        ("--replicas", "2", "--min-replicas", "2"),
        ("--workers-per-replica", "2", "--device", "cpu", "--memory-snapshots", "auto"),
    ],
    ids=["replicas", "one group"],
)
def test_buffers_that_are_there_after_the_first_pass(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Seen: a replacement made another broadcast, or could not load what its peers had."""
    found = []
    for deaths in ((), ("1 in 5", "0 in 11")):
        directory = tmp_path / str(len(deaths))
        directory.mkdir()
        with Job(directory, CACHED, *options, args=deaths) as job:
            assert job.end() == 0, job.output
            ends = [x.partition("END ")[2] for x in job.output.splitlines() if "END " in x]
            assert len(ends) == 2, job.output
            found.append(sorted(ends))
            healed = re.findall(r"healed from replica|repeated the work since", job.output)
            assert len(healed) == len(deaths), job.output
            assert "not restored" not in job.output and "restarts the job" not in job.output
    assert found[0] == found[1]


SECOND = """
import os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, steps = dist.get_rank(), 0
first = DistributedDataParallel(nn.Linear(4, 1))
second = DistributedDataParallel(nn.utils.spectral_norm(nn.Linear(4, 1)))  # buffers in each pass
made = DistributedDataParallel(nn.Linear(4, 4))
judges = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=0.01)
maker = torch.optim.AdamW(made.parameters(), lr=0.01)


def at(place):
    if [place, str(steps), str(rank)] == sys.argv[1:] and not os.access("died", os.F_OK):
        os.close(os.open("died", os.O_CREAT))
        os.kill(os.getpid(), signal.SIGKILL)


for batch in torch.utils.data.DataLoader(torch.arange(12.0), 1):
    given = batch.expand(2, 4) + torch.arange(8.0).view(2, 4) * (rank + 1)
    found = made(given)
    for optimizer, x in ((judges, found.detach()), (maker, found)):
        optimizer.zero_grad()
        loss = first(x).square().mean()
        at("first")
        loss = loss + second(x).square().mean()
        at("second")
        loss.backward()
        at("back")
        optimizer.step()
        steps += 1
        at("stepped")
values = [x for model in (first, second, made) for x in model.state_dict().values()]
print("END", [float(x.double().sum()) for x in values], flush=True)
"""


@pytest.mark.timeout(300)
def test_a_pass_in_the_second_step_of_a_turn_has_the_buffers_of_that_step(tmp_path: Path) -> None:
    """Seen with HiFi-GAN: a newcomer, which goes through the first step of the turn again and makes
    no broadcast there, took that one's result in the second step, while its peer waited for it in
    the broadcast. Or it had that step's, and only the last digits were other."""
    ends = {}
    for case in ("none", "first 7 1", "second 7 1", "back 7 0", "stepped 7 1", "first 7 0"):
        directory = tmp_path / case.replace(" ", "-")
        directory.mkdir()
        options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")
        with Job(directory, SECOND, *options, args=tuple(case.split())) as job:
            assert job.end() == 0, job.output
            ends[case] = set(re.findall(r"END (.*)", job.output))
            assert ("joined at" in job.output) == (case != "none"), job.output
    assert all(len(x) == 1 for x in ends.values()), ends
    assert set().union(*ends.values()) == ends["none"], ends
