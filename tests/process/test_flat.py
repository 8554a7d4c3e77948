"""P7: descriptors, threads and memory stay flat over many restarts; each restart is quick."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.jobs import Job

FAILS_WITH_PROGRESS = """
import os, socket
from ftrun.core.activity import Activity
from ftrun.core.messages import Progress, WorkerHello
from ftrun.protocol.frames import FrameSocket
from ftrun.training.context import current

here = current()
sock = socket.socket(socket.AF_UNIX)
sock.connect(here.socket_path)
frames = FrameSocket(sock)
frames.send(WorkerHello(here.key, os.getpid(), here.token))
for step in (100 * here.restarts, 100 * here.restarts + 50):
    frames.send(Progress(step, step, Activity.STEP))
print("life", here.restarts, flush=True)
raise ValueError("again")
"""
KIB_GROWN_MAX = 4096


def vital_signs(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads, and resident KiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    threads = len(os.listdir(f"/proc/{pid}/task"))
    return len(os.listdir(f"/proc/{pid}/fd")), threads, int(found[1])


def lives_on(job: Job, lives: range) -> None:
    for life in lives:
        job.expect(f"life {life}$")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_grows_over_a_hundred_restarts(tmp_path: Path) -> None:
    with Job(tmp_path, FAILS_WITH_PROGRESS, "--max-restarts", "5") as job:
        lives_on(job, range(1, 21))
        pids = {"agent": job.pid, "spawner": job.spawner(), "stores": job.stores()}
        before = {name: vital_signs(pid) for name, pid in pids.items()}
        lives_on(job, range(21, 121))
        after = {name: vital_signs(pid) for name, pid in pids.items()}
        for name in pids:
            fds, threads, kib = (b - a for a, b in zip(before[name], after[name], strict=True))
            # One incarnation more or less may be alive at the moment of the sample.
            assert abs(fds) <= 8, (name, before, after)
            assert abs(threads) <= 3, (name, before, after)
            assert kib <= KIB_GROWN_MAX, (name, before, after)
