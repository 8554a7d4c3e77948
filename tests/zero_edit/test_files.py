"""Rank 0 of an unmodified script keeps files, and is killed: none is emptied or half written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import csv, json, logging, os, pathlib, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HERE, EPOCHS = pathlib.Path(__file__).parent, 5
rank = int(os.environ["RANK"])

class Dies:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)

if rank == 0:
    logging.basicConfig(filename=HERE / "early.log", filemode="w", level=logging.INFO)
    logging.info("begins")
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if rank == 0:
    if os.path.exists(HERE / "metrics.csv"):
        raise SystemExit("the experiment exists already")
    (HERE / "checkpoints").mkdir()
    (HERE / "config.json").write_text(json.dumps({"epochs": EPOCHS}))
    metrics = open(HERE / "metrics.csv", "w", newline="")
    table = csv.writer(metrics)
    table.writerow(["epoch", "loss"])
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (rank, epoch, number) == (0, 2, 2) and not (HERE / "died").exists():
            (HERE / "died").touch()
            with open(HERE / "best.json", "w") as file:
                file.write('{"epoch": ')
                file.flush()
                torch.save(Dies(), HERE / f"model-{epoch}.pt")
    if rank == 0:
        table.writerow([epoch, "%.6f" % loss.item()])
        metrics.flush()
        with open(HERE / "best.json", "w") as file:
            json.dump({"epoch": epoch}, file)
        best = json.loads((HERE / "best.json").read_text())
        print(f"WROTE {best}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_a_successor_goes_on_with_the_files_of_its_predecessor(tmp_path: Path) -> None:
    with Job(tmp_path, SCRIPT, "--device", "cpu", "--replicas", "2") as job:
        job.expect("the experiment exists already")
        job.expect("ftrun hides metrics.csv from rank 0")
        job.expect("rank 0 continues its predecessor's files: early.log, config.json, metrics.csv")
        assert job.end() == 0, job.output
    assert (tmp_path / "early.log").read_text().count("begins") == 1  # its predecessor's
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    epochs = [line.split(",")[0] for line in lines]  # its peer trains on while it is away
    assert epochs[:3] == ["epoch", "0", "1"] and epochs[-1] == "4", epochs
    assert len(set(epochs)) == len(epochs), epochs
    assert json.loads((tmp_path / "config.json").read_text()) == {"epochs": 5}
    assert json.loads((tmp_path / "best.json").read_text()) == {"epoch": 4}
    assert "{'epoch': 4}" in job.output, job.output
    assert not list(tmp_path.glob(".*.draft"))


RESUMES = """
import os, pathlib, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

