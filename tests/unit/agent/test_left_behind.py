"""What workers that have ended well leave running is found by its environment, and named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ftrun.agent.left_behind import LeftBehind

OURS, OTHERS = "a" * 16, "b" * 16


@contextmanager
def sleeper(incarnation: str, rank: str) -> Iterator[int]:
    marks = {"FTRUN_OWNER": incarnation, "FTRUN_GROUP_RANK": rank}
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **marks}) as process:
        yield process.pid
        process.kill()


def test_only_those_of_workers_that_ended_well_are_named_and_once() -> None:
    left = LeftBehind()
    assert left.take(OURS) == []
    left.ended_well(OURS, 1)
    left.ended_well(OTHERS, 0)
    with sleeper(OURS, "1") as named, sleeper(OURS, "0"), sleeper(OTHERS, "0") as other:
        assert left.take(OURS) == [f"sleep 1000 (pid {named})"]
        assert left.take(OURS) == [], "it is swept now"
        assert left.take_all() == [f"sleep 1000 (pid {other})"]


def test_pythons_own_tracker_is_not_named_because_it_ends_with_its_users() -> None:
    left = LeftBehind()
    left.ended_well(OURS, 1)
    marks = {"FTRUN_OWNER": OURS, "FTRUN_GROUP_RANK": "1"}
    code = "from multiprocessing.resource_tracker import main; import time; time.sleep(1000)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env={**os.environ, **marks}) as tracker:
        named = left.take(OURS)
        tracker.kill()
    assert named == []
