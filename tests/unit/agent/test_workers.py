"""The agent's socket accepts a worker by token, name and the pid that the kernel reports."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.agent import workers
from ftrun.agent.workers import WorkerServer
from ftrun.base.errors import PeerError
from ftrun.core.activity import Activity
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import AskReport, FailureReport, Lease, Progress, WorkerHello
from ftrun.protocol.frames import FrameSocket

TOKEN = "a" * 64
KEY = WorkerKey("0", "f" * 16, 0)


class Listener:
    """An agent whose one worker, ``KEY``, is this process."""

    def __init__(self) -> None:
        self.attached = asyncio.Event()
        self.heard: asyncio.Queue[tuple[WorkerKey, Any]] = asyncio.Queue()

    def worker_known(self, key: WorkerKey, pid: int) -> bool:
        return key == KEY and pid == os.getpid()

    def worker_attached(self, key: WorkerKey) -> None:
        self.attached.set()

    def worker_disconnected(self, key: WorkerKey) -> None:
        self.heard.put_nowait((key, None))

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        self.heard.put_nowait((key, message))


Play = Callable[[Listener, WorkerServer], Any]


def with_server(tmp_path: Path, play: Play) -> None:
    async def run() -> None:
        listener = Listener()
        server = WorkerServer(listener, TOKEN, tmp_path)
        await server.start()
        try:
            await asyncio.wait_for(play(listener, server), 20)
        finally:
            await server.close()

    asyncio.run(run())


def connect(server: WorkerServer) -> FrameSocket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(server.path))
    return FrameSocket(sock)


async def receive(worker: FrameSocket) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, worker.receive, 10.0)


def test_messages_go_both_ways(tmp_path: Path) -> None:
    async def play(listener: Listener, server: WorkerServer) -> None:
        worker = connect(server)
        worker.send(WorkerHello(KEY, os.getpid(), TOKEN))
        await listener.attached.wait()
        worker.send(Progress(3, 3, Activity.STEP))
        assert await listener.heard.get() == (KEY, Progress(3, 3, Activity.STEP))
        assert server.send("0", KEY.incarnation, AskReport()) == 1
        assert await receive(worker) == AskReport()
        server.broadcast(Lease(7.5))
        assert await receive(worker) == Lease(7.5)
        server.send_to(KEY, Lease(8.5))
        assert await receive(worker) == Lease(8.5)
        assert server.send("0", "another", AskReport()) == 0
        worker.close()

    with_server(tmp_path, play)


@pytest.mark.parametrize(
    "hello",
    [
        WorkerHello(KEY, os.getpid(), ""),
        WorkerHello(KEY, os.getpid(), TOKEN[:-1]),
        WorkerHello(KEY, os.getpid() + 1, TOKEN),
        WorkerHello(WorkerKey("1", KEY.incarnation, 0), os.getpid(), TOKEN),
        Progress(1, 1, Activity.STEP),
    ],
)
def test_whoever_is_not_a_worker_of_ours_is_cut(tmp_path: Path, hello: Any) -> None:
    async def play(listener: Listener, server: WorkerServer) -> None:
        worker = connect(server)
        worker.send(hello)
        with pytest.raises(PeerError):
            await receive(worker)
        worker.close()
        assert listener.heard.empty()
        assert server.send("0", KEY.incarnation, AskReport()) == 0

    with_server(tmp_path, play)


def test_bytes_that_are_no_frame_are_cut(tmp_path: Path) -> None:
    async def play(listener: Listener, server: WorkerServer) -> None:
        worker = connect(server)
        worker._sock.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(PeerError):
            await receive(worker)
        worker.close()

    with_server(tmp_path, play)


def test_a_failure_report_is_heard_before_its_connection_ends(tmp_path: Path) -> None:
    async def play(listener: Listener, server: WorkerServer) -> None:
        worker = connect(server)
        worker.send(WorkerHello(KEY, os.getpid(), TOKEN))
        worker.send(FailureReport("ValueError", "no", "trace"))
        with pytest.raises(PeerError):
            await receive(worker)
        assert listener.heard.get_nowait() == (KEY, FailureReport("ValueError", "no", "trace"))
        worker.close()

    with_server(tmp_path, play)


def test_who_closes_its_connection_has_hung_up_and_who_does_not_read_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(listener: Listener, server: WorkerServer) -> None:
        first, second = connect(server), connect(server)
        for worker in (first, second):
            listener.attached.clear()
            worker.send(WorkerHello(KEY, os.getpid(), TOKEN))
            await listener.attached.wait()
        first.close()
        second.send(Progress(1, 1, Activity.STEP))
        assert await listener.heard.get() == (KEY, Progress(1, 1, Activity.STEP))  # one is left
        second.close()
        assert await listener.heard.get() == (KEY, None)
        deaf = connect(server)
        listener.attached.clear()
        deaf.send(WorkerHello(KEY, os.getpid(), TOKEN))
        await listener.attached.wait()
        monkeypatch.setattr(workers, "OUT_BYTES_MAX", 1 << 10)
        while server.send("0", KEY.incarnation, AskReport()):
            await asyncio.sleep(0)
        assert listener.heard.empty()
        deaf.close()

    with_server(tmp_path, play)
