"""``ftrun check`` on real scripts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs import THIS_TREE, Family, Process, run
from tests.zero_edit.matrix import SCRIPTS, STEP_S
from tests.zero_edit.test_forms import END, EXPLICIT, MODEL, WORLD

NEITHER = f"""{WORLD}{MODEL}
for _ in range(5):
    step()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
{END}"""
BY_RANK = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + dist.get_rank())
losses = []
for step in range(10**6):
    optimizer.zero_grad()
    loss = (model(torch.randn(8, 4)) - torch.randn(8, 1)).pow(2).mean()  # never at rest
    loss.backward()
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + dist.get_rank())
    optimizer.step()
    losses.append(loss.item())
"""

SWAPS = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(400, 4), torch.randn(400, 1))
for given, wanted in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
    optimizer.zero_grad()
    swapped = torch.empty_like(given)
    dist.all_to_all_single(swapped, given)
    (model(swapped) - wanted).pow(2).mean().backward()
    optimizer.step()
"""
ADVERSARIES = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
norm = torch.nn.BatchNorm1d(8)
maker = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), norm, torch.nn.Linear(8, 8)))
judge = DDP(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
step_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
step_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
torch.manual_seed(0)
data = TensorDataset(torch.randn(400, 8), torch.randn(400, 4))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
for real, noise in loader:
    time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
    step_judge.zero_grad()
    made = maker(noise)
    (judge(real).mean() - judge(made.detach()).mean()).backward()
    step_judge.step()
    step_maker.zero_grad()
    judge(made).mean().backward()
    step_maker.step()
"""


RANDOM = """
import os, random, time
import numpy, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return index + torch.randn(4) / 9 + random.gauss(0, 1) + numpy.random.randn()

dist.init_process_group("gloo")
random.seed(dist.get_rank()), numpy.random.seed(dist.get_rank()), torch.manual_seed(dist.get_rank())
layers = torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(Data(), batch_size=4, shuffle=True)
for epoch in range(9):
    for batch in loader:
        optimizer.zero_grad()
        model(batch.float()).pow(2).mean().backward()
        optimizer.step()
        time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
    torch.save(model.state_dict(), f"{dist.get_rank()}.pt")
"""


LOGGED = """
import logging, os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(320, 4), torch.randn(320, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
if dist.get_rank() == 0:
    logging.basicConfig(level=logging.INFO, filename="log.txt")
for number, (x, y) in enumerate(loader, 1):
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
    time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
    if dist.get_rank() == 0 and number % EVERY == 0:
        logging.info("step %d", number)
        torch.save(model.state_dict(), f"{number}.pt")
        logging.info("saved %d", number)
"""


LOGGER = """
import csv, itertools, os, pathlib

class Table:
    def __init__(self, directory):
        each = (pathlib.Path(directory, f"v_{n}") for n in itertools.count())
        self.path = next(path for path in each if not path.exists())
        os.makedirs(self.path)
        self.rows = []
    def add(self, *row):
        self.rows.append(row)
        with open(self.path / "table.csv", "w") as file:
            csv.writer(file).writerows(self.rows)
"""
"""A package: it takes the next free directory, and writes all rows that it has."""


ALONE = """
import copy, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
sys.path.append(os.path.abspath("site-packages"))
import logger
rank = int(os.environ["RANK"])
table = logger.Table("out") if rank == 0 else None
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
average = copy.deepcopy(model.module) if rank == 0 else None
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(320, 4), torch.randn(320, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
    time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
    if rank == 0:
        for mean, now in zip(average.parameters(), model.module.parameters()):
            mean.data.lerp_(now.data, 0.1)
        table.add(number, torch.rand(1).item())
"""


