"""Workers of one group, without replicas, that die at the worst moments: each end is equal."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import LIGHTHOUSE, Job, ask

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import atexit, hashlib, json, os, sys, time
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

rank, deaths, hold = int(os.environ["RANK"]), json.loads(sys.argv[1]), int(sys.argv[2])
is_sharded = "whole" not in sys.argv

def at(place):
    if [rank, place] in deaths:
        try:
            os.close(os.open(f"died {place}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if "raises" in place:
            raise RuntimeError(place)
        os.kill(os.getpid(), 19 if "stops" in place else 9)

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

def here(tensor):
    return tensor.to_local() if is_sharded else tensor

class Data(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):  # in a worker of the loader, which draws the noise
        at(f"loader {index}")
        return torch.full((8,), index / 48) + torch.randn(8) / 9

at("start")
atexit.register(at, "at exit")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 3))
if is_sharded:
    fully_shard(model[0])
    fully_shard(model)
weights = dict(model.named_parameters())
average = {name: one.detach().clone() for name, one in weights.items()}
if not is_sharded:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
data = Data()
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
torch.manual_seed(100 + rank)
total, step = 0.0, 0
at("before the first step")
for epoch in range(6):
    sampler.set_epoch(epoch)
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        at(f"before the optimizer of {step}")
        at(f"raises in {step}")
        at(f"stops in {step}")
        optimizer.step()
        scheduler.step()
        step += 1
        total += loss.item()
        for name, one in weights.items():
            average[name].data.mul_(0.9).add_(one.data, alpha=0.1)
        if step % 8 == 0:
            text = repr((total, [here(x).tolist() for x in model.parameters()]))
            with open(f"checkpoint-{rank}.txt", "w") as file:
                file.write(text[:99])
                file.flush()
                at(f"saving {step}")
                file.write(text[99:])
            dcp.save({"model": model.state_dict()}, checkpoint_id=f"checkpoint-{step}")
        if step == hold:
            print("holds", flush=True)
            wait_for("over")
        at(f"after {step}")
    trained = {name: one.detach().clone() for name, one in weights.items()}
    for name, one in weights.items():
        one.data.copy_(average[name])
    at(f"exchanged {epoch}")
    with torch.no_grad():
        total += model.eval()(torch.ones(2, 8)).sum().item()
    for part in model.train().modules():
        if hasattr(part, "reshard"):
            part.reshard()
    for name, one in weights.items():
        one.data.copy_(trained[name])
at("after the last step")
digest = hashlib.sha256(repr((total, step)).encode())
for tensor in [*model.state_dict().values(), *average.values()]:
    digest.update(here(tensor).contiguous().numpy().tobytes())
text = open(f"checkpoint-{rank}.txt").read()
digest.update(text.encode())
print(f"end {digest.hexdigest()[:16]}", flush=True)
if hold > 24 and rank != 2:
    wait_for("over")
"""
OPTIONS = ("--workers-per-replica", "3", "--device", "cpu")
OFF = (*OPTIONS, "--memory-snapshots", "off")
MENDED = r"worker 0\.%s \(pid \d+\) died: SIGKILL\. Its replacement repeated the work since"
DEATHS = [
    (2, "start"),
    (1, "before the first step"),
    (2, "before the optimizer of 3"),
    (1, "saving 8"),
    (0, "saving 16"),
    (0, "before the optimizer of 23"),
    (2, "exchanged 1"),
    (1, "exchanged 5"),
    (2, "after the last step"),
    (0, "at exit"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The end of a run without memory snapshots in which nobody dies."""
    return undisturbed_end(tmp_path_factory.mktemp("undisturbed"), "sharded")


def undisturbed_end(directory: Path, kind: str) -> dict[str, str]:
    with Job(directory, SCRIPT, *OFF, args=("[]", "0", kind)) as job:
        assert job.end() == 0
        return ends(job)


def ends(job: Job) -> dict[str, str]:
    """By rank. A worker that dies after it has told it, tells it again."""
    found = set(re.findall(r"^\[0\.(\d)\] end (\w+)$", job.output, re.MULTILINE))
    assert len(found) == 3, job.output
    return dict(found)


def status(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(directory, "status", "--json").stdout)
    return found


def kill(job: Job, *ranks: int) -> None:
    for pid in [job.worker(0, rank) for rank in ranks]:
        os.kill(pid, signal.SIGKILL)


def test_at_the_start_in_a_save_in_the_last_step_and_after_it(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    die_at_the_worst_moments(tmp_path, undisturbed, "sharded")


@pytest.mark.slow
def test_the_same_with_a_distributed_data_parallel(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    undisturbed = undisturbed_end(tmp_path_factory.mktemp("undisturbed"), "whole")
    die_at_the_worst_moments(tmp_path, undisturbed, "whole")


def die_at_the_worst_moments(tmp_path: Path, undisturbed: dict[str, str], kind: str) -> None:
    with Job(tmp_path, SCRIPT, *OPTIONS, args=(json.dumps(DEATHS), "0", kind)) as job:
        assert job.end() == 0
        assert ends(job) == undisturbed
        died = {path.name.partition(" ")[2] for path in tmp_path.glob("died *")}
        assert died == {place for _, place in DEATHS}
        # Nobody has a snapshot before the first step: then all begin again. At "start" perhaps
        # nobody has a process group yet either, so there is no word about a worker alone.
        assert job.output.count("cannot be replaced alone") in (1, 2), job.output
        assert job.output.count("from memory. All continued after") == len(DEATHS) - 2, job.output
        assert "all resumed from step" not in job.output, job.output
        # Two that die while one mend lasts count as one restart.
        restarts = re.search(r"replica 0: finished, 24 steps, (\d+) restarts", job.output)
        assert restarts is not None and len(DEATHS) // 2 < int(restarts[1]) <= len(DEATHS)


def test_the_lighthouse_dies_with_a_worker_and_a_script_raises(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    raises = json.dumps([(2, "raises in 5"), (0, "raises in 15")])
    with Job(tmp_path, SCRIPT, *OPTIONS, args=(raises, "12")) as job:
        job.expect(
            r"worker 0\.2 \(pid \d+\) failed: RuntimeError.* Its replacement repeated the work"
        )
        job.expect(r"^\[0\.\d\] holds", count=3)
        lighthouse = job.expect_process(LIGHTHOUSE)
        job.until(lambda: status(tmp_path)["step"] == 12, "the step in the status")
        recovery = status(tmp_path)["recovery"]
        os.kill(lighthouse, signal.SIGKILL)
        kill(job, 1)
        job.expect(MENDED % 1)
        job.expect("The lighthouse is back")
        (tmp_path / "over").touch()
        assert job.end() == 0
        assert ends(job) == undisturbed
        assert job.output.count("no step was lost") == 3, job.output
    assert recovery["worker"]["steps"] == 0
    assert [recovery[x]["from_step"] for x in ("node", "job")] == [0, 0]
    assert [recovery[x]["steps"] for x in ("node", "job")] == [12, 12]


@pytest.mark.slow
def test_the_same_error_twice_ends_the_job(tmp_path: Path) -> None:
    script = SCRIPT.replace('at(f"raises in {step}")', "assert step < 5 or rank != 1, step")
    with Job(tmp_path, script, *OPTIONS, args=("[]", "0")) as job:
        assert job.end() == 73
        assert "restarting will not help" in job.output


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_asked_to_stop_while_a_worker_is_replaced(tmp_path: Path, number: signal.Signals) -> None:
    with Job(tmp_path, SCRIPT, *OPTIONS, args=("[]", "12"), session=True) as job:
        job.expect(r"^\[0\.\d\] holds", count=3)
        (tmp_path / "over").touch()
        kill(job, 1)
        job.signal(number)
        assert job.end() == (130 if number is signal.SIGINT else 75)
        assert "Error" not in job.output, job.output
        assert not job.left()


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_replaced(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    script = SCRIPT.replace('        at(f"stops', '        time.sleep(0.5)\n        at(f"stops')
    stops = json.dumps([(2, "stops in 20")])
    with Job(tmp_path, script, *OPTIONS, "--hang-factor", "5", args=(stops, "0")) as job:
        assert job.end() == 0
        assert ends(job) == undisturbed
        assert re.search(r"worker 0\.2 \(pid \d+\) hangs: .* no step was lost", job.output), (
            job.output
        )
