"""One group whose workers hold the same parameters: one of them whose memory is corrupted is found,
and all resume from the last step at which they were equal; on real processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, kind = dist.get_rank(), sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Linear(4, 2, bias=False)
if kind == "hsdp":
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
own = lambda x: x.to_local() if kind == "hsdp" else x
for step in range(1, 151):
    optimizer.zero_grad()
    model(torch.arange(4) / 4 + step % 8 + rank).sum().backward()
    optimizer.step()
    if kind == "apart":
        next(model.parameters()).data.add_(1e-3 * rank)
    (parameter,) = map(own, model.parameters())
    if rank == 1 and step == 60 and not os.path.exists("done"):
        open("done", "w").close()
        parameter.data.view(torch.int32)[0, 2] ^= 1 << 20
    time.sleep(0.02)
    while step == 150 and not os.path.exists("over"):
        time.sleep(0.02)
print("end", parameter.tolist(), flush=True)
dist.destroy_process_group()
"""


def options(workers: int, *more: str) -> tuple[str, ...]:
    return ("--workers-per-replica", str(workers), "--device", "cpu", *more)


@pytest.mark.parametrize(
    ("kind", "workers", "whose"),
    [
        ("ddp", 3, r"worker 0\.1 \(pid \d+\) is corrupted since"),
        ("hsdp", 4, r"worker 0\.3 \(pid \d+\) is corrupted, or worker 1, since"),
    ],
)
def test_all_resume_from_the_last_step_at_which_they_were_equal(
    tmp_path: Path, kind: str, workers: int, whose: str
) -> None:
    (tmp_path / "quiet").mkdir()
    for name in ("done", "over"):
        (tmp_path / "quiet" / name).touch()
    with Job(tmp_path / "quiet", SCRIPT, *options(workers), args=(kind,)) as job:
        assert job.end() == 0, job.output
        undisturbed = ends(job)
    with Job(tmp_path, SCRIPT, *options(workers), args=(kind,)) as job:
        job.expect(whose)
        (tmp_path / "over").touch()
        assert job.end() == 0, job.output
        assert ends(job) == undisturbed, job.output
        found = re.search(rf"{whose} a step after (\d+) and up to (\d+): ", job.output)
        resumed = re.search(r"all resumed from step (\d+), .* Restart 1 of 10\.", job.output)
        known = [json.loads(path.read_text()) for path in (job.logs / "job/incidents").iterdir()]
    assert found is not None and resumed is not None
    assert int(found[1]) == int(resumed[1]) <= 60 <= int(found[2])
    (incident,) = known
    assert incident["first_cause"]["kind"] == "silent corruption"
    assert f"since a step after {found[1]} " in incident["first_cause"]["cause"]


def test_or_the_job_ends(tmp_path: Path) -> None:
    stop = options(2, "--on-corruption", "stop")
    with Job(tmp_path, SCRIPT, *stop, args=("ddp",)) as job:
        assert job.end() == ExitCode.CORRUPTED, job.output
        assert re.search(r"The job ends: worker 0\.1 is corrupted, or worker 0, since a step after "
                         r"\d+ and up to \d+: .*; --on-corruption stop\.", job.output)  # fmt: skip


def test_a_script_whose_workers_train_apart_is_left_to_itself(tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    with Job(tmp_path, SCRIPT, *options(2), args=("apart",)) as job:
        job.expect(r"worker 0\.1 has other parameters than worker 0 at step \d+, and they were ne")
        (tmp_path / "over").touch()
        assert job.end() == 0, job.output
        assert "corrupted" not in job.output and "Restart" not in job.output


def test_without_mates_a_stated_reaction_is_said_to_have_no_effect(tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    script = SCRIPT.replace('(2, 2), mesh_dim_names=("copies", "shards")', "(2,)")
    stop = options(2, "--on-corruption", "report")
    with Job(tmp_path, script, *stop, args=("hsdp",)) as job:
        job.expect("--on-corruption has no effect: no two workers hold the same parameters")
        (tmp_path / "over").touch()
        assert job.end() == 0, job.output


def ends(job: Job) -> list[tuple[str, str]]:
    """What each worker has in the end."""
    return sorted(re.findall(r"^\[0\.(\d)\] end (.*)$", job.output, re.MULTILINE))