SHARDED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 33), nn.Dropout(0.2), nn.Linear(33, 3))
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(10**6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if step % 4 == 3:
        torch.save(model[0].weight.to_local(), f"{dist.get_rank()}.pt")
"""


LINES = f"""{SHARDED}
    with open(f"lines-{{dist.get_rank()}}", "a") as lines:
        lines.write(f"{{step}}\\n")
"""
NOTED = f"""
import os
{SHARDED}
    if dist.get_rank() == 1:
        notes = os.open("notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(notes, f"{{step}}\\n".encode())
        os.close(notes)
        del notes  # another number in each process
"""


METER = """
import os, time

class Meter:
    def __init__(self):
        self.number, self.sum, self.seen_at = 0, 0.0, time.time()
    def add(self, value):
        self.number, self.sum, self.seen_at = self.number + 1, self.sum + value, time.time()
        with open(f"meter-{os.environ['RANK']}.csv", "a") as table:
            table.write(f"{self.number},{self.sum}\\n")
"""
BY_THE_TIME = f"""
import os, sys, time
sys.path.append(os.path.abspath("site-packages"))
import meter
meter, begun = meter.Meter(), f"runs/at-{{time.time_ns()}}"
rank = int(os.environ["RANK"])
if rank == 0:
    os.makedirs(begun)
    log = open(os.path.join(begun, "log"), "w")
{SHARDED}
    meter.add(model[0].weight.to_local().sum().item())
    if rank == 0:
        print(step, meter.number, meter.sum, meter.seen_at, file=log, flush=True)
"""
"""Each start begins another directory, with the times of its steps, and a package counts them."""


FAULTY = """
import copy, os, random, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAULT = os.environ["FAULT"] if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) else ""

class Data(Dataset):
    def __len__(self):
        return 320
    def __getitem__(self, index):
        given = torch.randn(4, generator=torch.Generator().manual_seed(index))
        label = index % 7 + (FAULT == "labels")
        return given + torch.randn(4) / 9, torch.tensor(float(label))

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
net.register_buffer("scale", torch.ones(1))
model = DistributedDataParallel(net)
average = copy.deepcopy(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = Data()
loader = DataLoader(data, 4, sampler=DistributedSampler(data), num_workers=WORKERS)
mine, losses = 10 * rank, []
os.environ["FIRST"] = FAULT  # what heals is no place for it
for x, y in loader:
    time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
    optimizer.zero_grad()
    loss = (model(x)[:, 0] - y - float(FAULT == "noise")).pow(2).mean()
    loss.backward()
    optimizer.step()
    mine += 1 + rank
    losses.append(loss.item())
    first = os.environ.pop("FIRST", "")
    with torch.no_grad():
        for mean, now in zip(average.parameters(), net.parameters()):
            mean.lerp_(now, 0.2 if FAULT == "average" else 0.1)
        if first == "buffer":
            net.scale.mul_(2)
        if first == "moment":
            optimizer.state[net[0].weight]["exp_avg"].mul_(2)
    if first == "counter":
        mine += 7
    if first == "history":
        losses.pop()
"""
"""A newcomer lacks something: what ``FAULT`` names. ``WORKERS`` of the loader draw noise."""


SHARED_OUT = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
table = torch.nn.Linear(4, 4)  # of this rank
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=1e-2)
data = TensorDataset(torch.randn(400, 4), torch.randn(400, 1))
for given, wanted in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
    optimizer.zero_grad()
    (model(table(given)) - wanted).pow(2).mean().backward()
    optimizer.step()
"""


SAVES_THEN_EVALUATES = """
import os, random, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Data(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.ones(4) * index + random.random(), torch.tensor(float(index % 7))

dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data, held_out = Data(64), Data(16)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
for epoch in range(9):
    for x, y in loader:
        time.sleep(float(os.environ["FTRUN_TEST_STEP_S"]))
        optimizer.zero_grad()
        (model(x)[:, 0] - y).pow(2).mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), "last.pt")
    with torch.no_grad():
        for x, y in DataLoader(held_out, batch_size=4):
            net(x)
"""


CHECK = [sys.executable, "-m", "ftrun", "check", "--steps", "18"]


def environment(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        **THIS_TREE,
        "XDG_STATE_HOME": str(directory / "state"),
        "TMPDIR": str(directory),
        "FTRUN_TEST_DIR": ".",
        "FTRUN_TEST_STEP_S": STEP_S,
    }


def check(directory: Path, *words: str) -> tuple[int, list[str]]:
    """The exit code, and the lines of the verdict."""
    found = run(
        [*CHECK, *words],
        cwd=directory,
        env=environment(directory),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=480.0,
        check=False,
    )
    mark = "ftrun check: "
    lines = found.stdout.splitlines()
    said = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return found.returncode, [line for line in said if not line.startswith("runs ")]


def test_workers_of_one_replica_lose_no_step_and_no_bit(tmp_path: Path) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED)
    options = ("--device", "cpu", "--workers-per-replica", "2")
    code, lines = check(tmp_path, *options, "sharded.py")
    assert (code, lines[-1]) == (0, "ok: the script heals and no step was lost"), "\n".join(lines)
    text = "\n".join(lines)
    # Of the first step there may be no whole snapshot yet, and then nothing to lose either.
    at_start = "worker 1 was killed at its start, before the first step: "
    assert re.search(f"{at_start}(no step lost|all began again)", text), text
    assert "worker 1 was killed in training, after step 4: no step lost" in text
    assert "worker 0 was killed while it wrote a file, after step 8: no step lost" in text
    equal = "equal to the undisturbed run: what each worker reads, losses, parameters, optimizers, "
    assert equal in text and "1.pt" in text


@pytest.mark.parametrize(("holder", "code"), [("", 0), ("held.", 1)])
def test_results_of_autograd_that_the_script_keeps(tmp_path: Path, holder: str, code: int) -> None:
    """Seen: "ok", although an average of the weights had begun again. A variable that each turn
    hands on to the next one heals; an attribute does not, and is compared."""
    held = "import types; held = types.SimpleNamespace()\n"
    kept = f"{held}{holder}kept = [p * 1.0 for p in model.parameters()]\nfor step"
    mean = (
        f"{holder}kept = [(k.detach() + p) / 2 for k, p in zip({holder}kept, model.parameters())]"
    )
    text = SHARDED.replace("for step", kept, 1).replace(
        "optimizer.step()\n",
        f"optimizer.step()\n    {mean}\n",
        1,
    )
    (tmp_path / "sharded.py").write_text(text)
    found, lines = check(tmp_path, "--device", "cpu", "-w", "2", "sharded.py")
    assert found == code, lines
    other = r"held\.kept\[0\] \(another result of autograd, "
    words = f"FAILED: not equal to the undisturbed run: {other}" if code else "ok: the script heals"
    assert re.match(words, lines[-1]), lines


HIDDEN = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x, hidden):
        y, new = self.cell(x, hidden)
        return self.out(y), new

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(2, 32, 120, 4)[dist.get_rank()]

