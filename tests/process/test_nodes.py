"""Nodes that leave and come back, jobs that follow one another, and the waits of each."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.jobs import Job, Lighthouse

MODEL = """
import os, time, torch, ftrun

def load(state):
    model.load_state_dict(state)

slot = os.environ["REPLICA_GROUP_ID"]
model = torch.nn.Linear(4, 1)
manager = ftrun.manager(load, model.state_dict)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01))
ddp = ftrun.DistributedDataParallel(manager, model)
"""
TRAINS = f"""{MODEL}
def train():
    optimizer.zero_grad()
    ddp(torch.randn(2, 4)).mean().backward()
    optimizer.step()
    time.sleep(0.05)  # so that a test's machine can do something else

train()
print("trains", slot, flush=True)
"""
FOR_EVER = """
while True:
    train()
"""
EVALUATES = """
while True:
    train()
    if slot == "1" and os.path.exists("evaluate"):
        print("evaluates", flush=True)
        while os.path.exists("evaluate"):
            time.sleep(0.01)
"""
SAVES = """
try:
    print("within", flush=True)
    while True:
        train()
finally:
    print("saves", flush=True)
    while not os.path.exists("disk"):
        time.sleep(0.01)
    print("has saved", flush=True)
"""
PLAIN = """
import os, time
def train():
    time.sleep(0.01)
"""
ENDS_WHEN_TOLD = """
import os, time
print("up", flush=True)
while not os.path.exists("end"):
    time.sleep(0.01)
