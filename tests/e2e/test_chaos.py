"""``ftrun chaos`` on a real job: workers die and the job trains on; errors are reported."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.job import Job, assert_one_state_per_lineage
from tests.jobs import ask


def chaos(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return ask(directory, "chaos", *options)


def test_without_a_job_it_says_so(tmp_path: Path) -> None:
    done = chaos(tmp_path)
    assert done.returncode == 2
    assert "No job runs on this machine" in done.stderr
    assert chaos(tmp_path, "nosuchjob").returncode == 2
    done = chaos(tmp_path, "--mtbf", "never")
    assert done.returncode == 2
    assert "--mtbf 'never'" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_of_a_running_job_die_and_are_replaced(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "3", "--max-restarts", "100") as job:
        job.await_members(3)
        before = job.members()
        assert "has replicas 0, 1, 2" in chaos(tmp_path, "--only-replica", "7").stderr
        done = chaos(
            tmp_path, "--mtbf", "0.2s", "--kills", "3", "--seed", "3", "--only-replica", "1"
        )
        assert done.returncode == 0, done.stderr
        kills = re.findall(r"SIGKILL to replica (\d), worker 0 \(pid (\d+)\)", done.stdout)
        assert [replica for replica, _ in kills] == ["1", "1", "1"]
        assert kills[0][1] == str(before["1", "0"])
        assert len(re.findall("its replacement is a member after", done.stdout)) == len(kills)
        assert re.search(rf"{len(kills)} kills in .*; {len(kills)} replaced, after", done.stdout)
        job.await_members(3)
        after = job.members()
        assert (after["0", "0"], after["2", "0"]) == (before["0", "0"], before["2", "0"])  # P4
        assert job.drain() == 75
    assert_one_state_per_lineage(job)