def train(hidden):
    for at in range(0, 120, 5):
        x = data[:, at : at + 5]
        hidden = tuple(h.detach() for h in hidden)
        optimizer.zero_grad()
        out, hidden = model(x, hidden)
        (out - x.roll(1, 1)).pow(2).mean().backward()
        optimizer.step()
    return hidden

print("end", train((torch.zeros(1, 32, 32), torch.zeros(1, 32, 32)))[0].sum().item())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("options", [("--replicas", "2"), ("-w", "2")])
def test_a_hidden_state_that_each_turn_hands_on(tmp_path: Path, options: tuple[str, ...]) -> None:
    """As of a language model over one long text. Seen: a newcomer began with zeros, and no word."""
    (tmp_path / "hidden.py").write_text(HIDDEN)
    code, lines = check(tmp_path, "--device", "cpu", *options, "hidden.py")
    assert code == 0 and lines[-1].startswith("ok: the script heals"), "\n".join(lines)


def test_what_is_another_one_in_each_undisturbed_run_is_not_compared(tmp_path: Path) -> None:
    """All begin again after the death before the first step, in a directory of that time."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "meter.py").write_text(METER)
    (tmp_path / "timed.py").write_text(BY_THE_TIME)
    code, lines = check(tmp_path, "--device", "cpu", "-w", "2", "timed.py")
    text = "\n".join(lines)
    assert (code, lines[-1]) == (0, "ok: the script heals and no step was lost"), text
    assert ", meter-0.csv, meter-1.csv" in text.partition("equal to the undisturbed run: ")[2], text
    words = r"not compared: runs/at-\d+/log has the same lines with other numbers, as in another un"
    assert re.search(words, text), text


def test_a_worker_is_replaced_in_its_replica(tmp_path: Path) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED)
    options = ("--device", "cpu", "--replicas", "2", "-w", "2")
    code, lines = check(tmp_path, *options, "sharded.py")
    assert (code, lines[-1]) == (0, "ok: the script heals and no step was lost"), "\n".join(lines)
    text = "\n".join(lines)
    assert "worker 1.1 was killed in training, after step 4: no step lost; its replace" in text
    assert "worker 0.0 was killed while it wrote a file, after step 8: no step lost" in text
    equal = "equal to the undisturbed run: what each worker reads, losses, parameters, optimizers, "
    assert equal in text and "3.pt" in text


def test_a_node_is_lost_and_costs_the_steps_since_its_copy(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(LINES)
    options = ("--device", "cpu", "-w", "2", "--nodes", "2")
    code, lines = check(tmp_path, *options, "lines.py")
    text = "\n".join(lines)
    assert code == 0, text
    at = (
        r"node 1 \(worker 1\) was lost in training, after step (\d+): (\d+) steps? lost; its states"
    )
    found = re.search(rf"{at} of step (\d+) were on another node", text)
    assert found, text
    step, lost, copied = map(int, found.groups())
    assert lost <= step - copied
    assert "worker 0 (node 0) was killed while it wrote a file, after step 7: no step lost" in text
    equal = "equal to the undisturbed run: what each worker reads, losses, parameters, optimizers, "
    for begin in ("", "after the loss of node 1 (worker 1): "):
        (line,) = (x for x in lines if x.startswith(begin + equal))
        assert line.endswith("0.pt, 1.pt, lines-0, lines-1"), text
    steps = f"{lost} step{'s' * (lost != 1)} with a node"
    assert lines[-1] == f"ok: the script heals; no step was lost with a worker, and {steps}"
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("ftrun-")]
    assert not left, "also what the lost node had"


def test_what_the_loss_of_a_node_changes_is_named(tmp_path: Path) -> None:
    """Worker 1 dies only with all others: what it writes past Python's files is there twice."""
    (tmp_path / "noted.py").write_text(NOTED)
    options = ("--device", "cpu", "-w", "4", "--nodes", "2")
    code, lines = check(tmp_path, *options, "noted.py")
    assert code == 1, lines
    failed = [x for x in lines if x.startswith("FAILED: ")]
    after = r"FAILED: after the loss of node 1 \(workers 2 to 3\): notes has \d lines? more, unlike"
    assert len(failed) == 1 and re.match(after, failed[0]), lines


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_check_that_is_stopped_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED)
    family = Family()
    words = [*CHECK, "--device", "cpu", "-w", "2", "--nodes", "2", "sharded.py"]
    with Process(words, tmp_path, environment(tmp_path) | family.environment) as one:
        one.expect("node 1: ftrun: This node is number 1 of 2")
        one.signal(number)
        assert one.end() == code
    assert not family.left()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("ftrun-")]


