"""A worker's death changes the membership at once; its restart waits until its process is gone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from ftrun.base import linux
from tests.jobs import Job
from tests.process.test_events import SCRIPT
from tests.tracing import held_back

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_the_others_go_on_before_it_is_gone(tmp_path: Path, start: str) -> None:
    with Job(tmp_path, SCRIPT, "--replicas", "2", "--device", "cpu", "--start", start) as job:
        job.expect(r"^\[[01]\.0\] step 5$", 2)
        victim = job.worker(1)
        with held_back(victim):
            os.kill(victim, signal.SIGKILL)
            steps = 0
            while not losses(tmp_path):
                steps += 1
                job.expect(r"^\[0\.0\] step \d+$", steps)
            assert linux.process_row(victim) is not None, "it is not gone"
            assert job.output.count("[1.0] step 5\n") == 1, "its successor waits"
            assert "Restart 1" not in job.output
        job.expect(rf"replica 1 \(pid {victim}\) died: SIGKILL. Restart 1 of 10 now")
        job.expect(r"Replica 1 healed")
        (tmp_path / "over").touch()
        assert job.end() == 0
        assert len(losses(tmp_path)) == 1
        assert job.output.count("died: SIGKILL") == 1


def losses(directory: Path) -> list[str]:
    """What the lighthouse knows of replicas that died."""
    (path,) = directory.glob("logs/*/events.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    notices = [event for event in events if event["event"] == "notice" and event["kind"] == "lost"]
    return [notice["text"] for notice in notices if "died: SIGKILL" in notice["text"]]
