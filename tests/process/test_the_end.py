"""The end of an unmodified script: whom a replica waits for there, and that it can be stopped."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from ftrun.base import clock
from tests.jobs import Job, ask

pytestmark = pytest.mark.timeout(300)
SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank, steps = dist.get_rank(), int(sys.argv[1])
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(steps):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    print("step", step, flush=True)
    time.sleep(0.02)
print("trained", flush=True)
if rank == 1 and os.path.exists("waits"):
    time.sleep(200)
"""
LEAVES = SCRIPT.replace(
    "    time.sleep(0.02)\n",
    """    time.sleep(0.02)
    if rank == 1 and step == 20:
        sys.exit(0)
""",
)
REFUSES = """
import os, signal, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0 and os.system("test -e experiment") == 0:  # ftrun sees no other process's looks
    print("Experiment already exists", flush=True)
    sys.exit(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
step = 0
while rank == 0 or not os.path.exists("stop"):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    step += 1
    if rank == 0 and step == 10:
        os.mkdir("experiment")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
"""
NEVER = SCRIPT.replace(
    "model(torch.ones(1, 4)).sum().backward()",
    """loss = model(torch.ones(1, 4)).sum()
    if rank == 1:
        raise KeyError("no data here")
    loss.backward()""",
)
LINGERS = """
import os, pathlib, signal, torch, ftrun
slot, here = os.environ["REPLICA_GROUP_ID"], pathlib.Path(__file__).parent
model = torch.nn.Linear(4, 1)
manager = ftrun.manager(
    load_state_dict=lambda state: model.load_state_dict(state["model"]),
    state_dict=lambda: {"model": model.state_dict()},
)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), 0.1))
network = ftrun.DistributedDataParallel(manager, model)
while manager.current_step() < 10:
    optimizer.zero_grad()
    network(torch.ones(1, 4)).sum().backward()
    if slot == "1" and manager.current_step() == 9 and not (here / "died").exists():
        (here / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
manager.linger()
print("weight", model.weight.sum().item(), flush=True)
"""
RAISES = SCRIPT.replace('print("trained", flush=True)', "print(undefined_name)")
ROOT = str(Path(__file__).parents[2])
SOON_S = 25.0
"""Without a reason to wait; a replica that is missing is waited for 60 s."""


def test_a_drained_replica_is_not_waited_for(tmp_path: Path) -> None:
    with Job(tmp_path, SCRIPT, "--replicas", "3", "--device", "cpu", args=("200",)) as job:
        job.expect(r"^\[[012]\.0\] step 5$", 3)
        assert ask(tmp_path, "drain", "1").returncode == 0
        job.expect(r"^\[[02]\.0\] trained$", 2)
        trained = clock.now()
        assert job.end() == 0, job.output
        assert clock.now() - trained < SOON_S
        assert "Others have not reached the end of the script" not in job.output
        assert job.left() == []


def test_who_died_in_the_last_step_learns_in_its_step_that_the_others_are_at_their_end(
    tmp_path: Path,
) -> None:
    """With a Manager of its own, newcomers heal in their step: its reductions have no peer."""
    with Job(tmp_path, LINGERS, "--replicas", "3", "--device", "cpu") as job:
        assert job.end() == 0, job.output
        assert len(set(job.expect(r"^\[[012]\.0\] (weight .*)$", 3))) == 1
        assert "replica 1: finished, 10 steps, 1 restart" in job.output
        assert "was given up" not in job.output
        assert job.left() == []


def test_who_leaves_the_loop_leaves_the_others_to_train(tmp_path: Path) -> None:
    with Job(tmp_path, LEAVES, "--replicas", "2", "--device", "cpu", args=("60",)) as job:
        job.expect(r"^\[1\.0\] step 20$")
        left = clock.now()
        job.expect(r"Replica 1 left the training loop early at step 21 .*\. Replica 0 trains on")
        job.expect(r"^\[0\.0\] trained$")
        assert job.end() == 77, job.output
        assert clock.now() - left < SOON_S
        assert (
            "1 of 2 replicas has finished: replica 1 left the training loop early at step 21"
            in job.output
        )
        assert "If it has no more data, give all ranks the same number of batches" in job.output
        assert "replica 1: left early at step 21" in job.output
        assert job.left() == []


def test_a_newcomer_that_ends_before_it_has_joined_has_not_finished(tmp_path: Path) -> None:
    with Job(tmp_path, REFUSES, "--replicas", "2", "--device", "cpu") as job:
        job.expect("replica 0 ended with exit code 0 before it had joined the others", 2)
        job.expect("Replica 0 is given up: restarting will not help: .* Replica 1 trains on")
        (tmp_path / "stop").touch()
        assert job.end() == 77, job.output
        assert "1 of 2 replicas has finished: replica 0 was given up at step" in job.output
        assert "Replica 0 has finished" not in job.output
        assert "without a Manager" not in job.output
        assert job.left() == []


@pytest.mark.parametrize(
    ("options", "codes"), [((), {72, 73}), (("--min-replicas", "1"), {0})], ids=["", "min-replicas"]
)
def test_a_replica_that_has_never_trained_fails_the_job(
    tmp_path: Path, options: tuple[str, ...], codes: set[int]
) -> None:
    """It raises at one step twice (73), or, as the other goes on, at three (72)."""
    words = ("--replicas", "2", "--device", "cpu", *options)
    with Job(tmp_path, NEVER, *words, args=("20",)) as job:
        assert job.end() in codes, job.output
        if codes != {0}:
            assert (
                "It has never trained a step. To continue without it: --min-replicas" in job.output
            )
        else:
            allowed = "1 of 2 replicas has finished, which --min-replicas 1 allows: replica 1 was"
            assert allowed in job.output
        assert job.left() == []


def test_what_all_replicas_raise_at_one_place_fails_once(tmp_path: Path) -> None:
    with Job(tmp_path, RAISES, "--replicas", "2", "--device", "cpu", args=("20",)) as job:
        assert job.end() == 1, job.output
        assert "all 2 replicas have raised the same exception at step 20" in job.output
        assert "NameError: name 'undefined_name' is not defined (script.py:" in job.output
        assert len(re.findall(r"] step 0$", job.output, re.MULTILINE)) == 2, job.output
        assert job.left() == []


def test_a_replica_that_waits_at_the_end_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "waits").touch()
    options = ("--replicas", "2", "--device", "cpu", "--grace", "15")
    with Job(tmp_path, SCRIPT, *options, args=("20",)) as job:
        job.expect(r"^\[[01]\.0\] trained$", 2)
        job.signal(signal.SIGTERM)
        job.end()
        assert "killed" not in job.output, job.output
        assert job.left() == []
