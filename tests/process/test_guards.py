"""P1: however agent, spawner or both end, -9 included, nothing of the job is left 5 s later."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftrun.base import linux
from tests.jobs import Job

FAMILY = """
import multiprocessing, os, signal, subprocess, sys

def idle():
    while True:
        signal.pause()

if __name__ == "__main__":
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.run(["sh", "-c", "trap '' TERM; setsid sleep 1000 &"])
    multiprocessing.get_context("fork").Process(target=idle).start()
    if os.fork() == 0:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        idle()
    os.wait()
    print("up", os.getpid(), flush=True)
    {then}
"""
FOR_EVER = FAMILY.format(then="idle()")
WORKER_FAMILY = 6


@pytest.mark.parametrize(
    "victims",
    [
        ("agent",),
        ("agent", "spawner"),
        pytest.param(("spawner",), marks=pytest.mark.slow),
        pytest.param(("spawner", "agent"), marks=pytest.mark.slow),
        pytest.param(("stores",), marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_when_guards_are_killed(tmp_path: Path, victims: tuple[str, ...]) -> None:
    with Job(tmp_path, FOR_EVER) as job:
        job.expect(r"up \d+")
        assert len(job.pids()) >= WORKER_FAMILY + 3
        pids = {"agent": job.pid, "spawner": job.spawner(), "stores": job.stores()}
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        assert job.left() == []
        assert list(tmp_path.glob("ftrun-*/*")) == []
        code = job.end()
        if "agent" not in victims:
            assert code == 70
            assert "The job ends here: the" in job.output


def test_a_failed_workers_family_goes_with_it_and_the_others_stay(tmp_path: Path) -> None:
    with Job(tmp_path, FOR_EVER, "--replicas", "2") as job:
        job.expect(r"up \d+", 2)
        before = set(job.pids())
        os.kill(job.worker(0), signal.SIGKILL)
        job.expect(r"up \d+", 3)
        job.until(lambda: len(before - set(job.pids())) >= WORKER_FAMILY, "swept")
        assert job.worker(1) in before
        job.signal(signal.SIGKILL)
        assert job.left() == []


@pytest.mark.slow
def test_a_killed_lighthouse_comes_back_where_it_was(tmp_path: Path) -> None:
    with Job(tmp_path, FOR_EVER) as job:
        job.expect(r"up \d+")
        worker = job.worker(0)
        os.kill(job.lighthouse(), signal.SIGKILL)
        job.expect("The embedded lighthouse died: SIGKILL")
        job.expect("The lighthouse is back")
        assert job.worker(0) == worker
        job.signal(signal.SIGTERM)
        assert job.end() == 75


@pytest.mark.slow
def test_zombies_do_not_stay(tmp_path: Path) -> None:
    source = """
import os, signal, time
for _ in range(5):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
            print("orphan", os.getpid(), flush=True)
        os._exit(0)
    os.wait()
signal.pause()
"""
    with Job(tmp_path, source) as job:
        for pid in job.expect(r"orphan (\d+)", 5):
            job.until(lambda pid=pid: linux.process_row(int(pid)) is None, "reaped")  # type: ignore[misc]
