"""What a script trains with beside models, optimizers and variables: a replacement has it too."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import hashlib, os, random, sys
import numpy as np
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

rank, kind, deaths = int(os.environ["RANK"]), sys.argv[1], sys.argv[2:]

def at(place):
    if f"{rank} {place}" in deaths and not os.path.exists(f"died {place}"):
        open(f"died {place}", "w").close()
        os.kill(os.getpid(), 9)

class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.passes, self.heat, self.seen = 0, 1.0, []
        self.mean = torch.zeros(8)
        self.register_buffer("last", torch.zeros(8), persistent=False)
    def forward(self, x):
        self.passes += 1
        self.heat *= 0.98
        self.seen.append(self.passes)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)  # another tensor each time
        self.last.copy_(x.detach()[0])
        return x / self.heat + self.mean + self.last * self.passes / 99 + len(self.seen) / 99

class Total(nn.Module):  # without any tensor of its state, as a metric
    def __init__(self):
        super().__init__()
        self.sum, self.count = torch.tensor(0.0), 0
    def update(self, value):
        self.sum, self.count = self.sum + value.detach(), self.count + 1

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 8))
model = nn.Sequential(Annealed(), nn.Linear(8, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 3))
if kind == "fsdp":
    fully_shard(model[1])
    fully_shard(model)
    inner = model
else:
    inner, model = model, DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
total, rank_sum, on_device = Total(), 0.0, []
noise = np.random.default_rng(rank)
old = np.random.RandomState(rank)
more = torch.Generator().manual_seed(rank)
choice = random.Random(rank)
loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(rank))
step = 0
log, often = open(f"log-{rank}.csv", "w"), f"often-{rank}.txt"
log.write("step,loss\\n")
both = open("both.txt", "w+t")  # each writes the same at its own place
for epoch in range(4):
    if epoch == 1 and kind == "fsdp":
        inner[4].bias.requires_grad_(False)
    inner[3].p = 0.2 / (1 + epoch)
    for x, in loader:
        x = x + torch.from_numpy(noise.normal(size=8)).float() + torch.randn(8, generator=more)
        x = x + choice.random() + float(old.normal())
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        at(f"in {step}")
        optimizer.step()
        step += 1
        total.update(loss)
        rank_sum += loss.item()
        on_device.append(round(loss.item(), 6))
        log.write(f"{step},{loss.item():.6f}\\n")
        both.write(f"step {step}\\n")
        both.flush()
        for name in (often, "all.txt"):
            with open(name, "a") as file:
                file.write(f"{rank} {step}\\n")
        at(f"after {step}")
found = [total.sum.item(), total.count, rank_sum, on_device, inner[0].passes, inner[0].heat]
log.close()
both.close()
found += [inner[0].mean.tolist(), inner[0].last.tolist(), len(inner[0].seen), step]
digest = hashlib.sha256(repr(found).encode())
for tensor in model.state_dict().values():
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    digest.update(local.contiguous().numpy().tobytes())
print(f"end {digest.hexdigest()[:16]}", flush=True)
"""
FILES = [name for rank in (0, 1) for name in (f"log-{rank}.csv", f"often-{rank}.txt")]
FILES.append("both.txt")
ON = ("--workers-per-replica", "2", "--device", "cpu", "--memory-snapshots")
REPLICAS = ("--replicas", "2", "--device", "cpu", "--memory-snapshots")
MENDED = r"worker \d\.\d \(pid \d+\) died: SIGKILL\. Its replacement repeated the work since"


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param("fsdp", ON, id="fsdp"),
        pytest.param("ddp", ON, id="ddp", marks=pytest.mark.slow),
        pytest.param("ddp", REPLICAS, id="replicas"),
    ],
)
def test_it_ends_as_undisturbed(tmp_path: Path, kind: str, form: tuple[str, ...]) -> None:
    found = []
    for name, deaths in (("off", []), ("auto", ["1 in 5", "0 after 9", "1 in 14", "0 in 20"])):
        (tmp_path / name).mkdir()
        with Job(tmp_path / name, SCRIPT, *form, name, args=(kind, *deaths)) as job:
            assert job.end() == 0, job.output
            found.append(sorted(re.findall(r"^\[\d\.\d\] end \w+$", job.output, re.MULTILINE)))
            assert len(re.findall(MENDED, job.output)) == len(deaths), job.output
        files = {x: (tmp_path / name / x).read_text() for x in FILES}
        found[-1].append(files)
        of_all = (tmp_path / name / "all.txt").read_text().splitlines()
        assert set(of_all) == {f"{rank} {step}" for rank in (0, 1) for step in range(1, 25)}
    assert len(found[0]) == 3
    assert found[0] == found[1]


OTHER = """
import itertools, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.environ["COUNT"] = "0"  # no value of the script's

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def batches():
    for number in itertools.count():
        yield torch.full((2, 16), number / 40 + rank)

source = itertools.cycle(batches())
for step in range(12):
    os.environ["COUNT"] = str(int(os.environ["COUNT"]) + 1)
    x = next(source) if sys.argv[1] == "next" else torch.full((2, 16), step / 9)
    loss = model(x).square().mean() / 9 * (1 if sys.argv[1] == "next" else int(os.environ["COUNT"]))
    optimizer.zero_grad()
    loss.backward()
    if step == 6 and rank and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
    optimizer.step()
print(f"end {model.module.weight.sum().item():.9f}", flush=True)
"""


