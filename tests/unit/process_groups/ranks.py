"""Real processes that build groups with each other, driven step by step from a test."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import TCPStore, Work

from ftrun.base import clock
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.process_groups.writers import wait_for_sleep, wait_for_writers

DEADLINE_S = 60.0
LATE_S = 0.3
HOST = "127.0.0.1"


def open_store() -> tuple[TCPStore, str]:
    """A TCPStore on the loopback alone, as the launcher opens it, and its address."""
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        HOST,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, f"{HOST}:{port}"


class Member:
    """Runs in the process of one rank: a group or two, and a reduction that may hang."""

    def __init__(self) -> None:
        self.groups: dict[str, BuiltGroup] = {}
        self.woken_s: dict[str, float] = {}
        self._sending: Work | None = None
        self._waiter: threading.Thread | None = None
        self._woken = threading.Event()

    def build(self, store: str, prefix: str, rank: int, size: int, timeout_s: float = 10) -> float:
        """Build a group and keep it; returns the seconds of the build."""
        began = clock.now()
        group = ProcessGroupGloo().build(store, prefix, rank, size, HOST, timeout_s)
        took_s = clock.now() - began
        self.groups[prefix] = group
        return took_s

    def reduce(self, prefix: str, value: float) -> tuple[float, float]:
        """All-reduce one number: the sum, and the seconds it took."""
        tensor = torch.full((1000,), value)
        began = clock.now()
        self.groups[prefix].allreduce([tensor]).wait()
        return tensor[0].item(), clock.now() - began

    def start_waiting(self, prefix: str) -> None:
        """Issue an all-reduce that a peer does not join; note when waiter and callback wake."""
        work = self.groups[prefix].allreduce([torch.ones(1000)])
        self._woken.clear()
        work.get_future().add_done_callback(self._note_callback)

        def wait() -> None:
            with contextlib.suppress(RuntimeError):
                work.wait()
            self.woken_s["waiter"] = clock.now()

        self._waiter = threading.Thread(target=wait)
        self._waiter.start()

    def settle(self, prefix: str) -> None:
        """Wait until no message is in flight: an abort of Gloo may lose it (gloo.py)."""
        wait_for_sleep(self.groups[prefix].threads_sleep)

    def start_sending(self, prefix: str, floats: int) -> None:
        """Send this many numbers to rank 0, and do not wait."""
        self._sending = self.groups[prefix].send([torch.ones(floats)], 0)

    def _note_callback(self, future: torch.futures.Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):
            future.value()
            return  # Woken without an error: the test will miss the event.
        self.woken_s["callback"] = clock.now()
        self._woken.set()

    def woken(self) -> bool:
        """Whether waiter and callback have woken, within the deadline."""
        assert self._waiter is not None
        self._waiter.join(DEADLINE_S)
        return self._woken.wait(DEADLINE_S) and not self._waiter.is_alive()

    def abort(self, prefix: str) -> dict[str, float]:
        """Abort; milliseconds until the call returned, the waiter woke and the callback ran."""
        began = clock.now()
        self.groups[prefix].abort()
        returned = clock.now()
        assert self.woken()
        times = {"abort() returned": returned, **self.woken_s}
        return {name: (then - began) * 1e3 for name, then in times.items()}

    def written_late(self, store: str, prefix: str, rank: int, delay_s: float) -> int | None:
        """Abort large reductions in flight; returns how many tensors change after writers' end.

        None: the machine was so busy that they have not ended.
        """
        pg = ProcessGroupGloo(timedelta(seconds=2))
        group = pg.build(store, prefix, rank, 2, HOST, 60)
        tensors = [torch.ones(4 << 20) for _ in range(4)]
        works = [group.allreduce([tensor]) for tensor in tensors]
        time.sleep(delay_s)
        group.abort()
        has_settled = wait_for_writers(works, group.threads_sleep)
        for tensor in tensors:
            tensor.fill_(7.0)
        time.sleep(LATE_S)
        self.groups[prefix] = group
        changed = sum(bool((tensor != 7.0).any()) for tensor in tensors)
        return changed if has_settled else None

    def shutdown(self, prefix: str) -> None:
        """Release a group."""
        self.groups.pop(prefix).shutdown()

    def cycle(self, store: str, rank: int, size: int, cycles: int) -> list[Holdings]:
        """Build, reduce, abort a waiting reduction, release; the holdings after each round."""
        counts = []
        for number in range(cycles):
            prefix = f"cycle/{number}"
            group = ProcessGroupGloo().build(store, prefix, rank, size, HOST, 10)
            group.allreduce([torch.ones(10)]).wait()
            if rank == 0:
                work = group.allreduce([torch.ones(10)])
                group.abort()
                with contextlib.suppress(RuntimeError):
                    work.wait()
                del work
            group.shutdown()
            counts.append(Holdings.now())
        return counts


class Holdings(NamedTuple):
    """A process's resources, whose number must not grow (P7)."""

    descriptors: int
    threads: int
    memory_kib: int

    @classmethod
    def now(cls) -> Holdings:
        """The holdings of this process."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        fds, threads = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))
        return cls(fds, threads, pages * os.sysconf("SC_PAGESIZE") // 1024)


class Rank:
    """The test's end of one process."""

    def __init__(self, process: Any, connection: Connection) -> None:
        self._process = process
        self._connection = connection

    def ask(self, name: str, *arguments: Any) -> None:
        """Have the process call a method of its Member; the answer is fetched by ``answer``."""
        self._connection.send((name, arguments))

    def answer(self) -> Any:
        """The result of the oldest unanswered call; raises what it raised."""
        assert self._connection.poll(DEADLINE_S), "the rank did not answer within its deadline"
        error, result = self._connection.recv()
        if error is not None:
            raise error
        return result

    def call(self, name: str, *arguments: Any) -> Any:
        """``ask`` and ``answer``."""
        self.ask(name, *arguments)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(DEADLINE_S)

    def end(self) -> None:
        """Let the process end."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(DEADLINE_S)
        if self._process.is_alive():
            self.kill()
        self._connection.close()


def call_all(ranks: list[Rank], name: str, *arguments: Any) -> list[Any]:
    """Make the same call in all processes at once."""
    return call_each(ranks, name, lambda _: arguments)


def call_each(
    ranks: list[Rank], name: str, arguments: Callable[[int], tuple[Any, ...]]
) -> list[Any]:
    """Make a call in all processes at once, with arguments by rank."""
    for number, rank in enumerate(ranks):
        rank.ask(name, *arguments(number))
    return [rank.answer() for rank in ranks]


@contextlib.contextmanager
def started(count: int) -> Iterator[list[Rank]]:
    """``count`` processes, which end with the context."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ranks", "ftrun.process_groups.gloo"])
    ranks = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        ranks.append(Rank(process, ours))
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    member = Member()
    while (request := connection.recv()) is not None:
        name, arguments = request
        try:
            connection.send((None, getattr(member, name)(*arguments)))
        except Exception as error:  # noqa: BLE001  # whatever it is, the test shall see it
            connection.send((error, None))


def signal_after(delay_s: float, abort: AbortSignal) -> threading.Timer:
    """Trigger an abort a little later, from another thread."""
    timer = threading.Timer(delay_s, abort.trigger)
    timer.start()
    return timer
