"""A stopped agent cannot send Isolation to its workers: they isolate themselves (Q3)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.job import Job, assert_one_state_per_lineage

LIMIT_S = 8.0
STILL_S = 4.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_of_a_stopped_agent_stop_committing_and_go_on_with_it(tmp_path: Path) -> None:
    options = ("--replicas", "2", "--isolation-limit", str(LIMIT_S), "--heartbeat-timeout", "4")
    with Job(tmp_path, *options) as job:
        job.await_members(2)
        before = job.members()
        job.signal(signal.SIGSTOP)
        stopped_at = time.time()
        job.until(lambda: time.time() - last_commit(job) >= STILL_S, "end of the commits")
        # Within the limit they train on alone; a tick of the link later at the latest they do not,
        # but for what a slow machine had begun by then.
        assert last_commit(job) < stopped_at + LIMIT_S + STILL_S
        job.signal(signal.SIGCONT)
        job.until(lambda: last_commit(job) > stopped_at + LIMIT_S + STILL_S, "commits again")
        job.await_steps(5)
        assert job.members() == before
        assert job.drain() == 75
    assert_one_state_per_lineage(job)


def last_commit(job: Job) -> float:
    """The time of the last commit that a worker has written, by the files' wall clock."""
    return max(os.stat(path).st_mtime for path in job.out.glob("*.*.*"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_machine_that_stands_still_for_a_while_loses_nobody(tmp_path: Path) -> None:
    """A host that was suspended finds all its peers overdue, and none of them is at fault."""
    with Job(tmp_path, "--replicas", "2", "--heartbeat-timeout", "5") as job:
        job.await_members(2)
        before, pids = job.members(), list(job.pids())
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(12.0)  # the fault: so long nothing runs
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        job.await_steps(10)
        assert job.members() == before
        assert job.drain() == 75
    text = job.output
    assert text.count("in quorum") == 1, text
    assert text.count("has left") == text.count("has left: drained") == 2, text
    assert_one_state_per_lineage(job)
