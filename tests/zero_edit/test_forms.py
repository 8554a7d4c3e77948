"""The form that a script turns out to have under ``ftrun --replicas N``, on real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

WORLD = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
"""
MODEL = """
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
"""
END = """
print("end", dist.get_rank(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""
SYNCED = f"""{WORLD}{MODEL}
from torch.nn.parallel import DistributedDataParallel
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SyncBatchNorm(4))
try:
    model = DistributedDataParallel(model)
except Exception as error:
    print("not DDP:", type(error).__name__, flush=True)
{END}"""
DDP_OF = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(model)\n"
SHARED = f"""{WORLD}{MODEL}{DDP_OF}
class Muon(torch.optim.SGD):  # each rank has the update, and the momentum, of its own parameters
    def step(self, closure=None):
        update = torch.zeros(sum(p.numel() for p in model.parameters()))
        own, at = dist.get_rank(), 0
        for number, parameter in enumerate(model.parameters()):
            if number % dist.get_world_size() == own:
                buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                buffer.add_(parameter.grad)
                update[at : at + parameter.numel()] = buffer.flatten()
            at += parameter.numel()
        found = torch.zeros(1)
        dist.all_reduce(found)  # of one number: nobody's share
        dist.all_reduce(update)
        torch.nn.utils.vector_to_parameters(
            torch.nn.utils.parameters_to_vector(model.parameters()).detach() - 0.1 * update,
            model.parameters(),
        )
optimizer = Muon(model.parameters(), lr=0.1)
for _ in range(5):
    step()
    optimizer.step()
{END}"""
HALVES = f"""{WORLD}{MODEL}{DDP_OF}
own = [*model.parameters()][dist.get_rank()]
optimizer = torch.optim.SGD([own], lr=0.1)
for _ in range(5):
    step()
    optimizer.step()
    for rank, parameter in enumerate(model.parameters()):
        dist.broadcast(parameter.data, rank)
{END}"""
THREADED = f"""{WORLD}{MODEL}{DDP_OF}
import queue, threading
from torch.utils.data import DataLoader
batches = queue.Queue(2)
def fill():
    for batch in DataLoader(torch.randn(40, 4), 4):
        batches.put(batch)
    batches.put(None)
threading.Thread(target=fill, daemon=True).start()
while (batch := batches.get()) is not None:
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
{END}"""
NO_TRAINING = f"""{WORLD}
value = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(value)
print("sum", value.item(), flush=True)
{END}"""
USES_FTRUN = """
model = torch.nn.Linear(4, 1)
manager = ftrun.manager(model.load_state_dict, model.state_dict)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))
network = ftrun.DistributedDataParallel(manager, model)
while manager.current_step() < 5:
    optimizer.zero_grad()
    network(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
print("explicit end: rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
"""
EXPLICIT = f"""
import ftrun, os, torch
ftrun.Manager
rank = os.environ["RANK"]
assert torch.save.__module__ == "torch.serialization"
assert "zero_edit" not in torch.nn.Module.__init__.__code__.co_filename
assert "zero_edit" not in torch.optim.Optimizer.__init__.__code__.co_filename
{USES_FTRUN}"""
LATE = f"""
import os, torch
rank = os.environ["RANK"]
import ftrun
{USES_FTRUN}"""
NAMED = f"""{WORLD}{MODEL}
import os
from ftrun import Manager
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(model)
for _ in range(5):
    step()
    optimizer.step()
{END}"""
LOOKS = f"""
import torchft as ft
import os
rank = os.environ["RANK"]
{WORLD}{MODEL}{DDP_OF}
for _ in range(5):
    step()
    optimizer.step()
{END}"""
USES_LATE = f"""
import torchft as ft
import os
rank = os.environ["RANK"]
ft.Manager
import ftrun, torch
{USES_FTRUN}"""
BROKEN = f"""{WORLD}
raise ValueError("mine")
"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (SHARED, r"script\.py:\d+: allreduce in a step of Muon: its ranks may share out the work"),
        (HALVES, r"SGD \(script\.py:\d+\) steps some parameters here, and others at other ranks"),
        (THREADED, r"script\.py:\d+: a thread of the script's draws the batches of this loader"),
    ],
    ids=["shared", "halves", "threaded"],
)
def test_a_script_that_cannot_be_carried_is_one_world(
    tmp_path: Path, script: str, reason: str
) -> None:
    """By what it does in its steps; by what it asks for: tests/undisturbed/programs/refused.py."""
    with Job(tmp_path, script, "--replicas", "2") as job:
        assert job.end() == 0
        assert re.search(reason, job.output), job.output
        assert job.output.count("ftrun restarts the job as torchrun would: as one world of 2") == 1
        ends = sorted(re.findall(r"\[0\.\d\] end (\d of \d)", job.output))
        assert ends == ["0 of 2", "1 of 2"]