ADDS_UP = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(16):
    torch.manual_seed(step)
    model(torch.randn(4, 8)).square().mean().backward()
    if step in (0, 5, 11) and rank == step % 2 and not os.path.exists(f"died {step}"):
        open(f"died {step}", "w").close()
        while not os.path.exists("go"):  # until there is a whole snapshot
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    optimizer.step()  # and no gradient is dropped
print("end", [x.to_local().sum().item() for x in model.parameters()], flush=True)
"""


TAKES_TURNS = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    def forward(self, x, which):
        return self.parts[which](x)

model = DistributedDataParallel(Both(), find_unused_parameters=True)
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model.module.parts]
for step in range(16):
    torch.manual_seed(step + rank)
    for which, optimizer in enumerate(optimizers):
        loss = model(torch.randn(4, 8), which).square().mean()
        optimizer.zero_grad()  # and the other one's gradients are sent along
        loss.backward()
        if step in (0, 5, 11) and rank == step % 2 and not os.path.exists(f"died {step}"):
            while not os.path.exists("go"):  # until there is a whole snapshot
                time.sleep(0.01)
            if which:
                open(f"died {step}", "w").close()
                os.kill(os.getpid(), 9)
        optimizer.step()
print("end", [x.sum().item() for x in model.parameters()], flush=True)
"""


@pytest.mark.parametrize("script", [ADDS_UP, TAKES_TURNS], ids=["add up", "take turns"])
def test_gradients_that_are_kept_from_step_to_step(tmp_path: Path, script: str) -> None:
    found = []
    for name in ("off", "auto"):
        (tmp_path / name).mkdir()
        for step in (0, 5, 11) if name == "off" else ():
            (tmp_path / name / f"died {step}").touch()
        with Job(tmp_path / name, script, *ON, name) as job:
            if name == "auto":
                job.expect("Memory snapshots are kept on this node")
                (tmp_path / name / "go").touch()
            assert job.end() == 0, job.output
            found.append(sorted(re.findall(r"^\[0\.\d\] end .*$", job.output, re.MULTILINE)))
            assert len(re.findall(MENDED, job.output)) == (0 if name == "off" else 3), job.output
            assert "any more" not in job.output  # the first step's pass is the predecessor's
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_a_source_of_batches_that_cannot_be_followed_is_named(tmp_path: Path) -> None:
    """``itertools.cycle`` keeps what it has given, and a replacement's has given nothing."""
    found = []
    for name in ("off", "auto"):
        (tmp_path / name).mkdir()
        if name == "off":
            (tmp_path / name / "died").touch()
        with Job(tmp_path / name, OTHER, *ON, name, args=("next",)) as job:
            assert job.end() == 0, job.output
            found.append(set(re.findall(r"^\[0\.\d\] end (\S+)$", job.output, re.MULTILINE)))
            if name == "auto":
                why = "without the place of the generator source(cycle) of script.py:batches"
                assert f"{why} (the replacement's log" in job.output, job.output
    assert len(found[0]) == 1
    assert found[0] == found[1]


def test_other_values_in_a_repeated_step_are_named(tmp_path: Path) -> None:
    with Job(tmp_path, OTHER, *ON, "auto", args=("hidden",)) as job:
        assert job.end() == 0, job.output
        assert "computed other values than before" in job.output, job.output


def test_a_script_without_a_model_that_is_known_is_told_of(tmp_path: Path) -> None:
    script = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(20):
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
while not os.path.exists("over"):
    time.sleep(0.02)
"""
    with Job(tmp_path, script, *ON, "auto") as job:
        job.expect("No memory snapshots: the script trains without DistributedDataParallel")
        (tmp_path / "over").touch()
        assert job.end() == 0


def test_a_start_from_a_disk_that_cannot_be_followed_ends(tmp_path: Path) -> None:
    """Nobody has died, so no other worker's line tells, and nobody would end this one."""
    disk = ("--snapshot", "disk", "--snapshot-every", "1s")
    slow = OTHER.replace("    optimizer.step()", "    optimizer.step(); time.sleep(0.2)")
    slow = slow.replace("import itertools, os, sys", "import itertools, os, sys, time")
    slow = slow.replace("range(12)", "range(40)")
    (tmp_path / "died").touch()
    options = ("--workers-per-replica", "2", "--device", "cpu", *disk)
    with Job(tmp_path, slow, *options, args=("next",), session=True) as job:
        job.until(lambda: any((tmp_path / "disk").glob("step-*")), "a snapshot on the disk")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
    with Job(tmp_path, slow, *options, args=("next",)) as job:
        assert job.end() == 72, job.output  # before its first step
        assert "cannot resume from the snapshot on the disk" in job.output, job.output
        assert "--resume none" in job.output
