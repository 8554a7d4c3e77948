"""What cannot be followed only while a rank is away. All replicas begin again together from a state
that is held outside the workers, and their models end as undisturbed ones do, to the bit; so do
random numbers and what a rank alone keeps, if each replica has its own state of that step. Without
memory snapshots those that train leave theirs first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import contextlib, glob, hashlib, os, sys, time
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

kind, dies = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
x = torch.randn(320, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
model = fully_shard(net) if kind == "shards" else nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)
step, own = 0, torch.zeros(16)


def fails():
    if dies == "later" and not glob.glob("snapshots/step-*"):
        time.sleep(0.05)
    elif dies != "never" and rank == world - 1 and not os.path.exists("died"):
        open("died", "w").close()
        if dies == "raises":
            raise ValueError("once")
        os.kill(os.getpid(), 9)


def between():
    if kind == "apart":
        dist.barrier()
    if kind == "broadcast" and step == 26:
        given = torch.full((2,), float(step) * (rank == world - 1))
        dist.broadcast(given, world - 1)
        assert given[0] == step
    if kind == "checkpoint" and step == 26:
        mesh = init_device_mesh("cpu", (world,))
        dcp.save({"x": distribute_tensor(torch.ones(8), mesh, [Shard(0)])}, checkpoint_id="saved")


class Swapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        swapped = torch.empty_like(given)
        dist.all_to_all_single(swapped, given)
        return swapped

    backward = forward


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


while step < STEPS:
    sampler.set_epoch(step)
    for a, b in loader:
        optimizer.zero_grad()
        if kind in ("swaps", "shards"):
            swapped = torch.empty_like(a)
            dist.all_to_all_single(swapped, a)
            a = swapped
        if kind == "within":  # the backward pass makes a call, too
            loss = nn.functional.mse_loss(model(Swapped.apply(a.requires_grad_())), b)
            if step >= 25:
                fails()
            loss.backward()
            optimizer.step()
            step += 1
            own += a.detach()[0] * torch.rand(16)
            continue
        with model.no_sync() if kind == "apart" else contextlib.nullcontext():
            nn.functional.mse_loss(model(a), b).backward()
        if step >= 25:
            fails()
        optimizer.step()
        step += 1
        own += a[0] * torch.rand(16)
        between()


def digest(*tensors):
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in tensors)).hexdigest()[:16]


found = digest(*map(whole, model.state_dict().values()))
print(f"end {rank} {step} {found} {digest(own)}", flush=True)
"""
TWO = "--replicas", "2", "-w", "2"
SNAPSHOTS = "--replicas", "2", "--snapshot", "snapshots", "--snapshot-every", "1s"


def ends(
    directory: Path, kind: str, dies: str, *options: str, steps: int = 60
) -> tuple[list[str], str]:
    """What each rank has come to, and all output."""
    directory.mkdir()
    script = SCRIPT.replace("STEPS", str(steps))
    with Job(directory, script, *options, "--device", "cpu", args=(kind, dies)) as job:
        assert job.end() == 0, job.output
        return sorted(re.findall(r"end (\d .+)$", job.output, re.MULTILINE)), job.output


ROWS = {
    "swaps": r"alltoall_base while a rank is away",
    "shards": r"alltoall_base while a rank is away",
    "broadcast": r"script\.py:\d+: a broadcast from rank 3 of the group, which is away",
    "checkpoint": r"script\.py:\d+: a checkpoint of tensors that are sharded over ranks",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=[] if x == "swaps" else [pytest.mark.slow]) for x in ROWS]
)
def test_all_begin_again_from_what_is_in_memory(tmp_path: Path, kind: str) -> None:
    """Seen: the job became one world, and began at step 0."""
    calm, output = ends(tmp_path / "calm", kind, "never", *TWO)
    assert len(calm) == 4, output
    found, output = ends(tmp_path / "dies", kind, "raises", *TWO)
    told = re.search(rf"{ROWS[kind]}.*All replicas restart together from step (\d+): ", output)
    assert told and 0 < int(told[1]) <= 26, output
    assert "one world" not in output and "while replica 0 was away" not in output, output
    assert [x.rpartition(" ")[0] for x in found] == [x.rpartition(" ")[0] for x in calm], output
    assert found == calm or "the others take it from there" in output, output


def test_what_they_leave_is_newer_than_the_disk(tmp_path: Path) -> None:
    """And snapshots go on after it."""
    found, output = ends(tmp_path / "dies", "swaps", "later", *SNAPSHOTS, steps=400)
    told = re.search(r"All replicas restart together from step (\d+): replica 0 has", output)
    assert told and int(told[1]) > 0 and "one world" not in output, output
    written = [int(x) for x in re.findall(r"wrote the snapshot of step (\d+)", output)]
    assert min(written) <= int(told[1]) < max(written), output
    assert len(found) == 2 and len({x.split()[2] for x in found}) == 1, output


