"""The account of a job that really runs: a kill, a stopped process, a killed lighthouse."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from ftrun.base import clock
from tests.jobs import Job, ask
from tests.process.test_incidents import TRAIN

STOPPED_S = 4.0
"""Longer than core/activity.py: STOOD_STILL_S."""


def _status(job: Job) -> dict[str, Any]:
    done = ask(job.directory, "status", "job", "--json")
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def _checked(job: Job) -> dict[str, Any]:
    """The status; the sum over all uses is the wall time times the replicas, to the microsecond."""
    status = _status(job)
    if status:
        account, replicas = status["account"], status["replicas"]
        wall = _whole(account["wall_s"])
        assert sum(_whole(x) for x in account["seconds"].values()) == wall * len(replicas)
        assert _whole(account["total_s"]) == wall * len(replicas)
        for replica in replicas:
            assert sum(_whole(x) for x in replica["seconds"].values()) == wall
        rows = account["bands"]["seconds"]
        for use, total in account["seconds"].items():
            assert sum(_whole(x) for x in rows[use]) == _whole(total)
    return status


def _whole(seconds: float) -> int:
    return round(seconds * 1e6)


def _is_back(job: Job, incidents: int) -> bool:
    found = _checked(job).get("incidents", [])
    return len(found) == incidents and not any(x["is_open"] for x in found)


def test_a_kill_shows_what_it_cost_and_the_account_survives_the_lighthouse(tmp_path: Path) -> None:
    options = ("--replicas", "2", "--heartbeat-timeout", "2")
    with Job(tmp_path, TRAIN, *options, args=(str(tmp_path),)) as job:
        job.expect(r"\] trains", 2)
        os.kill(job.worker(1), signal.SIGKILL)
        job.until(lambda: _is_back(job, 1), "back")
        status = _checked(job)
        (incident,) = status["incidents"]
        account = status["account"]
        assert 0.0 < incident["cost_s"] <= account["lost_s"] + 0.001
        assert account["seconds"]["training"] > 0.0
        assert 0.0 < account["goodput"] < 1.0
        assert account["steps"] >= 3
        # A survivor's broken connection may be reported before the death that broke it.
        broken = [x for x in status["history"] if x["kind"] in ("shrink", "retry")]
        assert 0.0 < broken[0]["cost_s"] < incident["cost_s"]

        stopped = job.worker(0)
        os.kill(stopped, signal.SIGSTOP)
        until = clock.now() + STOPPED_S
        job.until(lambda: clock.now() >= until, "stopped for long enough")
        os.kill(stopped, signal.SIGCONT)
        job.until(lambda: "stopped" in _checked(job)["replicas"][0]["seconds"], "booked as stopped")
        uses = _checked(job)["replicas"]
        assert uses[0]["seconds"]["stopped"] >= STOPPED_S - 1.0
        assert uses[1]["seconds"]["waiting"] >= 1.0

        before = _checked(job)
        lighthouse = job.lighthouse()
        # The record is written every few seconds; the one that counts is from after the kill.
        saved = clock.now() + 7.0
        job.until(lambda: clock.now() >= saved, "saved")
        os.kill(lighthouse, signal.SIGKILL)
        job.expect(r"The lighthouse is back")
        job.until(lambda: bool(_checked(job)), "answered")
        after = _checked(job)
        assert after["epoch"] > before["epoch"]
        assert after["job"]["uptime_s"] >= before["job"]["uptime_s"]
        assert after["account"]["lost_s"] >= before["account"]["lost_s"] - 0.001
        assert after["account"]["steps"] >= before["account"]["steps"]
        (tmp_path / "stop").touch()
        assert job.end() == 0
        (steps, goodput, lost) = re.findall(
            r"Summary: (\d+) steps in [\d.]+ s, goodput ([\d.]+) %, ([\d.]+) replica-seconds",
            job.output,
        )[0]
        assert int(steps) >= after["account"]["steps"]
        assert 0.0 < float(goodput) < 100.0
        parts = re.findall(r"replica \d: finished, .* ([\d.]+) s lost", job.output)
        assert abs(sum(map(float, parts)) - float(lost)) <= 0.2
