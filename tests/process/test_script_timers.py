"""torch's file timer in real jobs: a place of the script that takes too long costs its worker."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.jobs import Job

TIMED = """
import os, threading
from torch.distributed.elastic.timer import FileTimerClient, configure, expires
configure(FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with expires(after=600):
    pass
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with expires(after=1, scope="the long step"):
        threading.Event().wait()
print("second life", flush=True)
"""


@pytest.mark.timeout(600)
def test_a_worker_whose_timer_runs_out_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    with Job(tmp_path, TIMED, "--max-restarts", "1", "--nproc-per-node", "1") as job:
        job.expect(r"second life$")
        assert job.end() == 0
        job.expect(r"hangs: the timer 'the long step' of its script has expired\. Restart 1 of 1")
        job.expect(r"replica 0 hangs: worker 0 in .*script\.py")
        assert job.left() == []


@pytest.mark.timeout(600)
def test_without_a_restart_the_job_ends_with_that_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(pipe))
    with Job(tmp_path, TIMED, "--max-restarts", "0", "--nproc-per-node", "1") as job:
        assert job.end() == 128 + signal.SIGKILL
        job.expect(r"has failed \(hangs: the timer 'the long step' of its script has expired\)")
        assert not pipe.exists()
        assert job.left() == []