def test_those_that_train_leave_their_state_where_nothing_else_holds_one(tmp_path: Path) -> None:
    """Seen: the job became one world, and began at step 0. It ends as an undisturbed one, to the
    bit, because the dead rank's gradients were in no step so far."""
    calm, output = ends(tmp_path / "calm", "within", "never", "--replicas", "4")
    assert len(calm) == 4, output
    found, output = ends(tmp_path / "dies", "within", "dies", "--replicas", "4")
    told = re.search(
        r"alltoall_base while a rank is away.*All replicas restart together from step 25: "
        r"replicas 0, 1 and 2 have the state in memory, and the others take that of replica 0\.",
        output,
    )
    assert told and "one world" not in output, output
    assert found[:3] == calm[:3], output
    assert found[3].rpartition(" ")[0] == calm[3].rpartition(" ")[0], output


OFF = (*TWO, "--memory-snapshots", "off")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dies", "options"),
    [
        ("swaps", "raises", ("--replicas", "2")),
        ("checkpoint", "dies", ("--replicas", "2")),  # between two steps
        ("checkpoint", "raises", OFF),
        ("broadcast", "dies", OFF),  # two workers wait for one that has found out
        ("shards", "dies", OFF),
    ],
)
def test_they_leave_it_wherever_they_stand(
    tmp_path: Path, kind: str, dies: str, options: tuple[str, ...]
) -> None:
    calm, _ = ends(tmp_path / "calm", kind, "never", *options)
    found, output = ends(tmp_path / "dies", kind, dies, *options)
    told = re.search(r"All replicas restart together from step (\d+): replica 0 has", output)
    assert told and 24 <= int(told[1]) <= 27 and "one world" not in output, output
    assert len({x.split()[2] for x in found}) == 1, output
    assert [x.split()[:2] for x in found] == [x.split()[:2] for x in calm], output
    assert found[0].split()[-1] == calm[0].split()[-1], output  # what the survivor keeps


def test_one_world_takes_no_snapshot_of_its_replicas(tmp_path: Path) -> None:
    """Seen: the job ended with exit code 2, because there was one."""
    found, output = ends(tmp_path / "dies", "apart", "later", *SNAPSHOTS, steps=400)
    assert "optimizers step by gradients that nothing has averaged" in output, output
    assert "snapshots: one world takes none of its replicas' snapshots, and writes none" in output
    assert {x[:5] for x in found} == {"0 400", "1 400"}, output


PASSES = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, 2, sampler=sampler)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for x, in loader:
        loss = (model(x + 1) - model(x)).square().mean()  # two passes, each with buffers
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    if [str(rank), str(epoch)] == sys.argv[1:] and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
    with torch.no_grad():
        for x, in loader:
            found = [torch.zeros(2, 4) for _ in range(2)]
            dist.all_gather(found, model(x))
            print("EVAL", epoch, torch.cat(found).sum().item(), flush=True)
print("END", net[0].weight.sum().item(), flush=True)
"""


def test_what_a_second_pass_broadcasts_is_no_result_of_the_scripts_own_call(tmp_path: Path) -> None:
    """Seen with RQ-VAE: a successor went through the last step again, without the broadcasts of
    buffers of its second pass. They were the results of its next gathers, and then it was ahead of
    its peers: Gloo ended both, one after the other."""
    ends = []
    options = ("--device", "cpu", "--replicas", "2", "--min-replicas", "2")  # the peer waits
    for args in ((), ("1", "1"), ("1", "2"), ("0", "2")):
        place = tmp_path / "-".join(args or ["undisturbed"])
        place.mkdir()
        with Job(place, PASSES, *options, args=args) as job:
            assert job.end() == 0, job.output
            assert job.output.count("died: SIG") == bool(args), job.output
            ends.append({*re.findall(r"^\[(\d\.0\] (?:EVAL|END) .*)$", job.output, re.MULTILINE)})
            is_told = "rank 0 is away. Its peers' buffers of the model" in job.output
            assert is_told == (args[:1] == ("0",)), job.output
    assert len(ends[0]) == 26
    assert ends[1:3] == ends[:1] * 2, [x ^ ends[0] for x in ends]
    late = {x for x in ends[3] ^ ends[0] if "EVAL 2" not in x}
    assert not late, late  # its evaluation has the peer's running averages, which was told
