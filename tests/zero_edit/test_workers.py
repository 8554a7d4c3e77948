"""Unmodified scripts under ``--replicas R --workers-per-replica W``: torchrun's result, healed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.jobs import THIS_TREE, Job, run

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
"""At a free port, because other tests run beside this one."""
pytestmark = pytest.mark.timeout(300)
SIZE = ("--replicas", "2", "--workers-per-replica", "2", "--device", "cpu")

MODELS = {
    "ddp": """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(model, bucket_cap_mb=0.0004)
""",
    "ddp unused": """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(model, find_unused_parameters=True)
""",
    "fsdp": """
from torch.distributed.fsdp import fully_shard
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
""",
    "fsdp loaded": """
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
whole = model.state_dict() if rank == 0 else {}
model.to("meta")
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, whole, options=options)
""",
    "hsdp": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
""",
}
BEGIN = """
import torch, torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
x = torch.randn(160, 6)
data = TensorDataset(x, x @ torch.randn(6, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
torch.manual_seed(3 + SEED * rank)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
"""
TRAIN = """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
computed = trained = 0
for epoch in range(4):
    sampler.set_epoch(epoch)
    for bx, by in loader:
        optimizer.zero_grad()
        y = model(bx)
        computed += 1
        nn.functional.mse_loss(y, by).backward()
        optimizer.step()
        trained += 1
mean = torch.tensor([float(trained)])
dist.all_reduce(mean)
print("end", rank, "of", world, "trained", trained, "computed", computed,
      "mean", mean.item() / world, flush=True)
whole = [getattr(p, "full_tensor", lambda p=p: p)().detach().flatten() for p in model.parameters()]
torch.save(torch.cat(whole), f"end-{rank}.pt")
dist.destroy_process_group()
"""


def source(kind: str, seed: int = 0) -> str:
    """A script; ``seed``: by how much the seeds of two ranks' models differ."""
    return f"SEED = {seed}\n{BEGIN}{MODELS[kind]}{TRAIN}"


def ends(directory: Path) -> list[torch.Tensor]:
    """What the four workers have come to."""
    return [torch.load(directory / f"end-{rank}.pt") for rank in range(4)]


RESULTS = [
    "ddp",
    "fsdp loaded",
    # Fast as well: survivors of FSDP2, and of a DDP with unused parameters, in test_survivors.py; a
    # mesh of two dimensions, below.
    pytest.param("fsdp", marks=pytest.mark.slow),
    pytest.param("ddp unused", marks=pytest.mark.slow),
    pytest.param("hsdp", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("kind", RESULTS)
def test_the_result_is_torchruns(tmp_path: Path, kind: str) -> None:
    seed = 1 if kind not in ("fsdp", "hsdp") else 0  # the others begin with the weights of rank 0
    alone = tmp_path / "torchrun"
    alone.mkdir()
    (alone / "script.py").write_text(source(kind, seed=seed))
    done = run(
        [*TORCHRUN, "--nproc-per-node", "4", "script.py"],
        cwd=alone,
        env={**os.environ, **THIS_TREE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,  # torch's own groups sometimes fail when they are destroyed, after the end
    )
    assert len(list(alone.glob("end-*.pt"))) == 4, done.stdout + done.stderr
    with Job(tmp_path, source(kind, seed=seed), *SIZE) as job:
        assert job.end() == 0, job.output
        assert len(re.findall(r"end \d of 4 trained 40 computed 40 mean 40.0", job.output)) == 4
        assert job.left() == []
    found, right = ends(tmp_path), ends(alone)[0]
    assert all(torch.equal(other, found[0]) for other in found), job.output
    torch.testing.assert_close(found[0], right)


CHECKPOINTS = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
for name in ("saved", "saved-async"):
    if Path(name, ".metadata").exists():
        parts = get_state_dict(model, optimizer)
        dcp.load({"model": parts[0], "optimizer": parts[1]}, checkpoint_id=name)
        set_state_dict(model, optimizer, model_state_dict=parts[0], optim_state_dict=parts[1])
        print("loaded", name, flush=True)
parts = get_state_dict(model, optimizer)
dcp.save({"model": parts[0], "optimizer": parts[1]}, checkpoint_id="saved")
dcp.async_save({"model": parts[0], "optimizer": parts[1]}, checkpoint_id="saved-async").result()
"""


@pytest.mark.parametrize(
    ("kind", "workers"), [("ddp", 1), pytest.param("ddp", 2, marks=pytest.mark.slow), ("fsdp", 2)]
)
def test_one_replica_writes_torchs_distributed_checkpoints(
    tmp_path: Path, kind: str, workers: int
) -> None:
    text = source(kind).replace("whole = [", f"{CHECKPOINTS}whole = [", 1)
    options = ("--replicas", "2", "--workers-per-replica", str(workers), "--device", "cpu")
    for again in (False, True):
        with Job(tmp_path, text, *options) as job:
            assert job.end() == 0, job.output
            assert "restarts the job" not in job.output, job.output
            for name in ("saved", "saved-async"):
                loads = len(re.findall(rf"loaded {name}$", job.output, re.MULTILINE))
                assert loads == again * 2 * workers, job.output
                files = sorted(path.name for path in (tmp_path / name).iterdir())
                assert files == [".metadata", *(f"__{rank}_0.distcp" for rank in range(workers))]
    # The second run has loaded after its training what the first had come to.
    found = [torch.load(tmp_path / f"end-{rank}.pt") for rank in range(2 * workers)]
    dcp_to_torch_save(tmp_path / "saved", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    flat = torch.cat([value.flatten() for value in whole["model"].values()])
    assert all(torch.equal(other, flat) for other in found), job.output


TWO_WAYS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
"""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            f"{TWO_WAYS}fully_shard(model, mesh=mesh['dp'])\n",
            "fully_shard over a mesh of 2 of 4 ranks in 1 dimensions",
        ),
        (
            f"{TWO_WAYS}nn.parallel.DistributedDataParallel(model, device_mesh=mesh['dp'])\n",
            "DistributedDataParallel over 2 ranks",
        ),
        (
            f"{TWO_WAYS}fully_shard(model[0])\n",
            "AdamW steps parameters that no fully_shard has, so nothing would average",
        ),
    ],
    ids=["mesh", "ddp", "part"],
)
def test_what_is_not_carried_runs_as_one_world(tmp_path: Path, model: str, words: str) -> None:
    with Job(tmp_path, f"SEED = 0\n{BEGIN}{model}{TRAIN}", *SIZE) as job:
        assert job.end() == 0, job.output
        assert words in job.output, job.output
        assert "unless a memory snapshot replaces the failed one" in job.output, job.output
        assert len(re.findall(r"end \d of 4 trained 40", job.output)) == 4, job.output