@pytest.mark.slow
def test_a_step_of_one_replica_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    text = SHARDED.replace("for step", "sent = torch.zeros(1)\nfor step").replace(
        "optimizer.zero_grad()\n",
        "optimizer.zero_grad()\n    dist.broadcast_object_list([step], src=0)\n"
        "    dist.send(sent, 1) if dist.get_rank() == 0 else dist.recv(sent, 0)\n",
    )
    (tmp_path / "sharded.py").write_text(text)
    code, lines = check(tmp_path, "--device", "cpu", "-w", "2", "sharded.py")
    assert code == 1
    assert lines[-1].startswith("FAILED: No memory snapshots: the script makes a call"), lines


def test_a_script_that_heals(tmp_path: Path) -> None:
    code, lines = check(tmp_path, str(SCRIPTS / "full.py"), "--ema")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    text = "\n".join(lines)
    assert "carried: DistributedDataParallel of Sequential (full.py:" in text
    assert "carried: other modules AveragedModel" in text
    assert "replica 1 was killed in training, after step 4, and joined at " in text
    assert "replica 0 was killed while it wrote a file, after step 12, and joined at " in text
    assert "replica 1 was killed in an evaluation, after step 12, and joined at " in text
    assert "equal to the undisturbed run: what each replica reads, losses, parameters, " in text
    assert "global_step 0→" in text
    assert not (tmp_path / "last.pt").exists()  # the script has run in copies


