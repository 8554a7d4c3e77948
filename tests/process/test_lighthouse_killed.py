"""The lighthouse is killed a moment after something has happened: nothing of it is lost or doubled.

What has happened is a worker's death, and a request of people.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import LIGHTHOUSE, THIS_TREE, Job, popen
from tests.process.test_operators import COMMAND_S, CPU, STEPS, assert_lost_no_step, command


def records(job: Job) -> list[dict[str, Any]]:
    paths = sorted((job.logs / "job" / "incidents").glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("moment", ["at once", "recorded", "recorded, and its files are lost"])
def test_a_failure_is_one_incident_and_closed(tmp_path: Path, moment: str) -> None:
    state = tmp_path / "lighthouse"
    state.mkdir()
    with Job(tmp_path, STEPS, "--replicas", "3", "--state-dir", str(state), *CPU) as job:
        job.expect(r"^\[[012]\.0\] step 5$", 3)
        killed, lighthouse = job.worker(1), job.lighthouse()
        os.kill(killed, signal.SIGKILL)
        if moment != "at once":
            job.until(lambda: bool(records(job)), "recorded")
        if "lost" in moment:
            os.kill(lighthouse, signal.SIGSTOP)  # it writes no file meanwhile
            for path in state.iterdir():
                path.unlink()
        os.kill(lighthouse, signal.SIGKILL)
        job.until(lambda: any(not x["is_open"] for x in records(job)), "over")
        (found,) = records(job)
        first = found["first_cause"]
        assert (found["number"], first["replica_id"], first["kind"]) == (1, "1", "signal")
        assert first["worker"]["pid"] == killed
        assert (found["verdict"], first["back_after_s"] > 0) == ("restarted", True)
        assert found["cost"]["replica_seconds"] > 0
        code, text = command(tmp_path, "explain", "--all", "job")
        assert code == 0 and "not over yet" not in text, text
        assert len(re.findall(r"^ +\d+  20", text, re.MULTILINE)) == 1, text
        again = job.worker(2)
        os.kill(again, signal.SIGKILL)  # the numbers go on
        job.until(lambda: len(records(job)) == 2, "recorded")
        assert records(job)[-1]["number"] == 2
        (tmp_path / "over").touch()
        assert job.end() == 0
        assert job.left() == []


def test_requests_are_carried_out_once(tmp_path: Path) -> None:
    with Job(tmp_path, STEPS, "--replicas", "3", *CPU) as job:
        job.expect(r"^\[[012]\.0\] step 5$", 3)
        code, text = command(tmp_path, "restart", "1", "--no-wait")
        killed = job.lighthouse()
        os.kill(killed, signal.SIGKILL)
        assert code == 0, text
        job.expect(r"^\[1\.0\] drained True$")
        lighthouse = job.expect_process(LIGHTHOUSE, but=killed)
        waits = popen(
            [sys.executable, "-m", "ftrun", "restart", "2"],
            cwd=tmp_path,
            env={
                **os.environ,
                "XDG_STATE_HOME": str(tmp_path / "state"),
                **THIS_TREE,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waits.stdout is not None
        said = waits.stdout.readline()
        os.kill(lighthouse, signal.SIGKILL)
        said += waits.communicate(timeout=COMMAND_S)[0]
        assert (waits.returncode, "Replica 2 trains again" in said) == (0, True), said
        job.expect(r"^\[2\.0\] drained True$")
        command(tmp_path, "drain")
        assert job.end() == 75
        assert job.output.count("[2.0] drained True") <= 2  # its restart, and the job's drain
        assert "Restart 1 of" not in job.output
        assert_lost_no_step(job.output, 0)
        assert job.left() == []
