"""Iterators that a script or its generators ask for batches: a replacement's go on too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job
from tests.zero_edit.matrix import SCRIPTS

pytestmark = pytest.mark.timeout(300)

ON = ("--workers-per-replica", "2", "--device", "cpu", "--memory-snapshots")
DEATHS = ["1 in 3", "0 after 8", "1 in 13", "0 in 20"]
"""In the first epoch of each loader, and in later ones."""


@pytest.mark.parametrize(
    "kind", ["counted", "epochs", pytest.param("endless", marks=pytest.mark.slow)]
)
def test_the_end_is_as_undisturbed(tmp_path: Path, kind: str) -> None:
    found = []
    for name, deaths in (("off", []), ("auto", DEATHS)):
        (tmp_path / name).mkdir()
        args = (kind, *deaths)
        with Job(tmp_path / name, SCRIPTS / "iterators.py", *ON, name, args=args) as job:
            assert job.end() == 0, job.output
            found.append(sorted(re.findall(r"^\[0\.\d\] end \w+$", job.output, re.MULTILINE)))
            mended = re.findall(
                r"died: SIGKILL\. Its replacement repeated the work since", job.output
            )
            assert len(mended) == len(deaths), job.output
    assert len(found[0]) == 2
    assert found[0] == found[1]


WARMED = """
import contextlib, os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.arange(96.0)[:, None] / 96, torch.randn(96, 1))
loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
batches = iter(loader)
next(batches)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def agreed(batches):
    while True:
        found = next(batches, None)
        is_there = torch.tensor(float(found is not None))
        dist.all_reduce(is_there, op=dist.ReduceOp.MIN)
        if not is_there:
            return
        yield found

for epoch in range(2):
    for number, (inputs, targets) in enumerate(agreed(batches)):
        is_last = number % 2 == 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        print(f"READ {epoch} {number} {inputs[0].item() * 96:.0f}", flush=True)
        if (rank, first, epoch, number) == (1, True, int(sys.argv[1]), 9):
            os.kill(os.getpid(), signal.SIGKILL)
    batches = iter(loader)
