"""Workers of one group that die at chosen places of their calls: the end is equal to the bit."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import hashlib, json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

def arm(place, number):
    from ftrun.core.replay import pacing
    from ftrun.inject.zero_edit.world.replayed import ReplayedWorld as World
    from ftrun.snapshots.area import Area
    pacing.SHARE = 1e9  # a generation at each step
    def die():
        died = os.open("died", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(died, f"{rank} {place}\\n".encode())
        os.kill(os.getpid(), 9)
    begin, through, write = World.begin, World.is_through, Area.write
    def begins(world, shell, call):
        at = not world.is_apart and world.count == number
        if at and place == "before":
            die()
        begin(world, shell, call)
        if at and place == "issued":
            die()
    def is_through(world, call):
        if call.at == number and place == "has its result":
            die()
        through(world, call)
        if call.at == number and place == "logged":
            die()
    def writes(area, made, *args, **kwargs):
        if made == number and place == "in a copy":
            area.memory.fill = lambda *_: die()
        return write(area, made, *args, **kwargs)
    World.begin, World.is_through, Area.write = begins, is_through, writes

rank, kind, deaths = int(os.environ["RANK"]), sys.argv[1], json.loads(sys.argv[2])
started = f"started-{rank}"
os.write(os.open(started, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b"x")  # also of a newcomer
number = os.path.getsize(started)
if deaths:
    arm(*next((x[2:] for x in deaths if x[:2] == [rank, number]), ("", -1)))
dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.randn(30, 4, 8)
model = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 3))
if kind == "fsdp":
    fully_shard(model[0])
    fully_shard(model)
else:
    model = DistributedDataParallel(model, bucket_cap_mb=0.001)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
total, last = 0.0, torch.zeros(1)
for step in range(30):
    work = dist.all_reduce(last, async_op=True)  # in flight while the model runs
    loss = model(data[step]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    first = torch.full((1,), float(step))
    dist.broadcast(first, src=step % 3)
    work.wait()
    optimizer.step()
    total += last.item() + first.item()
    last = loss.detach().reshape(1).clone()
digest = hashlib.sha256(repr(total).encode())
for tensor in model.state_dict().values():
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    digest.update(local.contiguous().numpy().tobytes())
print(f"end {digest.hexdigest()[:16]}", flush=True)
"""
DEATHS = [
    (1, 1, "before", 60),
    (2, 1, "issued", 75),
    (2, 2, "logged", 70),  # in its replay: a call that its predecessor had logged
    (0, 1, "has its result", 90),
    (1, 2, "logged", 110),
    (0, 2, "in a copy", 20),
]


@pytest.mark.parametrize("kind", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_deaths_at_places_of_calls(tmp_path: Path, kind: str) -> None:
    options = ("--workers-per-replica", "3", "--device", "cpu")
    found = []
    planned = [
        (*who, place, number // 2 if kind == "ddp" and place != "in a copy" else number)
        for *who, place, number in DEATHS  # of DDP there are half as many calls in a step
    ]
    for name, deaths in (("off", []), ("auto", planned)):
        (tmp_path / name).mkdir()
        given = (*options, "--memory-snapshots", name)
        args = (kind, json.dumps(deaths))
        with Job(tmp_path / name, SCRIPT, *given, args=args) as job:
            assert job.end() == 0
            found.append(sorted(re.findall(r"^\[0\.\d\] end \w+$", job.output, re.MULTILINE)))
            text = job.output
    assert len(found[0]) == 3
    assert found[0] == found[1]
    died = Counter((tmp_path / "auto/died").read_text().splitlines())
    # A replacement that begins after a call that its predecessor has logged does not replay it.
    assert {f"{x[0]} {x[2]}" for x in DEATHS} - died.keys() <= {"2 logged"}
    starts = [(tmp_path / "auto" / f"started-{rank}").stat().st_size for rank in range(3)]
    assert sum(starts) == 3 + died.total(), "nobody is started but for one that has died"
    assert f" {died.total()} restarts" in text
    assert "cannot be replaced alone" not in text
