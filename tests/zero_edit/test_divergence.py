"""A newcomer that does not train as its peers do is found, and heals anew; on real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
