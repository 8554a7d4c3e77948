"""The agent's watch for deaths: told before the process is gone, once, and only of the dead."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ftrun.agent import death_watch
from ftrun.agent.death_watch import THREAD_NAME, DeathWatch
from ftrun.base import futex
from ftrun.core.ids import WorkerKey
from tests.tracing import held_back

TIMEOUT_S = 120.0
TRIES = 8
MIB_300 = 300 << 20
HOLDER = f"""
import mmap, os, sys, threading
from ftrun.base import life_lock
held = mmap.mmap(-1, {MIB_300})
held.write(bytes({MIB_300}))
life_lock.hold(sys.argv[1])
print("held", flush=True)
input()
"""


class Node:
    """A watch, the processes under it, and what became known of them, in order."""

    def __init__(self) -> None:
        self.watch = DeathWatch(self._dying)
        self.facts: list[tuple[str, WorkerKey, int]] = []
        self._news = asyncio.Event()

    def _dying(self, key: WorkerKey, status: int) -> None:
        self.facts.append(("dying", key, status))
        self._news.set()

    def gone(self, key: WorkerKey) -> None:
        """The process's pidfd is readable."""
        self.facts.append(("gone", key, 0))
        self._news.set()

    async def until(self, has_come: Callable[[], bool]) -> None:
        while not has_come():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), TIMEOUT_S)


@asynccontextmanager
async def holder(
    node: Node, key: WorkerKey, program: str = HOLDER
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that holds its lock, watched by its pidfd, too."""
    place = node.watch.place(key)
    process = subprocess.Popen(
        [sys.executable, "-c", program, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pidfd = os.pidfd_open(process.pid)
    loop = asyncio.get_running_loop()
    try:
        node.watch.watch(key, process.pid)
        assert process.stdout is not None
        line = await loop.run_in_executor(None, process.stdout.readline)
        assert line == b"held\n"

        def gone() -> None:
            loop.remove_reader(pidfd)
            node.gone(key)

        loop.add_reader(pidfd, gone)
        yield process
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        process.kill()
        process.communicate()


def run(test: Callable[[Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        node = Node()
        await test(node)
        node.watch.close()

    asyncio.run(whole())
    names = [thread.name for thread in threading.enumerate()]
    assert THREAD_NAME not in names, "a closed watch leaves no thread"


def test_a_death_is_known_before_the_process_is_gone_and_once() -> None:
    """A pause of this process may hide the order of one death, so one of several must show it."""

    async def test(node: Node) -> None:
        orders = []
        for number in range(TRIES):
            key = WorkerKey("0", f"i{number}", 0)
            async with holder(node, key) as process:
                process.kill()
                await node.until(lambda: len(node.facts) >= 2)
            assert sorted(fact for fact, *_ in node.facts) == ["dying", "gone"]
            assert ("dying", key, -signal.SIGKILL) in node.facts
            orders.append([fact for fact, *_ in node.facts])
            node.watch.forget(key)
            node.facts.clear()
            if orders[-1] == ["dying", "gone"]:
                break
        assert ["dying", "gone"] in orders

    run(test)


def test_it_is_known_however_long_the_process_takes_to_go() -> None:
    threaded = HOLDER.replace("print(", "threading.Thread(target=input).start(); print(")

    async def test(node: Node) -> None:
        key = WorkerKey("0", "a", 0)
        async with holder(node, key, threaded) as process:
            with held_back(process.pid):
                process.kill()
                await node.until(lambda: bool(node.facts))
                assert node.facts == [("dying", key, -signal.SIGKILL)]
            await node.until(lambda: len(node.facts) >= 2)
        assert node.facts == [("dying", key, -signal.SIGKILL), ("gone", key, 0)]

    run(test)


def test_what_it_has_sent_before_is_read_first() -> None:
    """It may have said goodbye. The loop is busy here until the thread has seen the death."""
    program = HOLDER + "print('goodbye', flush=True); os._exit(3)"

    async def test(node: Node) -> None:
        key = WorkerKey("0", "a", 0)
        loop = asyncio.get_running_loop()
        async with holder(node, key, program) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            pipe = process.stdout.fileno()

            def heard() -> None:
                loop.remove_reader(pipe)
                node.facts.append(("goodbye", key, 0))

            loop.add_reader(pipe, heard)
            (thread,) = [x for x in threading.enumerate() if x.name == THREAD_NAME]
            process.stdin.write(b"end\n")
            process.stdin.flush()
            thread.join(TIMEOUT_S)
            await node.until(lambda: ("dying", key, 3) in node.facts)
        facts = [fact for fact, *_ in node.facts]
        assert facts.index("goodbye") < facts.index("dying")

    run(test)


def test_an_exec_and_a_good_end_are_no_deaths() -> None:
    cat = HOLDER + "os.execv('/bin/cat', ['cat'])"
    well = HOLDER + "os._exit(0)"

    async def test(node: Node) -> None:
        for number, program in enumerate((cat, well)):
            key = WorkerKey("0", f"i{number}", 0)
            async with holder(node, key, program) as process:
                process.communicate(b"go on\n")
                await node.until(lambda: bool(node.facts))
            assert node.facts == [("gone", key, 0)]
            node.facts.clear()

    run(test)


def test_a_forgotten_worker_is_told_no_more_and_its_lock_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(death_watch, "LOCKS_MAX", 1)

    async def test(node: Node) -> None:
        first, second = WorkerKey("0", "a", 0), WorkerKey("0", "b", 0)
        async with holder(node, first) as process:
            assert node.watch.place(second) == "", "there is one lock only"
            node.watch.watch(second, process.pid)
            node.watch.forget(first)
            process.kill()
            await node.until(lambda: bool(node.facts))
        assert node.facts == [("gone", first, 0)]
        ended = [x for x in threading.enumerate() if x.name == THREAD_NAME]
        for thread in ended:
            await asyncio.to_thread(thread.join, TIMEOUT_S)
        assert node.watch.place(second)
        async with holder(node, WorkerKey("0", "c", 0), "print('held', flush=True)"):
            pass

    run(test)


def test_without_room_for_a_thread_the_pidfd_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test(node: Node) -> None:
        key = WorkerKey("0", "a", 0)
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refused)
            assert node.watch.place(key)
            node.watch.watch(key, os.getpid())
        node.watch.forget(key)

    run(test)


def test_where_the_system_lacks_it_nothing_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futex, "_FUTEX_NUMBERS", {})

    async def test(node: Node) -> None:
        key = WorkerKey("0", "a", 0)
        assert node.watch.place(key) == ""
        node.watch.watch(key, os.getpid())
        node.watch.forget(key)

    run(test)
