"""A newcomer that does not train as its peers do is found, and heals anew; on real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ftrun.snapshots import directory, manifest
from tests.jobs import Job

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, starts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
for step in range(300):
    if starts == 1 and sys.argv[1] == "settings":
        optimizer.param_groups[0]["lr"] = 0.5
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if starts == 1 and sys.argv[1] == "parameters":
        model.module.weight.data.add_(1e-6)
    time.sleep(0.02)
    if starts == 0 and rank == 1 and step == 20:
        os.kill(os.getpid(), 9)
print("end", model.module.weight.sum().item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("settings", "its optimizer has SGD lr 0.5, that of replicas 0 and 2 SGD lr 0.1"),
        ("parameters", "its parameters are not those of replicas 0 and 2"),
    ],
)
def test_a_newcomer_that_diverges_heals_anew(tmp_path: Path, what: str, cause: str) -> None:
    with Job(tmp_path, SCRIPT, "--replicas", "3", args=(what,)) as job:
        assert job.end() == 0
        assert re.search(rf"replica 1 was given up: has diverged [a-z]+ step \d+: {cause}",
                         job.output), job.output  # fmt: skip
        ends = re.findall(r"\] end (\S+)", job.output)
        assert len(ends) == 3 and len(set(ends)) == 1, job.output


CORRUPTED = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, starts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
with torch.no_grad():
    model.module.weight.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
for step in range(500):
    optimizer.zero_grad()
    model(torch.arange(4) / 4 + step % 8).sum().backward()  # its gradient knows no weight
    optimizer.step()
    if starts == 0 and rank == 1 and step == 130:
        model.module.weight.data.view(torch.int32)[0, 2] ^= 1 << 20
    if starts == 0 and rank != 1:
        print("step", step, flush=True)
    time.sleep(0.02)
print("end", model.module.weight.tolist(), flush=True)
dist.destroy_process_group()
"""


def test_one_whose_memory_is_corrupted_heals_from_the_others(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ("--replicas", "3", "--snapshot", str(kept), "--snapshot-every", "2s")
    with Job(tmp_path, CORRUPTED, *options) as job:
        assert job.end() == 0
        cause = (
            r"replica 1 (\(pid \d+\) )?is corrupted since a step after 100 and up to 200: its "
            "parameters are not those of replicas 0 and 2 any more"
        )
        assert re.search(cause, job.output), job.output
        weights, steps = torch.zeros(4), list(map(str, range(500)))
        for step in range(500):
            weights -= 0.125 * (torch.arange(4) / 4 + step % 8)  # in steps that are exact
        assert re.findall(r"\] end (.+)", job.output) == [str([weights.tolist()])] * 3, job.output
        for replica in ("0", "2"):
            assert re.findall(rf"\[{replica}\.0\] step (\d+)", job.output) == steps
        agreed = [manifest.load(path).agreed for path in directory.snapshots(kept)]
        assert any(agreed), agreed
