"""P3: only the very workers of the job are found, whatever else carries their marks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ftrun.agent.env_markers import OWNER_NAME
from ftrun.base import linux
from ftrun.tools.chaos.targets import Target, find_targets

INCARNATION = "0123456789abcdef"
TITLED = """
import os, sys
from ftrun.base import linux
linux.title_process(sys.argv[1])
if len(sys.argv) > 3 and os.fork() == 0:
    sys.stdin.read()
print("up", flush=True)
sys.stdin.read()
"""
PADDING = "x" * 60


def status(phase: str = "member", incarnation: str = INCARNATION) -> Any:
    replica = {"replica_id": "1", "phase": phase, "incarnation": incarnation, "worker_phase": None}
    if phase == "apart":
        replica |= {"phase": "starting", "worker_phase": phase}
    away = {"replica_id": "0", "phase": "absent", "incarnation": None, "worker_phase": None}
    return {"replicas": [replica, away]}


@contextmanager
def process(title: str, owner: str, *more: str) -> Iterator[int]:
    """A child that is called ``title`` and carries ``owner``; with ``more`` it has forked."""
    with subprocess.Popen(
        [sys.executable, "-c", TITLED, title, PADDING, *more],
        env={**os.environ, OWNER_NAME: owner},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child.pid


def found(picture: Any, root: int, only: str | None = None) -> list[int]:
    return [target.pid for target in find_targets(picture, root, only)]


def test_a_worker_is_found_and_not_what_it_forked() -> None:
    with process("ftrun worker 1.0: train.py", INCARNATION, "forks") as pid:
        assert found(status(), os.getpid()) == [pid]
        assert found(status(), os.getpid(), only="1") == [pid]
        assert found(status(), os.getpid(), only="0") == []
        assert found(status(phase="apart"), os.getpid()) == [pid], "one group has no quorum"


@pytest.mark.parametrize(
    ("title", "owner", "picture"),
    [
        ("ftrun worker 1.0: train.py", "another_job_000x", status()),
        ("ftrun worker 1.0: train.py", INCARNATION, status(phase="joining")),
        ("ftrun worker 1.0: train.py", INCARNATION, status(incarnation="fedcba9876543210")),
        ("ftrun worker 2.0: train.py", INCARNATION, status()),
        ("ftrun spawner", INCARNATION, status()),
        ("vim ftrun worker 1.0: notes", INCARNATION, status()),
    ],
)
def test_what_lacks_one_mark_is_not(title: str, owner: str, picture: dict[str, Any]) -> None:
    with process(title, owner):
        assert found(picture, os.getpid()) == []


def test_what_is_not_below_the_jobs_agent_is_not() -> None:
    with (
        process("ftrun worker 1.0: train.py", INCARNATION),
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as agent,
    ):
        assert found(status(), agent.pid) == []


def test_a_process_that_has_ended_is_not_struck_again() -> None:
    with process("ftrun worker 1.0: train.py", INCARNATION) as pid:
        (target,) = find_targets(status(), os.getpid())
        assert target.strike(signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not target.strike(signal.SIGKILL)


def test_a_pid_that_another_process_has_got_is_not_struck() -> None:
    own = linux.process_row(os.getpid())
    assert own is not None
    before = type(own)(own.pid, own.ppid, own.state, own.start_ticks - 1, 0.0)
    assert not Target("1", 0, INCARNATION, before).strike(signal.SIGKILL)
