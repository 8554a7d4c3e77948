"""A script that makes a process group in the middle of its training, when it first needs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import os, pathlib, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HERE, MAKES = pathlib.Path(__file__).parent, 8
DIES = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank, late = dist.get_rank(), None
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.arange(16.0), 1)
for step, batch in enumerate(loader):
    optimizer.zero_grad()
    model(batch.expand(2, 4) + rank).square().mean().backward()
    if (rank, step) == DIES and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    if step >= MAKES:
        late = late or dist.new_group()
        total = torch.tensor([rank + 1.0])
        dist.broadcast(total, 0, group=late)
        assert total.item() == 1, total
print(f"END {rank} of {dist.get_world_size()}", flush=True)
"""


@pytest.mark.parametrize(
    ("rank", "step", "begins_again"),
    [(1, 4, False), (1, 11, True), (0, 8, True)],
    ids=["before", "after", "as its peer makes it"],
)
def test_one_that_has_come_again_is_in_a_group_that_is_made_later(
    rank: int, step: int, begins_again: bool, tmp_path: Path
) -> None:
    """Seen: its peers and it met under two names, or they waited for the one that was dead, for
    half an hour and without a word."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = "--replicas", "2", "--min-replicas", "2" if rank == 1 else "1"
    with Job(tmp_path, script, *options, args=(str(rank), str(step))) as job:
        code, output = job.end(), job.output
    assert code == 0, output
    assert "END 0 of 2" in output and "END 1 of 2" in output, output
    why = (
        "its peers have made before it joined",
        "while a rank was away that has joined now",
        "that has not made a process group which its peers made in training",
    )
    assert any(x in output for x in why) <= begins_again, output
