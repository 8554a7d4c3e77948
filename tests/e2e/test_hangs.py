"""Workers that hang for good while no other worker waits for them: their agent finds them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.job import Job, assert_one_state_per_lineage

TIMEOUT_S = 4.0
SHORT_S = 6.0
ONE_STEP = """\
import time, torch, ftrun
manager = ftrun.manager()
def step():
    manager.start_quorum()
    manager.allreduce(torch.ones(1)).wait()
    assert manager.should_commit()
step()
"""


def assert_no_hang(tmp_path: Path, timeout_s: float, then: str) -> None:
    """One replica trains a step and does ``then``; it is not taken for hanging."""
    script = tmp_path / "train.py"
    script.write_text(f"{ONE_STEP}{then}print('done', flush=True)\n")
    with Job(tmp_path, "--hang-timeout", str(timeout_s), script=script) as job:
        assert job.end() == 0
        assert "done" in job.output
        assert "hangs" not in job.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_that_all_hang_at_once_are_replaced(tmp_path: Path) -> None:
    with Job(tmp_path, "--replicas", "2", "--hang-timeout", str(TIMEOUT_S)) as job:
        job.await_members(2)
        before = job.members()
        for pid in before.values():
            os.kill(pid, signal.SIGSTOP)
        job.expect(r"hangs: it has not answered ftrun for \d+ s")
        job.until(lambda: not set(before.values()) & set(job.pids()), "end of who hangs")
        job.await_members(2)
        job.await_steps(5)
        assert job.drain() == 75
    assert_one_state_per_lineage(job)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_long_call_that_keeps_pythons_lock_is_no_hang(tmp_path: Path) -> None:
    """No thread of such a worker can answer, but it uses the processor."""
    then = (
        "took, n = 0.0, 10_000_000\n"
        f"while took < {2 * SHORT_S}:\n"
        "    began = time.monotonic()\n"
        "    sum(range(n))\n"
        "    took, n = time.monotonic() - began, 2 * n\n"
        "step()\n"
    )
    assert_no_hang(tmp_path, SHORT_S, then)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_script_that_is_done_with_its_manager_may_take_its_time(tmp_path: Path) -> None:
    """It has left, and may write and evaluate for any time without answering."""
    assert_no_hang(tmp_path, TIMEOUT_S, f"manager.shutdown()\ntime.sleep({4 * TIMEOUT_S})\n")
