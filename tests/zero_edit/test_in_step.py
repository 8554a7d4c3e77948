"""A job that needs all its replicas: peers wait in the script's own collectives for a newcomer.

It makes the collectives of the step under way with them, and those between two steps.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

victim, moment = (int(x) for x in sys.argv[1:])
dist.init_process_group("gloo")
rank, is_first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
pair = dist.new_group([0, 1])
torch.manual_seed(3)
data = TensorDataset(torch.randn(48, 8))
loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
model = DistributedDataParallel(body)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
centre, passed = torch.zeros(4), 0

def passes(step):
    global passed
    passed += 1
    if (rank, step) == (victim, 4) and is_first and passed == 7 * step + moment + 1:
        os.kill(os.getpid(), signal.SIGKILL)

for step, (inputs,) in enumerate(loader):
    passes(step)
    first = model(inputs)
    every = [torch.zeros_like(first) for _ in range(3)]
    passes(step)
    dist.all_gather(every, first.detach())
    passes(step)
    second = model(inputs + 1)
    mean = second.detach().mean(0)
    passes(step)
    dist.all_reduce(mean)
    centre = 0.9 * centre + 0.1 * mean / 3
    if rank < 2:
        both = mean.clone()
        passes(step)
        dist.all_reduce(both, group=pair)
        mean = both / 2
    else:
        passes(step)
    pivot = centre.clone() if rank == 1 else torch.zeros(4)
    passes(step)
    dist.broadcast(pivot, 1)
    loss = ((second - pivot) ** 2).mean() + sum(((first - x) ** 2).mean() for x in every)
    optimizer.zero_grad()
    loss.backward()
    passes(step)
    optimizer.step()
    print("STEP", step, loss.item(), mean.sum().item(), flush=True)
print("END", sum(x.double().sum() for x in model.parameters()).item(), centre.sum().item())
dist.destroy_process_group()
"""
OPTIONS = ("--device", "cpu", "--replicas", "3", "--min-replicas", "3")


BETWEEN = """
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

victim, moment, loser = (int(x) for x in (*sys.argv[1:], -1)[:3])
dist.init_process_group("gloo")
rank, is_first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.manual_seed(3)
data = TensorDataset(torch.randn(24, 8))
loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
held = torch.randn(3, 8)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
best = []

def passes(epoch, now):
    if (rank, epoch, now) == (victim, moment // 10, moment % 10) and is_first:
        pathlib.Path("dies").touch()
        os.kill(os.getpid(), signal.SIGKILL)

def evaluate(epoch):
    passes(epoch, 0)
    model.eval()
    with torch.no_grad():
        found = model(held[rank]).square().sum()
    passes(epoch, 1)
    dist.all_reduce(found)
    every = [None] * 3
    passes(epoch, 2)
    dist.all_gather_object(every, (rank, found.item()))
    passes(epoch, 3)
    if rank == 0:
        pathlib.Path(f"best-{epoch}").write_text(str(found.item()))
    passes(epoch, 4)
    dist.barrier()
    passes(epoch, 5)
    best.append(float(pathlib.Path(f"best-{epoch}").read_text()))
    model.train()
    print("STEP", epoch, found.item(), every, flush=True)

def interrupted():
    "Lose this step, which the others commit."
    from ftrun.training.manager import Manager
    plain, until = Manager.should_commit, time.monotonic() + 120.0
    def forgoes(manager):
        Manager.should_commit = plain
        while not (os.path.exists("taken") and os.path.exists("dies")):
            assert time.monotonic() < until
            time.sleep(0.01)
        return plain(manager, forgoes="it was interrupted")
    Manager.should_commit = forgoes

taken = 0
for epoch in range(3):
    for inputs, in loader:
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        is_last = epoch == moment // 10 and taken % 4 == 3 and is_first and loser >= 0
        if is_last and rank == loser:
            interrupted()
        optimizer.step()
        if is_last and rank == 0:
            open("taken", "w").close()
        taken += 1
    evaluate(epoch)
print("END", sum(x.double().sum() for x in model.parameters()).item(), best)
dist.destroy_process_group()
"""