"""


def directories(tmp_path: Path, *names: str) -> list[Path]:
    """One for each node."""
    for name in names:
        (tmp_path / name).mkdir()
    return [tmp_path / name for name in names]


@pytest.mark.parametrize("rebalance", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_node_that_leaves_and_comes_back_gets_its_share_again(
    tmp_path: Path, rebalance: bool
) -> None:
    a, b, c = directories(tmp_path, "a", "b", "c")
    with Lighthouse(tmp_path) as lighthouse:
        options = (*lighthouse.found_by, "--replicas", "2", "--nodes", "2")
        options += () if rebalance else ("--no-rebalance",)
        with Job(a, TRAINS + FOR_EVER, *options) as stays:
            with Job(b, TRAINS + FOR_EVER, *options) as leaves:
                (own,) = stays.expect(r"trains (\d)")
                (other,) = leaves.expect(r"trains (\d)")
                assert {own, other} == {"0", "1"}
                pid = stays.worker(int(own))
                leaves.signal(signal.SIGTERM)
                assert leaves.end() == 75
                assert f"replica {other}: drained" in leaves.output
                assert leaves.left() == []
            assert stays.expect(r"trains (\d)", 2) == [own, other]
            with Job(c, TRAINS + FOR_EVER, *options) as back:
                if rebalance:
                    (moved,) = back.expect(r"trains (\d)")
                    stays.expect(rf"Replica {moved} moves from \S+ to \S+, to even the load")
                else:
                    back.expect("All replicas run on other nodes. This node stands by")
                    assert "to even the load" not in stays.output + back.output
                    assert stays.worker(int(own)) == pid
                    stays.worker(int(other))
                back.signal(signal.SIGTERM)
                assert back.end() == 75
            stays.signal(signal.SIGTERM)
            assert stays.end() == 75
            assert "died" not in stays.output


@pytest.mark.slow
def test_the_node_that_is_not_here_is_named(tmp_path: Path) -> None:
    with (
        Lighthouse(tmp_path) as lighthouse,
        Job(tmp_path, TRAINS, *lighthouse.found_by, "--replicas", "2", "--nodes", "2") as job,
    ):
        job.expect(
            "1 of 2 nodes is here, and the job waits for the rest, for 3 s so far and .* more at"
        )
        job.signal(signal.SIGTERM)
        assert job.end() == 75


@pytest.mark.slow
def test_training_that_stands_without_a_lighthouse_says_so_and_goes_on_with_it(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        lighthouse = stack.enter_context(Lighthouse(tmp_path))
        options = (*lighthouse.found_by, "--replicas", "2")
        job = stack.enter_context(Job(tmp_path, TRAINS + FOR_EVER, *options))
        job.expect(r"trains (\d)", 2)
        survivor = job.worker(0)
        lighthouse.kill()
        job.expect("The connection to the lighthouse has ended .* Training continues until a")
        os.kill(job.worker(1), signal.SIGKILL)
        job.expect(
            r"Training has stopped at step \d+ for \d+ s, because a new quorum needs the lighthouse"
        )
        stack.enter_context(Lighthouse(tmp_path, bind=lighthouse.address))
        job.expect("The lighthouse is back")
        job.expect(r"trains (\d)", 3)
        assert job.worker(0) == survivor
        job.signal(signal.SIGTERM)
        assert job.end() == 75


def test_a_node_does_not_wait_for_ever_for_a_lighthouse_that_is_lost(tmp_path: Path) -> None:
    times = ("--heartbeat-timeout", "1", "--isolation-limit", "3", "--lighthouse-timeout", "8")
    with Lighthouse(tmp_path) as lighthouse:
        options = (*lighthouse.found_by, "--replicas", "2", *times)
        with Job(tmp_path, TRAINS + FOR_EVER, *options) as job:
            job.expect(r"trains (\d)", 2)
            lighthouse.kill()
            job.expect(r"Training continues until a replica is lost, and for 3 s at most")
            job.expect(
                rf"The lighthouse at {lighthouse.address} has not answered for 3 s, so training"
            )
            assert job.end() == 71
            assert "for 8 s (--lighthouse-timeout)" in job.output
            assert job.left() == []


def test_who_waits_for_a_peer_outside_a_step_is_told_and_when_that_is_over(tmp_path: Path) -> None:
    with Job(tmp_path, TRAINS + EVALUATES, "--replicas", "2") as job:
        job.expect(r"trains (\d)", 2)
        (tmp_path / "evaluate").touch()
        job.expect(r"Replica 0 waits for replica 1 \(it is outside a step \(an evaluation, a check")
        assert "evaluates" in job.output
        (tmp_path / "evaluate").unlink()
        job.expect(r"The wait for replica 1 is over, after \d+ s")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.output.count("Replica 0 waits for replica 1") == 1


@pytest.mark.parametrize(
    "source",
    [TRAINS + SAVES, pytest.param(PLAIN + SAVES, marks=pytest.mark.slow)],
    ids=["manager", "plain"],
)
def test_a_drain_without_a_lighthouse_lets_scripts_save(tmp_path: Path, source: str) -> None:
    with (
        Lighthouse(tmp_path) as lighthouse,
        Job(tmp_path, source, *lighthouse.found_by, "--grace", "600") as job,
    ):
        job.expect("within")
        lighthouse.kill()
        job.expect("The connection to the lighthouse has ended")
        job.signal(signal.SIGTERM)
        job.expect("saves")
        job.worker(0)
        (tmp_path / "disk").touch()
        job.expect("has saved")
        assert job.end() == 75
        assert "killed" not in job.output
        assert "replica 0: drained" in job.output
        assert job.left() == []


@pytest.mark.slow
def test_another_job_and_other_options_are_refused_with_both_values(tmp_path: Path) -> None:
    a, b, c = directories(tmp_path, "a", "b", "c")
    with Lighthouse(tmp_path) as lighthouse, Job(a, ENDS_WHEN_TOLD, *lighthouse.found_by) as one:
        one.expect("up")
        with (
            Job(b, "", *lighthouse.found_by, "--job-id", "other") as other,
            Job(c, "", *lighthouse.found_by, "--replicas", "3") as unlike,
        ):
            assert other.end() == 76
            words = "this agent is for job other, and this lighthouse serves job job, which has not"
            assert words in other.output
            assert "start another lighthouse for other" in other.output
            assert unlike.end() == 76
            words = "--replicas: 3 was given here, and 1 where the job was started"
            assert words in unlike.output
        one.worker(0)
        (a / "end").touch()
        assert one.end() == 0


@pytest.mark.slow
def test_a_lighthouse_takes_the_next_job_when_one_has_ended(tmp_path: Path) -> None:
    a, b = directories(tmp_path, "a", "b")
    with Lighthouse(tmp_path) as lighthouse:
        with Job(a, "print('first')", *lighthouse.found_by) as one:
            assert one.end() == 0
        with Job(b, "print('next')", *lighthouse.found_by, "--job-id", "other") as other:
            assert other.end() == 0
            assert "[0.0] next" in other.output
            assert "replica 0: finished" in other.output