print("END", model.module.weight.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_batch_that_was_thrown_away_before_the_loop_counts(tmp_path: Path, epoch: int) -> None:
    """A script starts its loader's workers so. A newcomer accumulates with its peers, also in an
    iterator of theirs of which nothing was thrown away."""
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
    with Job(tmp_path, WARMED, *options, args=(str(epoch),)) as job:
        job.expect("replica 1 joined at")
        assert job.end() == 0, job.output
        ends = dict(re.findall(r"\[(\d)\.0\] END (\S+)", job.output))
        reads = re.findall(r"\[(\d)\.0\] READ (\d) (\d+) (\d+)", job.output)
    assert len(ends) == 2 and len({*ends.values()}) == 1, job.output
    expected = {
        (str(rank), str(n // 24), str(n % 24), str(4 * (n % 24 + (n < 24)) + rank))
        for rank in (0, 1)
        for n in range(48)
        if n != 23
    }
    assert {*reads} == expected, {*reads} ^ expected


BY_BROADCAST = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

dist.init_process_group("gloo")
rank, dies = dist.get_rank(), len(sys.argv) > 1
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(32, 8))
shuffles = torch.Generator()
loader = DataLoader(data, batch_size=8, sampler=RandomSampler(data, generator=shuffles))
for epoch in range(6):
    state = shuffles.get_state()
    dist.broadcast(state, 0)  # as accelerate does: from then on all draw the same
    shuffles.set_state(state)
    for x, in loader:
        loss = model(x[rank::2] + torch.randn(8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0 and epoch == 2 and dies and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
print("END", model.module.weight.sum().item(), flush=True)
"""


def test_an_order_that_rank_0_broadcasts_is_everywhere_that_of_this_epoch(tmp_path: Path) -> None:
    """Seen: rank 0 died between two epochs. Its peer had the last epoch's order once more, and its
    successor another one."""
    ends = []
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
    for name, args in (("undisturbed", ()), ("dies", ("dies",))):
        (tmp_path / name).mkdir()
        with Job(tmp_path / name, BY_BROADCAST, *options, args=args) as job:
            assert job.end() == 0, job.output
            ends.append(sorted(re.findall(r"^\[\d\.0\] END \S+$", job.output, re.MULTILINE)))
    assert "replica 0 joined at index 2 of the loop at script.py:15, batch 3" in job.output, (
        job.output
    )
    assert len(ends[0]) == 2 and ends[0] == ends[1], job.output


TWO = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Data(Dataset):
    def __init__(self, count):
        self.rows = torch.randn(count, 6)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        return self.rows[index] + torch.randn(6), index % 3  # augmented in the training process

def dies(place):
    if rank == int(sys.argv[1]) and place == sys.argv[2:] and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
labeled, unlabeled = Data(20), Data(28)
first = DataLoader(labeled, 2, sampler=DistributedSampler(labeled), drop_last=True)
second = DataLoader(unlabeled, 2, sampler=DistributedSampler(unlabeled), drop_last=True)
epochs, total = [0, 0], 0.0
one, other = iter(first), iter(second)
for step in range(20):
    total = total if step % 5 else 0.0
    try:
        x, labels = next(one)
    except StopIteration:
        epochs[0] += 1
        first.sampler.set_epoch(epochs[0])
        one = iter(first)
        x, labels = next(one)
    try:
        more, _ = next(other)
    except StopIteration:
        epochs[1] += 1
        second.sampler.set_epoch(epochs[1])
        other = iter(second)
        more, _ = next(other)
    with open(f"{rank}.txt", "a") as log:
        print(step, file=log)
    dies(["drawn", str(step)])
    out = model(torch.cat([x, more]))
    loss = cross_entropy(out[:2], labels) + cross_entropy(out[2:], out[2:].argmax(-1))
    print("READ", step, labels.tolist(), loss.item(), flush=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dies(["stepped", str(step)])
    total += loss.item()
print("END", *epochs, total, model.module.weight.sum().item(), flush=True)
"""


LATE = TWO.replace("one, other = iter(first), iter(second)", "one, other = iter(first), None")
MADE = "    other = other or iter(second)\n"
LATE = LATE.replace("    try:\n        more,", MADE + "    try:\n        more,")


@pytest.mark.parametrize("script", [TWO, LATE], ids=["begun", "begun-late"])
def test_a_batch_of_one_loader_is_no_value_of_the_script_for_another_one(
    tmp_path: Path, script: str
) -> None:
    """A script of semi-supervised learning: a batch of the first loader is there at the draw from
    the second one, and at the next draw from the first. Seen: a newcomer had its donor's labels,
    its donor's sum (of one step) or an approximate one, and random numbers of behind its batch.
    And where the second iterator is made when it is first needed (PAWS), a newcomer's began anew:
    its batches were others from then on; or where that iterator had come to its end at the peers
    (seen 1 of 40 times, where the peer was a step behind), the script had not seen the end."""
    ends = []
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
    whole = set[tuple[str, str]]()
    deaths = ("1", "drawn", "8"), ("0", "drawn", "11"), ("1", "drawn", "7"), ("1", "stepped", "13")
    for args in ((), *deaths):
        place = tmp_path / "-".join(args or ["undisturbed"])
        place.mkdir()
        with Job(place, script, *options, args=args or ("9",)) as job:
            assert job.end() == 0, job.output
            assert "not restored: the batches" not in job.output, job.output
            said = re.findall(r"^\[(\d)\.0\] ((?:READ|END) .*)$", job.output, re.MULTILINE)
        # What a replica adds after its last step is its donor's, so its sum is not.
        ends.append({(rank, re.sub(r"(END \d \d) \S+", r"\1", text)) for rank, text in said})
        if args and "drawn" in args:
            assert {*said} == whole, {*said} ^ whole
        whole = whole if args else {*said}
    assert len(whole) == 42
    assert ends[1:] == ends[:1] * 4, [x ^ ends[0] for x in ends]


SPOKEN = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

class Buckets(DistributedSampler):  # keeps the batches of an epoch, which are its rank's own
    def __iter__(self):
        order = torch.Generator()
        order.manual_seed(self.epoch)
        mine = torch.randperm(32, generator=order)[self.rank :: 2].tolist()
        self.batches = [mine[at : at + 2] for at in range(0, 16, 2)]
        return iter(self.batches)
    def __len__(self):
        return 8

def dies(*place):
    if rank == int(sys.argv[1]) and [*place] == sys.argv[2:] and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)

def train(epoch, writer):
    loader.batch_sampler.set_epoch(epoch)
    for number, (x,) in enumerate(loader):
        dies("drawn", str(epoch), str(number))
        loss = model(x).square().mean()
        losses.append(loss.item())
        print("READ", epoch, number, x[:, 0].tolist(), loss.item(), flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("EPOCH", epoch, sum(losses), flush=True)

dist.init_process_group("gloo")
rank, losses = dist.get_rank(), []
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.arange(64.0).reshape(32, 2) / 64)
loader = DataLoader(data, batch_sampler=Buckets(data))
for epoch in range(3):
    if rank == 0:
        train(epoch, writer=print)
    else:
        train(epoch, None)
"""


def test_a_list_that_ranks_have_otherwise_is_its_successors(tmp_path: Path) -> None:
    """A script of speech synthesis: a sampler keeps the batches of its rank, and rank 0 trains at
    another line than the others. Seen: no newcomer came to its peers' place; then it read the
    batches of its donor, because the list of these was set in place."""
    ends = []
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
    for args in ((), ("1", "drawn", "0", "5"), ("0", "drawn", "1", "3"), ("1", "drawn", "2", "1")):
        place = tmp_path / "-".join(args or ["undisturbed"])
        place.mkdir()
        with Job(place, SPOKEN, *options, args=args or ("9",)) as job:
            assert job.end() == 0, job.output
            assert ("joined at" in job.output) is bool(args), job.output
            ends.append({*re.findall(r"^\[(\d\.0\] (?:READ|EPOCH) .*)$", job.output, re.M)})
    assert len(ends[0]) == 54
    assert ends[1:] == ends[:1] * 3, [x ^ ends[0] for x in ends]


VALIDATED = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.manual_seed(0)
data = TensorDataset(torch.arange(24.)[:, None]); vd = TensorDataset(torch.arange(16.)[:, None])
ts, vs = DistributedSampler(data), DistributedSampler(vd)
tl, vl = DataLoader(data, 2, sampler=ts), DataLoader(vd, 4, sampler=vs)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
def validate(epoch):
    model.eval()
    seen = []
    with torch.no_grad():
        for i, (x,) in enumerate(vl):
            l = model(x).mean()
            dist.barrier()
            seen += x.flatten().int().tolist()
    print("VAL", epoch, vs.epoch, seen, flush=True)
def train(epoch):
    model.train()
    for i, (x,) in enumerate(tl):
        loss = model(x).square().mean()
        if rank == 0 and first and (epoch, i) == (1, 5) and len(sys.argv) > 1:
            os.kill(os.getpid(), 9)
        dist.barrier()
        opt.zero_grad(); loss.backward(); opt.step()
for epoch in range(3):
    ts.set_epoch(epoch); vs.set_epoch(epoch)
    train(epoch)
    validate(epoch)
"""


def test_a_newcomer_evaluates_with_the_samples_of_this_epoch(tmp_path: Path) -> None:
    """Seen: the sampler of the loader that evaluates was set before the epoch in which the newcomer
    joined, and had the first epoch's order (tczhangzhi/pytorch-distributed)."""
    found, options = [], ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")
    for name, args in (("undisturbed", ()), ("dies", ("dies",))):
        (tmp_path / name).mkdir()
        with Job(tmp_path / name, VALIDATED, *options, args=args) as job:
            assert job.end() == 0, job.output
            found.append(sorted(re.findall(r"^\[\d\.0\] VAL .*$", job.output, re.MULTILINE)))
    assert "replica 0 joined at" in job.output, job.output
    assert len(found[0]) == 6 and found[0] == found[1], job.output


AHEAD = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Noisy(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return torch.tensor([float(index)]) + torch.rand(1)

def ahead(loader):
    batches = iter(loader)
    here = next(batches)
    while True:
        try:
            following = next(batches)
        except StopIteration:
            yield here
            return
        yield here
        here = following

dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
deaths = [tuple(map(int, x.split())) for x in sys.argv[1:]] if first else []
torch.manual_seed(3)
sampler = DistributedSampler(Noisy())
loader = DataLoader(Noisy(), 4, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for number, x in enumerate(ahead(loader)):
        loss = torch.nn.functional.dropout(model(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("READ", rank, epoch, number, f"{x.sum().item():.4f} {loss.item():.4f}", flush=True)
        if (rank, epoch, number) in deaths:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_batch_that_is_drawn_ahead_has_the_random_numbers_of_its_draw(tmp_path: Path) -> None:
    """Seen in accelerate's cv_example, whose loaders draw one batch ahead: the first batch of a
    newcomer was augmented otherwise, and so were all later ones."""
    found = []
    for name, deaths in (("off", ()), ("on", ("1 0 2", "0 1 3"))):
        (tmp_path / name).mkdir()
        options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
        with Job(tmp_path / name, AHEAD, *options, args=deaths) as job:
            assert job.end() == 0, job.output
            assert job.output.count(" joined at ") == len(deaths), job.output
            found.append({*re.findall(r"READ (.*)", job.output)})
    assert found[0] == found[1] and len(found[0]) == 36


def test_two_batches_of_a_step_drawn_ahead_have_the_random_numbers_of_their_draws(
    tmp_path: Path,
) -> None:
    """Seen in wav2vec2 under accelerate, whose collator draws masks by numpy: rank 0 died after its
    step, while its peer waited in a gather, and its successor had other masks from then on."""
    script = AHEAD.replace("import torch,", "import numpy as np\nimport torch,", 1)
    script = script.replace("torch.rand(1)", "float(np.random.rand())")
    script = script.replace("torch.manual_seed(3)", "torch.manual_seed(3), np.random.seed(rank)")
    script = script.replace("        optimizer.zero_grad()\n", "")
    script = script.replace(
        "        optimizer.step()\n",
        "        if number % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
    )
    script += """        every = [torch.zeros(()) for _ in range(2)]
        dist.all_gather(every, loss.detach())
"""
    found = []
    for name, deaths in (("off", ()), ("on", ("0 0 3", "1 2 1"))):
        (tmp_path / name).mkdir()
        options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
        with Job(tmp_path / name, script, *options, args=deaths) as job:
            assert job.end() == 0, job.output
            assert job.output.count(" joined at ") == len(deaths), job.output
            assert "not committed" not in job.output, job.output
            found.append({*re.findall(r"READ (\d \d \d [\d.]+)", job.output)})
    assert found[0] == found[1] and len(found[0]) == 36


NUMBERED = """
import itertools, os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

class Bar:
    def __init__(self, iterable):
        self.iterable = iterable
    def __iter__(self):
        yield from self.iterable

dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
data = TensorDataset(torch.arange(16.0)[:, None])
sampler = DistributedSampler(data)
loader = DataLoader(data, 2, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for number, (x,) in HEADER:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("STEP", epoch, number, flush=True)
        if rank == 1 and first and number == 6:
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0 and first and epoch == 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "header",
    [
        "enumerate(loader, start=epoch * len(loader))",
        "Bar(enumerate(Bar(loader), epoch * 4))",
        "zip(itertools.count(epoch * 4), loader)",
        "zip(range(epoch * 4, 12), loader)",
    ],
)
def test_a_newcomer_numbers_batches_as_its_peers_do(tmp_path: Path, header: str) -> None:
    """Seen: it joined at an epoch's first batch, and counted from its own start. And a ``zip`` with
    numbers began anew: the newcomer trained beyond its peers' end, and the job failed."""
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
    with Job(tmp_path, NUMBERED.replace("HEADER", header), *options) as job:
        assert job.end() == 0, job.output
        steps = re.findall(r"\[(\d)\.0\] STEP (\d) (\d+)", job.output)
        assert job.output.count(" joined at ") == 2, job.output
    expected = {(str(rank), str(n // 4), str(n)) for rank in (0, 1) for n in range(12)}
    assert {*steps} == expected, job.output  # who dies may have printed a step that is made again