def test_a_layer_that_cannot_be_carried_is_one_world_even_if_the_script_goes_on(
    tmp_path: Path,
) -> None:
    with Job(tmp_path, SYNCED, "--replicas", "2") as job:
        assert job.end() == 0
        assert re.search(r"script\.py:\d+: the layer 1 is a SyncBatchNorm", job.output)
        assert len(re.findall(r"\[0\.\d\] end \d of 2", job.output)) == 2


LACKS = "from torch.distributed import distributed_c10d\ndel distributed_c10d._object_to_tensor\n"
BREAKS = """
from ftrun.inject.zero_edit import counting, noting
def of_ftrun(text):
    exec(compile(text, noting.__file__, "exec"), noting.__dict__)
"""
IN_INSTALL = f"""{BREAKS}
of_ftrun("def install(): return 1 .no_such_name")
counting.install = noting.install
"""
IN_STEP = f"""{BREAKS}
of_ftrun("def place(*args): return {{}}[7]")
noting.Noting.place = noting.place
"""


@pytest.mark.parametrize(
    ("preload", "reason"),
    [
        (LACKS, r"torch \S+ has no \S+\._object_to_tensor, which ftrun needs"),
        (IN_INSTALL, r"ftrun itself failed \(AttributeError: .*in inject/"),
        (IN_STEP, r"ftrun itself failed \(KeyError: 7, in inject/"),
    ],
    ids=["lacks", "install", "step"],
)
def test_what_ftrun_itself_cannot_do_trains_as_one_world(
    tmp_path: Path, preload: str, reason: str
) -> None:
    (tmp_path / "beside").mkdir()  # a module where the job starts would have it start by exec
    (tmp_path / "beside" / "preloaded.py").write_text(preload)
    script = f"{WORLD}{MODEL}{DDP_OF}step()\noptimizer.step()\n{END}"
    with Job(tmp_path, script, "--replicas", "2", "--preload", "beside.preloaded") as job:
        assert job.end() == 0, job.output
        assert re.search(reason, job.output), job.output
        assert job.output.count("ftrun restarts the job as torchrun would: as one world of 2") == 1
        assert len(re.findall(r"\[0\.\d\] end \d of 2", job.output)) == 2


ASKED = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

def broken(*_):
    if is_broken:
        raise KeyError("mine")

class Sampler(DistributedSampler):
    def set_epoch(self, epoch):
        WHAT == "sampler" and broken()
        super().set_epoch(epoch)

class Optimizer(torch.optim.SGD):
    def load_state_dict(self, state):
        WHAT == "optimizer" and broken()
        super().load_state_dict(state)

class Scheduler(torch.optim.lr_scheduler.StepLR):
    def state_dict(self):
        WHAT == "scheduler" and broken()
        return super().state_dict()