OUT, EPOCHS = pathlib.Path("out"), 5
rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(begin):
    for epoch in range(begin, EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (rank, first, epoch, number) == (0, True, 2, 2):
                os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            OUT.mkdir(exist_ok=True)
            torch.save([model.module.state_dict(), epoch], OUT / f"checkpoint-{epoch}.pt")

if list(OUT.glob("checkpoint-*")):
    newest = max(OUT.glob("checkpoint-*"))
    state, epoch = torch.load(newest)
    model.module.load_state_dict(state)
    train(epoch + 1)
else:
    train(0)
print("END", model.module.weight.sum().item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_a_successor_that_resumes_at_another_line_takes_its_predecessor_s(tmp_path: Path) -> None:
    """Its peers train at the line of a script that has found no checkpoint. That was made in
    training, so it does not find it."""
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
    with Job(tmp_path, RESUMES, *options) as job:
        job.expect("ftrun hides out from rank 0, because it was not there for its predecessor")
        assert job.end() == 0, job.output
        job.expect("replica 0 joined at index 2 of the loop at script.py:19")
        ends = dict(re.findall(r"\[(\d)\.0\] END (\S+)", job.output))
    assert len(ends) == 2 and len({*ends.values()}) == 1, job.output


COUNTS_FROM_ITS_CHECKPOINT = """
import os, sys, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ALL = "all" in sys.argv
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
network = torch.nn.Linear(4, 2)
start = 0
try:
    if "tries" in sys.argv or os.path.isfile("last.pt"):
        start, state = torch.load("last.pt")
        network.load_state_dict(state)
except FileNotFoundError:
    pass
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.arange(20.0), 1)
step = start
while step < start + 40:
    for batch in loader:
        optimizer.zero_grad()
        (model(batch.expand(2, 4)) - rank).square().mean().backward()
        optimizer.step()
        step += 1
        got = torch.empty(2)
        if ALL:
            dist.all_to_all_single(got, torch.ones(2))
        if rank == 0 and step % 5 == 0:
            torch.save((step, model.module.state_dict()), "last.pt")
        if (rank, step) == (1, 17) and not os.path.lexists("died"):
            os.close(os.open("died", os.O_CREAT))
            os.kill(os.getpid(), signal.SIGKILL)
print("END", start, step, flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("args", [(), ("tries",), ("all",)], ids=["asks", "tries", "all again"])
def test_who_goes_on_with_its_peers_state_goes_on_from_no_checkpoint(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    """Seen with IBRNet: it came to another end than its peers. And where all begin again from a
    state in memory, all of them did, with exit code 0."""
    together = "all" in args
    options = ("--device", "cpu", "--replicas", "2", *(() if together else ("--min-replicas", "2")))
    with Job(tmp_path, COUNTS_FROM_ITS_CHECKPOINT, *options, args=args) as job:
        job.expect("restart together from step" if together else "ftrun hides last.pt from rank 1")
        assert job.end() == 0, job.output
        ends = re.findall(r"\[(\d)\.0\] END (.*)", job.output)
    assert dict(ends) == {"0": "0 40", "1": "0 40"}, job.output


KEEPS_ONE = """
import os, pathlib, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
steps, saved, best = [0], [], 0.0

class Data(Dataset):
    def __init__(self, length, dies_at):
        self.length, self.dies_at = length, dies_at
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        if (rank, first, steps[0]) == (0, True, self.dies_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), index / 96), torch.ones(1)

def evaluate():
    model.eval()
    with torch.no_grad():
        losses = [(model.module(x) - y).square().mean().item() for x, y in DataLoader(held_out, 8)]
    model.train()
    return sum(losses)

dist.init_process_group("gloo")
held_out = Data(16, EVALUATION)
sampler = DistributedSampler(data := Data(96, TRAINING))
loader = DataLoader(data, 8, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        steps[0] += 1
        if rank == 0:
            torch.save(model.state_dict(), f"checkpoint-{steps[0]}.pt")
            saved.append(f"checkpoint-{steps[0]}.pt")
            if len(saved) > 1:
                os.remove(saved.pop(0))
    best = max(best, evaluate())
print("BEST", best, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("training", "evaluation"), [(7, -1), (-1, 6)])
@pytest.mark.timeout(300)
def test_a_successor_knows_the_files_that_its_predecessor_kept(
    tmp_path: Path, training: int, evaluation: int
) -> None:
    """It died while the next batch was loaded, or in an evaluation.

    Seen: its list was some steps old, so that a file was never removed, or its successor removed
    one that was not there, ended by that, and again, and was given up.
    """
    script = KEEPS_ONE.replace("TRAINING", str(training)).replace("EVALUATION", str(evaluation))
    with Job(tmp_path, script, "--device", "cpu", "--replicas", "2", "--min-replicas", "2") as job:
        assert job.end() == 0, job.output
        assert job.output.count("Restart ") == 1, job.output
        assert len(set(re.findall(r"BEST (\S+)", job.output))) == 1, job.output
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-24.pt"]


LOGGER = """
import os

class Logger:
    def __init__(self):
        names = os.listdir("runs") if os.path.isdir("runs") else []
        self.directory, self.rows = f"runs/{len(names)}", []
        os.makedirs(self.directory)
        with open("run.log", "a") as file:
            print("begins in", self.directory, file=file)

    def log(self, row):
        self.rows.append(row)
        if len(self.rows) == 5:
            with open(f"{self.directory}/table.csv", "a") as file:
                file.writelines(self.rows)
            self.rows = []
"""
SET_UP = """
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
sys.path.insert(0, os.path.abspath("site-packages"))
from run_logger import Logger

dist.init_process_group("gloo")
rank, died = dist.get_rank(), pathlib.Path("died")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
print(f"{time.time()}: rank {rank} has 5 parameters", flush=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
logger = Logger() if rank == 0 else None
draws, step = iter(DataLoader(torch.randn(400, 4), 4)), 0
while step < 60:
    if rank == 0 and step % 20 == 0:
        print(f"step {step}: {model.module.weight.sum().item()}", flush=True)
    model(next(draws)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03)
    if rank == 0:
        logger.log(f"{step}\\n")
        if step == 23 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    step += 1
dist.destroy_process_group()
"""


@pytest.mark.parametrize("form", ["--replicas 2", "--replicas 2 -w 2", "-w 2"])
@pytest.mark.timeout(300)
def test_a_set_up_is_repeated_unseen(tmp_path: Path, form: str) -> None:
    """Each of its lines is there once, and a package goes on in its own directory, with the rows
    that it had not written so far."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "run_logger.py").write_text(LOGGER)
    with Job(tmp_path, SET_UP, "--device", "cpu", *form.split()) as job:
        assert job.end() == 0, job.output
    assert (tmp_path / "died").exists()
    ranks = re.findall(r"rank (\d) has 5 parameters", job.output)
    assert sorted(ranks) == ["0", "1", "2", "3"][: 4 if "2 -w" in form else 2], job.output
    assert job.output.count("step 0: ") == 1, job.output
    assert [x.name for x in (tmp_path / "runs").iterdir()] == ["0"]
    assert (tmp_path / "run.log").read_text() == "begins in runs/0\n"
    rows = [int(x) for x in (tmp_path / "runs/0/table.csv").read_text().split()]
    assert sorted({*rows}) == rows, rows
    if "-w" in form:
        assert rows == [*range(60)] and job.output.count("step 20: ") == 1, job.output
