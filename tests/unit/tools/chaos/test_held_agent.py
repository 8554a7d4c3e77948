"""The agent's end is an event, and no other process is taken for the agent."""

from __future__ import annotations

import os
import subprocess
import threading

from ftrun.tools.chaos.held_agent import HeldAgent
from ftrun.tools.status.jobs import RunningJob, birth_mark

LONG_S = 60.0


def job(pid: int, birth: str) -> RunningJob:
    return RunningJob("job", "127.0.0.1:1", pid, "/logs", "/token", "1", birth=birth)


def test_its_end_is_seen_before_the_time_is_over() -> None:
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process,
        HeldAgent(job(process.pid, birth_mark(process.pid))) as agent,
    ):
        assert agent.lives
        assert not agent.ends_within(0.01)
        ended = threading.Thread(target=process.kill)
        ended.start()
        assert agent.ends_within(LONG_S)
        ended.join()
        assert not agent.lives


def test_a_stranger_with_its_pid_is_not_held() -> None:
    with HeldAgent(job(os.getpid(), "of another process")) as agent:
        assert not agent.lives


def test_one_that_is_gone_has_ended() -> None:
    process = subprocess.Popen(["true"])
    birth = birth_mark(process.pid)
    process.wait()
    with HeldAgent(job(process.pid, birth)) as agent:
        assert agent.ends_within(LONG_S)


def test_its_descriptor_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with HeldAgent(job(os.getpid(), birth_mark(os.getpid()))):
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before
