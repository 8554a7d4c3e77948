"""After deaths replicas do not train apart: what one of them would lack is carried, or the job
becomes one world. Each script is of a kind that has ended with 0 and unlike parameters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

HEAD = """
import copy, hashlib, os, sys, threading
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, deaths = dist.get_rank(), sys.argv[1:]

def at(place):
    if f"{rank} {place}" in deaths and not os.path.exists(f"died {rank} {place}"):
        open(f"died {rank} {place}", "w").close()
        os.kill(os.getpid(), 9)

def end(*models):
    digest = hashlib.sha256()
    for model in models:
        for tensor in model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
    print(f"end {digest.hexdigest()[:16]}", flush=True)

torch.manual_seed(0)
x = torch.randn(72, 6)
data = TensorDataset(x, x @ torch.randn(6, 2))
sampler = DistributedSampler(data)
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
"""
BASES = """
class Basis:
    \"\"\"In which a gradient is kept small: found anew in each seventh step.\"\"\"

    def __init__(self, rank):
        self.rank, self.matrix, self.found, self.held = rank, None, 0, HELD

    def __call__(self, gradient, step):
        if step % 7 == 0:
            self.found += 1
            self.matrix = torch.linalg.svd(gradient, full_matrices=False).Vh[: self.rank]
        return (gradient @ self.matrix.T) @ self.matrix


class Projected(torch.optim.SGD):
    def step(self):
        for p in self.param_groups[0]["params"]:
            own = self.state[p]
            if p.dim() == 2:
                p.grad = own.setdefault("basis", Basis(2))(p.grad, own.setdefault("at", 0))
                own["at"] += 1
        super().step()

model, loader = DistributedDataParallel(net), DataLoader(data, 4, sampler=sampler)
optimizer = Projected(model.parameters(), lr=0.1, momentum=0.9)
step = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        at(f"in {step}")
        optimizer.step()
        step += 1
end(net)
"""
LOCAL = """
model, loader = DistributedDataParallel(net), DataLoader(data, 4, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    with model.no_sync():
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            at(f"in {step}")
            optimizer.step()
            step += 1
            dist.all_reduce(loss.detach())
            if step % 4 == 0:
                for p in model.parameters():
                    mean = p.data.clone()
                    dist.all_reduce(mean)
                    p.data = mean / 2
for p in model.parameters():
    dist.all_reduce(p.data)
end(net)
"""
AVERAGE = """
# Two batches for a step, and the last one of an epoch is dropped. An average follows each step.
class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model).eval()

    @torch.no_grad()
    def update(self, model):
        now = model.state_dict()
        for name, kept in self.model.state_dict().items():
            kept.copy_(0.9 * kept + 0.1 * now[name])

average, model = Average(net), DistributedDataParallel(net)
loader = DataLoader(data, 4, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        if i == 8:
            continue
        at(f"{epoch} {i}")
        loss = nn.functional.mse_loss(model(x), y)
        (loss / 2).backward()
        if i % 2:
            at(f"in {epoch} {i}")
            optimizer.step()
            optimizer.zero_grad()
            average.update(net)
    dist.barrier()
    if rank == 0:
        at(f"saving {epoch}")
        torch.save(average.model.state_dict(), "saved")
    found = average.model(x).square().mean().detach() * (1 - rank)
    dist.broadcast(found, 0)  # which only rank 0 can give: its peers wait for its successor here
end(net, average.model)
"""
ON = ("--replicas", "2", "--min-replicas", "2", "--device", "cpu")


def ends(directory: Path, script: str, deaths: tuple[str, ...]) -> tuple[list[str], str]:
    """What the ranks have come to, and all output."""
    directory.mkdir()
    with Job(directory, HEAD + script, *ON, args=deaths) as job:
        assert job.end() == 0, job.output
        found = sorted(re.findall(r"end (\w+)$", job.output, re.MULTILINE))
        assert len(found) == 2, job.output
        return found, job.output


ROWS = {
    "an object in an optimizer's state": (
        BASES.replace("HELD", "None"),
        ("1 in 5", "0 in 12", "1 in 20"),
        "",
    ),
    "one that cannot be given": (
        BASES.replace("HELD", "threading.Lock()"),
        ("1 in 5",),
        r"cannot restore basis of Projected \(a Basis\), and would step unlike its peers",
    ),
    "steps that nothing averages": (
        LOCAL,
        ("1 in 5",),
        r"script\.py:\d+: the optimizers step by gradients that nothing has averaged",
    ),
    "an average": (AVERAGE, ("0 saving 0",), ""),
    "a batch that no step uses": (
        AVERAGE.replace("dist.broadcast(found, 0)", "dist.all_reduce(found)"),
        ("0 saving 1",),
        "",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_deaths_change_nothing(tmp_path: Path, row: str) -> None:
    script, deaths, reason = ROWS[row]
    calm, output = ends(tmp_path / "calm", script, ())
    assert "restarts the job" not in output and len(set(calm)) == 1
    found, output = ends(tmp_path / "deaths", script, deaths)
    assert found == calm, output
    assert bool(reason) == ("one world" in output), output
    assert "which was its own" not in output and "not restored: the batches" not in output
    assert re.search(reason, output), output


def test_a_script_that_trains_the_module_in_its_ddp_is_one_world(tmp_path: Path) -> None:
    """Seen: a newcomer began at step 0, and both ended with 0 and other parameters."""
    found, output = ends(tmp_path / "deaths", LOCAL.replace("model(x)", "net(x)"), ("1 in 5",))
    assert len(set(found)) == 1 and "one world" in output, output
    assert re.search(r"script\.py:\d+: SGD steps parameters of a DistributedDat", output), output


def test_a_frozen_module_that_each_rank_has_made_by_its_own_seed_stays(tmp_path: Path) -> None:
    """Seen: a newcomer (MAR's) encoded its data by another rank's, and trained on other batches."""
    frozen = "torch.manual_seed(rank); encoder = nn.Linear(6, 6).requires_grad_(False)\n"
    script = frozen + LOCAL.replace("model.no_sync()", "torch.enable_grad()").replace(
        "model(x)", "model(encoder(x))"
    )
    calm, _ = ends(tmp_path / "calm", script, ())
    found, output = ends(tmp_path / "deaths", script, ("1 in 5", "0 in 9"))
    assert found == calm and "which was its own" not in output, output


def test_an_average_that_each_rank_has_begun_with_its_own_weights_stays(tmp_path: Path) -> None:
    """Seen: the average that rank 0 saves was that of another rank, without a word."""
    seeded = (
        f"torch.manual_seed(rank); net = copy.deepcopy(net)[:1].append(nn.Linear(12, 2))\n{AVERAGE}"
    )
    _, output = ends(tmp_path / "deaths", seeded, ("0 saving 0",))
    assert re.search(r"restored from its predecessor[^;]*Sequential \(script\.py:\d+\)", output), (
        output
    )