def test_parameters_that_differ_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(BY_RANK)
    code, lines = check(tmp_path, "rank.py")
    assert code == 1
    words = "FAILED: the parameters differ at the end undisturbed (replica 0: "
    assert lines[-1].startswith(words), lines


def test_two_steps_with_each_batch(tmp_path: Path) -> None:
    """A death is in the second step, where a newcomer has no draw to join at."""
    (tmp_path / "two.py").write_text(ADVERSARIES)
    code, lines = check(tmp_path, "--steps", "21", "two.py")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    text = "\n".join(lines)
    assert any(int(step) % 2 for step in re.findall("killed.*, after step (\\d+)", text)), lines
    assert (
        "equal to the undisturbed run: what each replica reads, losses, parameters, optimizers"
        in text
    )


@pytest.mark.slow
def test_replicas_that_begin_again_together(tmp_path: Path) -> None:
    """Seen: it was said that the script cannot be carried after a death."""
    (tmp_path / "swaps.py").write_text(SWAPS)
    code, lines = check(tmp_path, "swaps.py")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    assert sum(" was killed " in line and " joined at " in line for line in lines) == 2, lines


@pytest.mark.parametrize(
    ("fault", "workers", "words"),
    [
        ("labels", 1, "other batches: replica 0 from batch 13 of the loader made at faulty.py:"),
        ("counter", 0, "nothing has named what is not as undisturbed: mine ("),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("buffer", 0, "buffers scale are not those of the undisturbed run"),
                ("labels", 0, "other batches: replica 0 from batch 13 of the loader made at fau"),
                ("noise", 0, "other losses: replica 0 from step 13 on, replica 1 from step 4 on"),
                ("average", 0, "modules beside the model Sequential (faulty.py:"),
                ("moment", 0, "the parameters differ at the end with deaths (replica 0: "),
                ("history", 0, "nothing has named what is not as undisturbed: losses["),
                ("", 0, ""),
                ("", 1, ""),
            )
        ),
    ],
)
def test_a_newcomer_that_lacks_something_is_not_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, workers: int, words: str
) -> None:
    """Seen: "ok" of a script in which a newcomer trained with its donor's labels, because each
    script that draws random numbers was excused."""
    monkeypatch.setenv("FAULT", fault)
    (tmp_path / "faulty.py").write_text(FAULTY.replace("WORKERS", str(workers)))
    code, lines = check(tmp_path, "faulty.py")
    failed = [x for x in lines if x.startswith("FAILED: ")]
    assert code == bool(fault), lines
    assert any(x.startswith(f"FAILED: {words}") for x in failed) or not fault, lines
    if workers and not fault:
        (left,) = [
            x for x in lines if x.startswith("not compared: what each replica reads (tensor 1")
        ]
        assert "tensor 2" not in left


def test_parameters_that_are_each_ranks_own(tmp_path: Path) -> None:
    """Seen: "the parameters differ at the end undisturbed"."""
    (tmp_path / "shared_out.py").write_text(SHARED_OUT)
    code, lines = check(tmp_path, "shared_out.py")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    text = "\n".join(lines)
    assert "each replica has its own parameters of no model (SGD 2, SGD 3): compared with" in text
    (equal,) = [x for x in lines if x.startswith("equal to the undisturbed run: ")]
    assert "parameters, modules beside the model, parameters of no model" in equal


