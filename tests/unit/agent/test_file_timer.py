"""The pipe of torch's file timer: torch's own client writes, the agent's reader understands it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ftrun.agent.file_timer import (
    LINE_BYTES_MAX,
    UNPLACED_MAX,
    FileTimer,
    TimerEvent,
    check_timer_file,
    timer_path,
    worker_of,
)
from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.core.agent.events import ScriptTimerReleased, ScriptTimerSet
from ftrun.core.ids import WorkerKey

KEY = WorkerKey("0", "i", 0)
ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


def served(
    path: Path,
    work: Callable[[FileTimer, list[TimerEvent]], Awaitable[None]],
    find: Callable[[int], WorkerKey | None] = lambda pid: KEY,
) -> list[TimerEvent]:
    """The events of a pipe while ``work`` runs."""

    async def run() -> list[TimerEvent]:
        events: list[TimerEvent] = []
        timer = FileTimer(path, find, events.append)
        try:
            await work(timer, events)
        finally:
            timer.close()
        return events

    return asyncio.run(run())


async def until(events: list[TimerEvent], count: int) -> None:
    deadline = clock.now() + 60.0
    while len(events) < count:
        assert clock.now() < deadline, events
        await asyncio.sleep(0.01)


def test_torchs_own_client_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "timers"
    client = """
import sys
from torch.distributed.elastic.timer import FileTimerClient, configure, expires
configure(FileTimerClient(sys.argv[1]))
with expires(after=60, scope="a"):
    pass
"""

    async def work(timer: FileTimer, events: list[TimerEvent]) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", client, str(path))
        assert await asyncio.wait_for(process.wait(), 120.0) == 0
        await until(events, 2)

    first, second = served(path, work)
    assert isinstance(first, ScriptTimerSet)
    assert isinstance(second, ScriptTimerReleased)
    assert (first.key, first.scope, first.number) == (KEY, "a", signal.SIGKILL)
    assert 0.0 < first.left_s <= 60.0
    assert (second.pid, second.scope) == (first.pid, "a")
    assert not path.exists()


def test_what_is_no_request_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "timers"
    lines = [
        b"not json",
        b"[]",
        b'{"pid": 1}',
        b'{"pid": 1, "scope_id": "s", "expiration_time": "soon", "signal": 9}',
        b"[" * 50_000,
        b"x" * (LINE_BYTES_MAX + 10),
        b'{"pid": 1, "scope_id": "odd", "expiration_time": 1e30, "signal": 9999}',
        b'{"pid": 1, "scope_id": "s", "expiration_time": -1, "signal": 0}',
    ]

    async def work(timer: FileTimer, events: list[TimerEvent]) -> None:
        fd = os.open(path, os.O_WRONLY)
        for line in lines:
            await asyncio.to_thread(os.write, fd, line + b"\n")
        os.close(fd)
        await until(events, 2)

    odd, released = served(path, work)
    assert isinstance(odd, ScriptTimerSet)
    assert odd.number == 0
    assert released == ScriptTimerReleased(KEY, 1, "s")


def test_a_request_that_comes_before_its_worker_is_known_waits(tmp_path: Path) -> None:
    path, known = tmp_path / "timers", set[int]()

    async def work(timer: FileTimer, events: list[TimerEvent]) -> None:
        fd = os.open(path, os.O_WRONLY)
        line = b'{"pid": %d, "scope_id": "s", "expiration_time": -1, "signal": 9}\n'
        os.write(fd, line % 1 + line % 2)
        known.add(2)
        while not events:
            timer.worker_started()
            await asyncio.sleep(0.01)
        for _ in range(UNPLACED_MAX):
            os.write(fd, line % 3)
        known.update({1, 3})
        await until(events, 1 + UNPLACED_MAX)
        os.close(fd)

    events = served(path, work, lambda pid: KEY if pid in known else None)
    assert events[0] == ScriptTimerReleased(KEY, 2, "s")


def test_a_process_belongs_to_the_worker_that_leads_its_session() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        leader = os.getsid(0)
        assert worker_of(child.pid, [(KEY, leader)]) == KEY
        assert worker_of(child.pid, [(KEY, child.pid)]) == KEY
        assert worker_of(child.pid, [(KEY, 1 << 30)]) is None
    finally:
        child.communicate(b"\n", timeout=60.0)
    assert worker_of(child.pid, [(KEY, leader)]) is None


def test_it_is_made_only_if_it_is_asked_for(tmp_path: Path) -> None:
    given = {"TORCHELASTIC_TIMER_FILE": "/x/pipe"}
    assert timer_path({}, tmp_path) is None
    assert timer_path({"TORCHELASTIC_ENABLE_FILE_TIMER": "0", **given}, tmp_path) is None
    assert timer_path(ON, tmp_path) == tmp_path / "timers"
    assert timer_path({**ON, **given}, tmp_path) == Path("/x/pipe")


def test_a_place_that_is_taken_is_refused_and_a_pipe_that_nobody_reads_is_not(
    tmp_path: Path,
) -> None:
    def check(path: Path) -> None:
        check_timer_file({**ON, "TORCHELASTIC_TIMER_FILE": str(path)})

    check_timer_file({})
    check_timer_file(ON)
    check(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is no named pipe"):
        check(tmp_path / "file")
    with pytest.raises(UserError, match="directory does not exist"):
        check(tmp_path / "none" / "pipe")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check(pipe)
    reader = os.open(pipe, os.O_RDWR)
    with pytest.raises(UserError, match="another launcher reads it"):
        check(pipe)
    os.close(reader)
