"""What only a rank can give that is away: its peers wait for it between two steps, and it joins in
the middle of their wait. Nothing is begun again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import os, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
data, average, steps = torch.arange(128.0).reshape(32, 4) / 128, torch.zeros(5), 0
sampler = DistributedSampler(range(32))
loader = DataLoader(range(32), 4, sampler=sampler)

def given(number):
    BODY

for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        print("READ", rank, steps, batch.tolist(), flush=True)
        optimizer.zero_grad()
        model(data[batch]).square().mean().backward()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and (rank, steps) == (0, DEATH):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        steps += 1
        for parameter in model.parameters():  # it counts each step once
            average[-1] += parameter.numel()
        scheduler.step()
        if steps % 4 == 2:
            found = given(steps)
            total = torch.ones(1)
            dist.all_reduce(total)
            print("READ", rank, "given", steps, found, total.item(), flush=True)
            scheduler.step()
print("READ", rank, "END", average, scheduler.last_epoch, [*model.parameters()], flush=True)
"""
KINDS = {
    "objects": """found = [number if rank == 0 else None]
    dist.broadcast_object_list(found, 0)
    return found[0]""",
    "tensor": """found = torch.tensor([number if rank == 0 else 0])
    dist.broadcast(found, 0)
    return found.item()""",
    "scatter": """found = torch.zeros(1)
    dist.scatter(found, [torch.full((1,), 1.0 * number)] * world if rank == 0 else None, 0)
    return int(found.item())""",
    "a file": """if rank == 0:
        os.makedirs(f"made-{number}")
    while not os.path.exists(f"made-{number}"):
        time.sleep(0.01)
    return number""",
}


@pytest.mark.parametrize(
    ("kind", "least"),
    [("objects", 1), ("objects", 2), ("tensor", 2), ("scatter", 1), ("a file", 1), ("a file", 2)],
)
@pytest.mark.timeout(120)
def test_a_root_that_is_away_joins_where_its_peers_wait_for_it(
    tmp_path: Path, kind: str, least: int
) -> None:
    """Its peers train without it (``least`` 1), or are in no quorum before it is back.

    Seen: mmengine and YOLOv5 broadcast in each epoch, and isc-demos waits for a directory that
    rank 0 makes. Without it the job began again as one world, or stood still."""
    ends = []
    for death in (None, 1):
        (here := tmp_path / str(death)).mkdir()
        script = SCRIPT.replace("BODY", KINDS[kind]).replace("DEATH", repr(death))
        with Job(here, script, "--replicas", "2", "--min-replicas", str(least)) as job:
            assert job.end() == 0, job.output
            assert job.output.count("healed from replica") == (death is not None), job.output
            assert "restarts the job" not in job.output
            read = [x.partition("READ ")[2] for x in job.output.splitlines() if "READ " in x]
        ends.append({tuple(x.split()[:3]): x.partition("[Param")[0] for x in read})
        assert len({x.partition("[Param")[2] for x in read if "END" in x}) == 1
    assert ends[0] == ends[1]
