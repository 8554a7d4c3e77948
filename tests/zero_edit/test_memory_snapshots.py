"""One group without replicas: a worker that is killed costs no step, and changes no bit."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from ftrun.core.replay.falls import Fall
from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if os.environ.get("OVER_NCCL"):
    from tests.zero_edit.scripts.over import nccl
    nccl()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 3, (256,)))
model = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 3))
if sys.argv[1] == "fsdp":
    fully_shard(model[0])
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler)
torch.manual_seed(100 + rank)
total, steps = 0.0, 0
local = lambda x: x.to_local() if hasattr(x, "to_local") else x
average = [local(x).clone() for x in model.parameters()]  # results of autograd
for epoch in range(6):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mean, x in zip(average, model.parameters()):
                mean.lerp_(local(x), 0.1)
        total += loss.item()
        steps += 1
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        print(f"step {steps}: {mean.item():.6f}", flush=True)
        time.sleep(0.02)
        while steps == 60 and not os.path.exists("over"):
            time.sleep(0.02)
digest = hashlib.sha256(repr((total, steps)).encode())
for tensor in [*model.state_dict().values(), *average]:
    digest.update(local(tensor).detach().contiguous().numpy().tobytes())
print(f"end {digest.hexdigest()[:16]}", flush=True)
"""
OPTIONS = ("--workers-per-replica", "3", "--device", "cpu")


SLOW = [
    pytest.param(*x, marks=pytest.mark.slow)
    for x in (("ddp", ""), ("ddp", "both"), ("fsdp", "both"))
]


@pytest.mark.parametrize(("kind", "over_nccl"), [("fsdp", ""), ("fsdp", "device"), *SLOW])
def test_killed_workers_cost_no_step_and_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, over_nccl: str
) -> None:
    """``over_nccl``: over a double that behaves as NCCL; "both": and over Gloo."""
    if over_nccl:
        monkeypatch.setenv("OVER_NCCL", over_nccl)
    (tmp_path / "quiet").mkdir()
    (tmp_path / "killed").mkdir()
    (tmp_path / "quiet/over").touch()
    off = (*OPTIONS, "--memory-snapshots", "off")
    with Job(tmp_path / "quiet", SCRIPT, *off, args=(kind,)) as job:
        assert job.end() == 0
        undisturbed = ends(job)
    with Job(tmp_path / "killed", SCRIPT, *OPTIONS, args=(kind,)) as job:
        job.expect(r"Memory snapshots are kept on this node \(.+ a worker so far")
        survivor = job.worker(0, 0)
        kill(job, 1)
        job.expect(
            r"worker 0\.1 \(pid \d+\) died: SIGKILL\. Its replacement repeated the work since"
        )
        kill(job, 1, 2)  # two at once, one of them a replacement
        job.expect(
            r"worker 0\.2 \(pid \d+\) died: SIGKILL\. Its replacement repeated the work since"
        )
        assert job.worker(0, 0) == survivor
        kill(job, 0)
        job.expect(
            r"worker 0\.0 .* All continued after \S+ s, and no step was lost\. Restart \d of 10\."
        )
        (tmp_path / "killed/over").touch()
        assert job.end() == 0
        assert ends(job) == undisturbed
        assert not job.left()
        steps = re.findall(r"^\[0\.2\] step (\d+): ", job.output, re.MULTILINE)
    assert len(set(steps)) == 66
    known = [json.loads(path.read_text()) for path in (job.logs / "job/incidents").iterdir()]
    assert len(known) == 4
    assert {x["verdict"] for x in known} == {"restarted"}
    assert {x["cost"]["steps"] for x in known} == {0}


APART = """
import os, sys
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
if rank < 2:
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("pair"),
                            world_size=2, rank=rank)
    total = torch.ones(1)
    dist.all_reduce(total)
    print("pair", int(total), flush=True)
    dist.destroy_process_group()
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("all", int(total), flush=True)
dist.destroy_process_group()
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
print("waited", flush=True)
if rank == 1:
    os._exit(0)
"""