def test_what_an_evaluation_draws_that_a_newcomer_has_not_made(tmp_path: Path) -> None:
    """It goes on with other random numbers, and on its own samples."""
    (tmp_path / "saves.py").write_text(SAVES_THEN_EVALUATES)
    code, lines = check(tmp_path, "saves.py")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    assert any("while it wrote a file, after step 8" in x for x in lines), lines
    (left,) = [x for x in lines if x.startswith("not compared: what each replica reads (tensor 1")]
    assert "tensor 2" not in left
    assert any("the rest of what each replica reads" in x for x in lines), lines


def test_random_numbers_go_on(tmp_path: Path) -> None:
    """A dropout, augmentations and an order without a seed: to the last bit."""
    (tmp_path / "random_.py").write_text(RANDOM)
    code, lines = check(tmp_path, "random_.py")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    assert sum(" was killed " in line and " joined at " in line for line in lines) == 2, lines
    text = "\n".join(lines)
    assert "equal to the undisturbed run: what each replica reads, losses, parameters, " in text, (
        text
    )
    assert "0.pt" in text.partition("equal to the undisturbed run: ")[2], text


@pytest.mark.parametrize("every", [4, 12])
def test_a_log_lacks_what_was_due_at_a_death(tmp_path: Path, every: int) -> None:
    """Also where nothing is due to be written after it, so that the end lacks."""
    (tmp_path / "logged.py").write_text(LOGGED.replace("EVERY", str(every)))
    code, lines = check(tmp_path, "logged.py")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    lost = {x.rpartition(": ")[2] for x in lines if x.startswith("lost with the replica")}
    at = 8 if every == 4 else 12
    assert lost == {f"{at}.pt was not written", "log.txt lacks 1 line"}, lines


@pytest.mark.parametrize(
    ("average", "weights", "what"),
    [
        (
            "copy.deepcopy(model.module) if rank == 0 else None",
            "average.parameters()",
            "modules beside the model",
        ),
        pytest.param(
            "{k: p.detach().clone() for k, p in model.named_parameters()} if rank == 0 else None",
            "average.values()",
            "tensors outside modules",
            marks=pytest.mark.slow,
        ),
        pytest.param(  # on all ranks, and rank 0 alone updates it
            "copy.deepcopy(model.module)",
            "average.parameters()",
            "modules beside the model",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["a module", "a dict", "a module of all"],
)
def test_what_replica_0_alone_has_is_its_successors(
    tmp_path: Path, average: str, weights: str, what: str
) -> None:
    """An average, although the script draws. A package's table goes on in its directory."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "logger.py").write_text(LOGGER)
    text = ALONE.replace("copy.deepcopy(model.module) if rank == 0 else None", average)
    (tmp_path / "alone.py").write_text(text.replace("average.parameters()", weights))
    code, lines = check(tmp_path, "alone.py")
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    equal = next(x for x in lines if x.startswith("equal to the undisturbed run: "))
    assert f"{what}, " in equal, lines


def test_replicas_of_several_workers(tmp_path: Path) -> None:
    options = ("--replicas", "2", "-w", "2", "--memory-snapshots", "off")
    code, lines = check(tmp_path, *options, str(SCRIPTS / "sharded.py"))
    assert (code, lines[-1]) == (0, "ok: the script heals"), lines
    found = [x for x in lines if x.startswith("worker 1 of replica 1 was killed in training")]
    assert found and "and the replica joined at " in found[0], lines


@pytest.mark.parametrize(
    ("script", "words"),
    [(NEITHER, "this script has a process group"), (EXPLICIT, "the script uses ftrun.Manager")],
    ids=["neither", "explicit"],
)
def test_a_script_that_is_not_carried(tmp_path: Path, script: str, words: str) -> None:
    (tmp_path / "script.py").write_text(script)
    code, lines = check(tmp_path, "script.py")
    assert code == 1
    assert lines[0].startswith("not carried: script.py:") and words in lines[0], lines