dist.init_process_group("gloo")
rank, is_broken = dist.get_rank(), False
sampler = Sampler(range(40))
loader = DataLoader(range(40), 4, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = Optimizer(model.parameters(), lr=0.1)
scheduler = Scheduler(optimizer, 3)
steps = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    is_broken = True
    for batch in loader:
        optimizer.zero_grad()
        model(batch[:, None].float()).mean().backward()
        if rank and steps == 7 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        steps += 1
    is_broken = False
print("end", rank, "of", dist.get_world_size(), "after", steps, flush=True)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", ["sampler", "optimizer", "scheduler"])
def test_an_object_that_raises_when_ftrun_asks_it_ends_in_one_world(
    tmp_path: Path, what: str
) -> None:
    """Seen: a repository's sampler takes no epoch in the middle of one, and the replica that was to
    heal was given up."""
    script = ASKED.replace("WHAT", repr(what))
    with Job(tmp_path, script, "--replicas", "2", "--min-replicas", "2") as job:
        assert job.end() == 0, job.output
        assert re.search(r"script\.py:9: broken\(\) raised KeyError: 'mine', when", job.output)
        assert job.output.count("ftrun restarts the job as torchrun would: as one world of 2") == 1
        assert len(re.findall(r"\[0\.\d\] end \d of 2 after 15", job.output)) == 2


TRIED = """
from torch.distributed.optim import ZeroRedundancyOptimizer
try:
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
except Exception as error:
    print("caught:", error, flush=True)
"""


def test_under_ddp_a_refusal_is_the_scripts_error(tmp_path: Path) -> None:
    """One that it catches, and one that it does not: the first worker with that ends the job."""
    script = SYNCED.replace("except Exception", "except KeyError")
    script = script.replace(MODEL, MODEL + TRIED)
    with Job(tmp_path, script, "--replicas", "2", "--inject", "ddp", "--max-restarts", "0") as job:
        assert job.end() != 0
        assert "is a SyncBatchNorm" in job.output
        assert re.search(r"caught: script\.py:\d+: ZeroRedundancyOptimizer", job.output)
        assert "restarts the job" not in job.output


def test_collectives_without_training_are_one_world(tmp_path: Path) -> None:
    with Job(tmp_path, NO_TRAINING, "--replicas", "3") as job:
        assert job.end() == 0
        assert re.findall(r"sum (\S+)", job.output) == ["6.0"] * 3
        assert "restarts the job" not in job.output


def test_a_script_that_names_ftrun_finds_nothing_patched(tmp_path: Path) -> None:
    with Job(tmp_path, EXPLICIT, "--replicas", "2") as job:
        assert job.end() == 0
        assert job.output.count("explicit end: rank 0 of 1") == 2
        assert "restarts the job" not in job.output


def test_a_script_that_has_read_its_rank_before_begins_again(tmp_path: Path) -> None:
    with Job(tmp_path, LATE, "--replicas", "2") as job:
        assert job.end() == 0
        assert re.search(r"ftrun\.manager comes after the script has read RANK at script\.py:3",
                         job.output)  # fmt: skip
        assert job.output.count("explicit end: rank 0 of 1") == 2


def test_ddp_without_a_manager_is_taken_although_ftrun_is_named(tmp_path: Path) -> None:
    with Job(tmp_path, NAMED, "--replicas", "2") as job:
        assert job.end() == 0
        assert "all replicas as one world, as --inject ddp does" in job.output
        assert sorted(re.findall(r"end (\d of \d)", job.output)) == ["0 of 2", "1 of 2"]
        assert "trains without a Manager" not in job.output
        assert job.output.count("restarts the job") == 2  # it named ftrun too late, too


@pytest.mark.parametrize("workers", ["1", "2"])
def test_to_import_torchft_is_no_use_of_it(workers: str, tmp_path: Path) -> None:
    """Seen: torchtitan imports it if it is there, and trains without it."""
    with Job(tmp_path, LOOKS, "--replicas", "2", "-w", workers) as job:
        assert job.end() == 0
        assert "a replica that restarts will restore: DistributedDataParallel" in job.output
        assert len(re.findall(r"end \d of \d", job.output)) == 2 * int(workers)
        assert "restarts the job" not in job.output


def test_a_class_of_torchft_that_comes_late_begins_again(tmp_path: Path) -> None:
    with Job(tmp_path, USES_LATE, "--replicas", "2") as job:
        assert job.end() == 0
        assert "torchft comes after the script has read RANK at script.py:4" in job.output
        assert job.output.count("explicit end: rank 0 of 1") == 2


def test_an_error_of_the_script_is_its_own(tmp_path: Path) -> None:
    with Job(tmp_path, BROKEN, "--replicas", "2", "--max-restarts", "0") as job:
        assert job.end() == 1
        assert "ValueError: mine" in job.output
        assert "restarts the job" not in job.output
