"""Whole jobs with real processes: kills of every kind, and what must be true afterwards."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.job import Job, assert_one_state_per_lineage, hashes
from tests.jobs import Lighthouse, ask

HEARTBEAT_S = 1.0
"""Of the default --heartbeat-timeout of 5 s."""

pytestmark = pytest.mark.timeout(1200)


def test_a_killed_worker_is_replaced_and_heals(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "3", fresh=True) as job:
        job.await_members(3)
        before = job.members()
        os.kill(before["1", "0"], signal.SIGKILL)
        job.await_successor(("1", "0"), before)
        after = job.members()
        assert job.finish() == 0
    assert {after["0", "0"], after["2", "0"]} == {before["0", "0"], before["2", "0"]}  # P4
    assert len(hashes(job)) == 3 and len(set(hashes(job))) == 1
    assert_one_state_per_lineage(job)
    assert re.search(r"replica 1 \(pid \d+\) died: SIGKILL. Restart 1 of 10", job.output)
    assert re.search(r"Replica 1 healed from replicas? [02]", job.output)


def test_a_job_that_fails_everywhere_before_a_step_ends_at_once(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import ftrun\nraise ValueError('no such data set')\n")
    with Job(tmp_path, "--replicas", "2", script=script) as job:
        assert job.end() == 1
    words = "all 2 replicas failed before the first step: ValueError: no such data set"
    assert words in job.output


@pytest.mark.slow
def test_ten_kills_in_one_run(tmp_path: Path) -> None:
    rng = random.Random(7)
    with Job(tmp_path, "--replicas", "3", "--max-restarts", "100") as job:
        job.await_members(3)
        for _ in range(10):
            before = job.members()
            victim = rng.choice(sorted(before))
            os.kill(before[victim], signal.SIGKILL)
            job.await_successor(victim, before)
            others = {k: pid for k, pid in job.members().items() if k != victim}
            assert others == {k: pid for k, pid in before.items() if k != victim}  # P4
            job.await_steps(3)
        assert job.drain() == 75
    assert_one_state_per_lineage(job)


def test_a_step_asks_the_lighthouse_nothing(tmp_path: Path) -> None:
    """The steady state makes no call. Heartbeats are the agents' and depend on time alone."""
    with Job(tmp_path, "--replicas", "2", E2E_STEP_S="0.001") as job:
        job.await_members(2)
        job.await_steps(5)
        began, before = time.monotonic(), _received(tmp_path)
        job.await_steps(200)
        after = _received(tmp_path)
        assert {k: n for k, n in after.items() if k != "Heartbeat"} == {
            k: n for k, n in before.items() if k != "Heartbeat"
        }
        heartbeats = after.get("Heartbeat", 0) - before.get("Heartbeat", 0)
        assert heartbeats <= (time.monotonic() - began) / HEARTBEAT_S + 1
        assert job.drain() == 75


def _received(directory: Path) -> dict[str, int]:
    """Counts of the messages that the job's lighthouse has received, by kind."""
    told = ask(directory, "status", "--json")
    assert told.returncode == 0, told.stderr
    received = json.loads(told.stdout)["messages_received"]
    assert isinstance(received, dict)
    return received


@pytest.mark.slow
def test_two_die_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "4") as job:
        job.await_members(4)
        pids = job.members()
        os.kill(pids["0", "0"], signal.SIGKILL)
        os.kill(pids["2", "0"], signal.SIGKILL)
        job.until(lambda: len(set(job.members().values()) - set(pids.values())) == 2, "both back")
        assert job.finish() == 0
    assert len(set(hashes(job))) == 1
    assert_one_state_per_lineage(job)


@pytest.mark.slow
def test_training_outlives_the_lighthouse(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "2") as job:
        job.await_members(2)
        os.kill(job.lighthouse(), signal.SIGKILL)
        job.await_steps(10)
        job.expect("A lighthouse leads again and knows")
        before = job.members()
        os.kill(before["0", "0"], signal.SIGKILL)
        job.await_successor(("0", "0"), before)
        assert job.members()["1", "0"] == before["1", "0"]
        assert job.drain() == 75
    assert_one_state_per_lineage(job)