def test_a_group_across_replicas_is_a_group(tmp_path: Path) -> None:
    row = (
        "row = torch.ones(1)\n"
        "dist.all_reduce(row, group=mesh.get_group('replicate'))\n"
        "assert row.item() == 2\n"
    )
    text = source("hsdp").replace("optimizer =", f"{row}optimizer =", 1)
    with Job(tmp_path, text, *SIZE) as job:
        assert job.end() == 0, job.output
        assert "restarts the job" not in job.output, job.output
        assert len(re.findall(r"end \d of 4 trained 40", job.output)) == 4, job.output
        found = ends(tmp_path)
        assert all(torch.equal(other, found[0]) for other in found), job.output


def test_a_script_without_ddp_or_fsdp_runs_as_one_world(tmp_path: Path) -> None:
    with Job(tmp_path, f"SEED = 0\n{BEGIN}{TRAIN}", *SIZE) as job:
        assert job.end() == 0, job.output
        assert "makes neither torch's DistributedDataParallel nor" in job.output, job.output
        assert "one world of 4 workers" in job.output, job.output


def test_exactly_once_is_refused(tmp_path: Path) -> None:
    with Job(tmp_path, "", *SIZE, "--data", "exactly-once") as job:
        assert job.end() == 2
        assert "--data exactly-once with 2 workers per replica" in job.output


EXPLICIT = """
import os, torch, torch.distributed as dist
import ftrun
rank = os.environ["RANK"]
dist.init_process_group("gloo")
assert "zero_edit" not in torch.optim.Optimizer.__init__.__code__.co_filename
model = torch.nn.Linear(4, 1)
manager = ftrun.manager(model.load_state_dict, model.state_dict)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))
while manager.current_step() < 3:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).mean().backward()
    manager.allreduce(model.weight.grad).wait()
    optimizer.step()
print("explicit", rank, dist.get_rank(), "of", dist.get_world_size(), flush=True)
"""


def test_a_script_that_imports_ftrun_but_shards_without_a_manager_is_taken(tmp_path: Path) -> None:
    with Job(tmp_path, f"import ftrun\n{source('fsdp')}", *SIZE) as job:
        assert job.end() == 0, job.output
        assert "(or FSDP2) without a Manager" in job.output, job.output
        assert len(re.findall(r"end \d of 4 trained 40", job.output)) == 4, job.output


def test_a_script_that_has_imported_ftrun_is_explicit_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, EXPLICIT, *SIZE) as job:
        assert job.end() == 0, job.output
        assert "restarts the job" not in job.output, job.output
        assert len(re.findall(r"explicit (\d) \1 of 2", job.output)) == 4, job.output