def _told(directory: Path, script: str, *args: str) -> tuple[dict[tuple[str, str], str], str]:
    """What each rank has printed for each step or epoch, and at the end."""
    directory.mkdir()
    with Job(directory, script, *OPTIONS, args=args) as job:
        assert job.end() == 0, job.output
        found = re.findall(r"^\[(\d)\.0\] (STEP \d+|END) (.*)$", job.output, re.MULTILINE)
    return {(rank, what): words for rank, what, words in found}, job.output


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    return _told(tmp_path_factory.mktemp("undisturbed") / "job", SCRIPT, "0", "-9")[0]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    return _told(tmp_path_factory.mktemp("evaluated") / "job", BETWEEN, "0", "-9")[0]


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("0", "1"),
        ("1", "4"),
        ("2", "6"),
        *(
            pytest.param(victim, moment, marks=pytest.mark.slow)
            for victim in "012"
            for moment in "0123456"
        ),
    ],
)
def test_the_step_of_a_death_is_as_undisturbed(
    tmp_path: Path, undisturbed: dict[tuple[str, str], str], victim: str, moment: str
) -> None:
    found, output = _told(tmp_path / "job", SCRIPT, victim, moment)
    assert "died: SIGKILL" in output
    found.setdefault((victim, "STEP 4"), undisturbed[victim, "STEP 4"])  # it may be over by then
    assert found == undisturbed, output


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("0", "13"),
        ("1", "1"),
        ("2", "22"),
        *(
            pytest.param(victim, f"{epoch}{moment}", marks=pytest.mark.slow)
            for epoch in "012"
            for victim in "02"
            for moment in "012345"
        ),
    ],
)
def test_the_evaluation_of_a_death_is_as_undisturbed(
    tmp_path: Path, evaluated: dict[tuple[str, str], str], victim: str, moment: str
) -> None:
    found, output = _told(tmp_path / "job", BETWEEN, victim, moment)
    assert "died: SIGKILL" in output
    assert "ftrun: Summary: 12 steps in" in output, output
    done = victim, f"STEP {int(moment) // 10}"
    found.setdefault(done, evaluated[done])  # it may be over by then
    assert found == evaluated, output


@pytest.mark.parametrize(
    ("victim", "loser"), [("2", "1"), pytest.param("1", "2", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("moment", ["10", "21"])
def test_one_that_has_lost_the_step_before_joins_with_the_newcomer(
    tmp_path: Path,
    evaluated: dict[tuple[str, str], str],
    victim: str,
    moment: str,
    loser: str,
) -> None:
    """Seen: the newcomer went on alone, and the job waited for ever at its end."""
    found, output = _told(tmp_path / "job", BETWEEN, victim, moment, loser)
    assert re.search(rf"Replica {loser} healed from replica [^{loser}]", output), output
    assert found == evaluated, output


REDUCED = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parts, moment = (int(x) for x in sys.argv[1:])
dist.init_process_group("gloo")
rank, is_first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def agrees(number):
    if (rank, step, number) == (1, 4, moment) and is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    every = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(every, loss.detach())

for step in range(12):
    optimizer.zero_grad()
    for part in range(parts):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()  # each reduces
        agrees(2 * part)
        agrees(2 * part + 1)
    optimizer.step()
print("END", sum(x.double().sum() for x in model.parameters()).item(), flush=True)
"""


@pytest.mark.parametrize(("parts", "moment", "lost"), [("1", "1", 0), ("2", "1", 1), ("2", "3", 0)])
def test_a_step_whose_averages_were_handed_out_is_ended_without_the_dead(
    tmp_path: Path, parts: str, moment: str, lost: int
) -> None:
    """Seen: the survivor waited in its next collective for the newcomer, and that for the state
    after the step."""
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")
    with Job(tmp_path, REDUCED, *options, args=(parts, moment)) as job:
        assert job.end() == 0, job.output
        ends = re.findall(r"^\[(\d)\.0\] END (.*)$", job.output, re.MULTILINE)
        assert len(ends) == 2 and ends[0][1] == ends[1][1], job.output
        assert "a rank has died after averages of this step were handed out" in job.output
        assert job.output.count("1 of 12 steps were not committed") == lost, job.output
