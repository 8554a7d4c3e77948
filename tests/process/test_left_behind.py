"""What a script leaves running at its end lives on, unless the job is stopped (P1)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ftrun.base import linux
from tests.jobs import Job

UPLOADS = """
import subprocess, sys
UPLOAD = '''
import os, time
for count in range(100_000):
    print("uploading", count, "." * 100, flush=True)
    if os.path.exists("go"):
        break
    time.sleep(0.01)
print("uploaded", flush=True)
os.rename("go", "uploaded")
'''
print("started", subprocess.Popen([sys.executable, "-c", UPLOAD]).pid, flush=True)
"""
SLEEPS_OR_WAITS = """
import os, signal, subprocess, sys
if os.environ["REPLICA_GROUP_ID"] == "0":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    sys.exit(0)
print("up", flush=True)
while True:
    signal.pause()
"""


def test_an_upload_outlives_a_job_that_ends_well(tmp_path: Path) -> None:
    with Job(tmp_path, UPLOADS) as job:
        pid = int(job.expect(r"started (\d+)")[0])
        assert job.end() == 0
        assert f"(pid {pid}). It continues by itself" in job.output
        row = linux.process_row(pid)
        assert row is not None and not row.is_zombie
        (tmp_path / "go").touch()
        job.until((tmp_path / "uploaded").exists, "uploaded")
        assert job.left() == [], "the process that wrote its output ends with it"
        log = job.log(0, 0)
        assert log.endswith("uploaded\n")
        numbers = [int(x.split()[1]) for x in log.splitlines() if x.startswith("uploading ")]
        assert numbers == list(range(len(numbers))), "no line is lost when the job ends"


def test_it_is_named_and_ended_if_the_job_is_stopped(tmp_path: Path) -> None:
    with Job(tmp_path, SLEEPS_OR_WAITS, "--replicas", "2", "--inject", "off") as job:
        job.expect(r"\] up")
        job.expect("Replica 0 has finished")
        sleeper = job.expect_process("sleep 1000")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        job.expect(
            rf"Left running by a script that has ended: sleep 1000 \(pid {sleeper}\)\. It is"
        )
        assert job.left() == []


def test_nothing_of_it_outlives_a_killed_agent(tmp_path: Path) -> None:
    with Job(tmp_path, SLEEPS_OR_WAITS, "--replicas", "2", "--inject", "off") as job:
        job.expect("Replica 0 has finished")
        job.expect_process("sleep 1000")
        os.kill(job.pid, signal.SIGKILL)
        assert job.left() == []