@pytest.mark.slow
@pytest.mark.parametrize("victims", [["agent"], ["spawner"], ["agent", "spawner"]])
def test_nothing_is_left_of_a_job_whose_guards_die(tmp_path: Path, victims: list[str]) -> None:
    with Job(tmp_path, "--replicas", "2") as job:
        job.await_members(2)
        pids = {"agent": job.pid, "spawner": job.spawner()}
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        job.process.wait(60)
        assert job.left() == []


@pytest.mark.slow
def test_groups_of_two_workers(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "2", "--workers-per-replica", "2") as job:
        job.await_members(2, 2)
        before = job.members()
        os.kill(before["1", "1"], signal.SIGKILL)
        job.await_successor(("1", "0"), before)
        job.await_members(2, 2)
        after = job.members()
        assert job.finish() == 0
    assert (after["0", "0"], after["0", "1"]) == (before["0", "0"], before["0", "1"])  # P4
    assert after["1", "0"] != before["1", "0"]  # the whole group restarts
    assert_one_state_per_lineage(job)
    texts = job.output
    for rank in "01":
        ends = re.findall(rf"\[\d\.{rank}\] hash ([0-9a-f]+)", texts)
        assert len(ends) == 2 and len(set(ends)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_death_in_mid_step_costs_the_survivors_no_step(tmp_path: Path, workers: str) -> None:
    options = ("--replicas", "3", "--workers-per-replica", workers)
    with Job(tmp_path, *options, E2E_STEPS="120", E2E_DIES="1@50") as job:
        assert job.end() == 0
    assert job.output.count("died: SIGKILL. Restart 1 of") == 1
    for replica in "02":
        for rank in range(int(workers)):
            assert f"[{replica}.{rank}] uncommitted 0" in job.output  # S7: it was repaired
    assert len(set(hashes(job))) == int(workers)  # each rank has weights of its own
    assert_one_state_per_lineage(job)


@pytest.mark.slow
def test_synchronous_quorum_heals_before_the_forward_pass(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "2", E2E_SYNC="1") as job:
        job.await_members(2)
        before = job.members()
        os.kill(before["0", "0"], signal.SIGKILL)
        job.await_successor(("0", "0"), before)
        assert job.finish() == 0
    assert len(set(hashes(job))) == 1
    assert_one_state_per_lineage(job)


@pytest.mark.slow
def test_two_agents_share_the_slots_and_take_over(tmp_path: Path) -> None:
    with Lighthouse(tmp_path) as lighthouse:
        options = (*lighthouse.found_by, "--replicas", "4", "--nodes", "2", "--job-id", "two")
        with Job(tmp_path, *options, name="a") as one, Job(tmp_path, *options, name="b") as two:
            one.await_members(4)
            survivors = {k for k, pid in one.members().items() if _agent_of(pid) == one.pid}
            assert len(survivors) == 2
            two.kill()
            one.until(lambda: len(one.members()) == 2, "the other agent's workers to be gone")
            one.await_steps(5)
            one.await_members(4)  # its slots are taken over
            assert one.drain() == 75
        assert_one_state_per_lineage(one)


def _agent_of(pid: int) -> int:
    """The ftrun command among a worker's ancestors."""
    while pid > 1:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
        if b"--replicas" in Path(f"/proc/{pid}/cmdline").read_bytes():
            break
    return pid


@pytest.mark.slow
def test_unlike_shapes_are_named_before_weights_are_touched(tmp_path: Path) -> None:
    options = ("--replicas", "2", "--min-replicas", "2", "--max-restarts", "2")
    with Job(tmp_path, *options, E2E_ODD="1") as job:
        code = job.end()
    assert code not in (0, None)
    assert re.search(r"0\.weight: 9x16 here, 8x16 at", job.output), job.output


@pytest.mark.slow
def test_a_stopped_job_leaves_at_one_boundary(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "3", "--grace", "100") as job:
        job.await_members(3)
        assert job.drain() == 75
    last = {records[-1] for records in job.records().values()}
    assert len(last) == 1, last
