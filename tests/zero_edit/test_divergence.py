"""A newcomer that does not train as its peers do is found, and heals again; on real processes."""

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
        ("parameters", "its parameters differ from those of replicas 0 and 2"),
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
    # The last three may be younger than the last comparison.
    every = ("--snapshot", str(kept), "--snapshot-every", "2s", "--snapshot-keep", "100")
    options = ("--replicas", "3", *every)
    with Job(tmp_path, CORRUPTED, *options) as job:
        assert job.end() == 0
        cause = (
            r"replica 1 (\(pid \d+\) )?is corrupted since a step after 100 and up to 200: its "
            "parameters differ from those of replicas 0 and 2"
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


ENDING = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, starts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
shape, what = sys.argv[1:]
model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
with torch.no_grad():
    model.module.weight.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
best = {"weight": torch.full((1, 4), 7.0)}

def train(step):
    optimizer.zero_grad()
    model(torch.arange(4) / 4 + step % 8).sum().backward()
    if what == "lost" and (rank, starts, step) == (1, 0, 139):
        from ftrun.training.manager import Manager
        plain, until = Manager.should_commit, time.monotonic() + 120.0
        def forgoes(manager):
            while not os.path.exists("0") or not os.path.exists("2"):  # else nobody commits it
                assert time.monotonic() < until
                time.sleep(0.01)
            return plain(manager, forgoes="it was interrupted")
        Manager.should_commit = forgoes
    optimizer.step()
    if what == "lost" and rank != 1 and step == 139:
        open(str(rank), "w").close()
    if what == "corrupt" and starts == 0 and rank == 1 and step == 130:
        model.module.weight.data.view(torch.int32)[0, 2] ^= 1 << 20

if shape == "range":
    for step in range(140):
        train(step)
elif shape == "loader":
    for step in torch.utils.data.DataLoader(range(140), batch_size=None):
        train(int(step))
elif shape == "while":
    step = 0
    while True:
        train(step)
        step += 1
        if step == 140:
            break
else:
    [train(step) for step in [*range(140)]]  # nobody follows a loop over a list that is made there
if what == "best" and rank == 0:
    model.module.weight.data.copy_(best["weight"])
print("end", model.module.weight.tolist(), flush=True)
dist.destroy_process_group()
"""
ENDED = (
    r"is corrupted since a step after 100 and up to 140: its parameters differ from those of "
    "replicas"
)


@pytest.mark.parametrize(("shape", "action"), [("range", "heal"), ("loader", "stop"),
                                               ("loader", "report")])  # fmt: skip
def test_corruption_after_the_last_comparison_is_found(
    tmp_path: Path, shape: str, action: str
) -> None:
    options = ("--replicas", "3", "--on-corruption", action)
    with Job(tmp_path, ENDING, *options, args=(shape, "corrupt")) as job:
        assert job.end() == (0 if action == "heal" else 78), job.output
        assert re.search(rf"[Rr]eplica 1 (\(pid \d+\) )?{ENDED}", job.output), job.output
        if action == "heal":
            ends = re.findall(r"\[(\d)\.0\] end (.+)", job.output)
            healed = [end for replica, end in ends if replica == "1"][-1]
            assert healed in [end for replica, end in ends if replica == "0"], job.output


@pytest.mark.parametrize("shape", ["range", "loader", "while"])
def test_what_rank_0_alone_loads_after_its_loop_is_no_corruption(
    tmp_path: Path, shape: str
) -> None:
    with Job(tmp_path, ENDING, "--replicas", "3", args=(shape, "best")) as job:
        assert job.end() == 0, job.output
        assert len(re.findall(r"\] end ", job.output)) == 3, job.output
        for words in ("corrupted", "other parameters", "diverged", "were not compared"):
            assert words not in job.output, job.output


def test_a_difference_after_a_loop_whose_end_shows_not_is_named(tmp_path: Path) -> None:
    with Job(tmp_path, ENDING, "--replicas", "3", args=("list", "best")) as job:
        assert job.end() == 0, job.output
        named = "Replica 0 has ended with other parameters than replicas 1 and 2. It is unknown"
        assert named in job.output and "is corrupted" not in job.output, job.output


@pytest.mark.parametrize("shape", ["range", "loader", "while"])
def test_one_that_has_lost_the_last_step_is_compared_as_it_has_healed(
    tmp_path: Path, shape: str
) -> None:
    """Seen, on a busy machine: its parameters of the step before were taken for those of the end,
    and it was replaced."""
    with Job(tmp_path, ENDING, "--replicas", "3", args=(shape, "lost")) as job:
        assert job.end() == 0, job.output
        assert re.search(r"Replica 1 healed from replicas? .*: step 140", job.output), job.output
        for words in ("corrupted", "other parameters", "diverged", "were not compared"):
            assert words not in job.output, job.output
        ends = re.findall(r"\] end (.+)", job.output)
        assert len(ends) == 3 and len(set(ends)) == 1, job.output