def test_workers_that_go_their_own_ways_are_left_to_them(tmp_path: Path) -> None:
    """Some make a world of their own, each forks a process, and one leaves without a word."""
    with Job(tmp_path, APART, *OPTIONS) as job:
        assert job.end() == 0, job.output
        found = sorted(
            re.findall(r"^\[0\.(\d)\] (pair|all|waited) ?(\d*)$", job.output, re.MULTILINE)
        )
    assert found == [
        ("0", "all", "3"), ("0", "pair", "2"), ("0", "waited", ""),
        ("1", "all", "3"), ("1", "pair", "2"), ("1", "waited", ""),
        ("2", "all", "3"), ("2", "waited", ""),
    ]  # fmt: skip


def kill(job: Job, *ranks: int) -> None:
    for pid in [job.worker(0, rank) for rank in ranks]:
        os.kill(pid, signal.SIGKILL)


def ends(job: Job) -> list[str]:
    """What each worker has at the end, by rank."""
    found = re.findall(r"^\[0\.(\d)\] end (\w+)$", job.output, re.MULTILINE)
    assert len(found) == 3, job.output
    return sorted(found)


SPARSE = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
network = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 1))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.arange(96).view(32, 3) % 50), 4):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
print("end", sum(x.sum().item() for x in model.parameters()), flush=True)
"""


def test_sparse_gradients_are_averaged_without_memory_snapshots(tmp_path: Path) -> None:
    (tmp_path / "off").mkdir()
    with Job(tmp_path / "off", SPARSE, *OPTIONS, "--memory-snapshots", "off") as job:
        assert job.end() == 0, job.output
        plain = job.expect(r"end (\S+)", 2)
    with Job(tmp_path, SPARSE, *OPTIONS) as job:
        assert job.end() == 0, job.output
        assert job.expect(r"end (\S+)", 2) == plain
        job.expect("No memory snapshots: .* with sparse tensors")


LAST = """
import os, signal
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    if step == 20 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_without_a_restart_left_the_others_end_as_under_torchrun(tmp_path: Path) -> None:
    """They wait in a backward pass, for a result that never comes."""
    options = ("--nproc-per-node", "2", "--memory-snapshots", "auto", "--device", "cpu")
    with Job(tmp_path, LAST, *options) as job:
        assert job.end() == 128 + signal.SIGKILL, job.output
        assert re.search(r"died: SIGKILL\. It could have resumed from step \d+\. ", job.output)
        its = re.search(r"worker 0 of the same group: (.*)", job.output)
        assert its is not None and ("exit code 143" in its[1] or "RuntimeError" in its[1])


FRAMEWORK = """
import sys, types
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
kind = sys.argv[1]
model = DistributedDataParallel(nn.Linear(4, 4))
if kind == "DeepSpeed":
    from deepspeed.runtime.engine import DeepSpeedEngine
    DeepSpeedEngine(model)
elif kind == "Megatron":
    from megatron.core.parallel_state import initialize_model_parallel
    initialize_model_parallel(1)
else:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    stage = PipelineStage(nn.Linear(4, 4), dist.get_rank(), 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda x, y: (x - y).square().mean())
    for _ in range(4):
        given = (torch.ones(4, 4),) if dist.get_rank() == 0 else ()
        schedule.step(*given, target=torch.zeros(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("end", flush=True)
"""
PACKAGES = {
    "deepspeed/runtime/engine.py": "class DeepSpeedEngine:\n    def __init__(self, model): pass\n",
    "megatron/core/parallel_state.py": "def initialize_model_parallel(size): pass\n",
}
"""As those packages have them."""


@pytest.mark.parametrize(
    ("kind", "fall"),
    [("DeepSpeed", Fall.DEEPSPEED), ("Megatron", Fall.MEGATRON), ("pipeline", Fall.PIPELINE)],
)
def test_a_framework_that_cannot_be_followed_is_named_and_trains(
    tmp_path: Path, kind: str, fall: Fall
) -> None:
    for name, text in PACKAGES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        for parent in (path.parent, path.parent.parent):
            (parent / "__init__.py").touch()
    options = ("--workers-per-replica", "2", "--device", "cpu")
    with Job(tmp_path, FRAMEWORK, *options, args=(kind,)) as job:
        assert job.end() == 0, job.output
        assert len(re.findall(r"\] end$", job.output, re.MULTILINE)) == 2, job.output
        assert f"No memory snapshots: {fall.words}. A death restarts" in job.output, job.output
