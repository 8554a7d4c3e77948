"""Detects a worker's death at once, by the lock that it holds while it lives.

A pidfd is readable only once the kernel has freed the process's memory. One thread for each worker
waits for its lock instead, because an event loop cannot. Whether a process ends, and how, is then
read from /proc: a worker that calls exec also loses its lock, and lives.

Not here: the lock (life_lock.py), the process's end itself (forked.py, late_status.py), the
consequences (core/agent/supervisor.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.base import clock, linux
from ftrun.base.life_lock import LOCKS_MAX, OWNER_DIED, RELEASED, LifeLock, LifeLocks
from ftrun.core.ids import WorkerKey

JOIN_S = 1.0
THREAD_NAME = "ftrun death watch"

Dying = Callable[[WorkerKey, int], None]
"""A worker, and its status: the exit code or minus the signal, never 0."""


@dataclass
class _Watched:
    number: int
    lock: LifeLock
    thread: threading.Thread | None = None


class DeathWatch:
    """Calls ``dying`` in the event loop's thread, at most once for each worker.

    It does nothing if the kernel or the C library does not support the locks, and for workers
    beyond ``LOCKS_MAX``: their pidfds show their ends.
    """

    def __init__(self, dying: Dying) -> None:
        self._dying = dying
        self._loop = asyncio.get_running_loop()
        self._watched: dict[WorkerKey, _Watched] = {}
        self._forgotten: list[_Watched] = []
        self._locks: LifeLocks | None = None
        with contextlib.suppress(OSError):
            self._locks = LifeLocks()

    def place(self, key: WorkerKey) -> str:
        """The place of the lock of a worker that is about to start; "": it has no lock."""
        number = self._free_number()
        if self._locks is None or number is None:
            return ""
        self._watched[key] = _Watched(number, self._locks.lock(number))
        return self._locks.place(number)

    def watch(self, key: WorkerKey, pid: int) -> None:
        """The worker runs. It takes its lock itself a little later."""
        watched = self._watched.get(key)
        if watched is not None:
            wait = (key, pid, watched)
            thread = threading.Thread(target=self._wait, args=wait, name=THREAD_NAME, daemon=True)
            with contextlib.suppress(RuntimeError):  # the node's limit of threads is reached
                thread.start()
                watched.thread = thread

    def forget(self, key: WorkerKey) -> None:
        """The worker's end is known, or it was never started."""
        watched = self._watched.pop(key, None)
        if watched is not None:
            watched.lock.release()
            self._forgotten.append(watched)

    def close(self) -> None:
        for key in list(self._watched):
            self.forget(key)
        deadline = clock.now() + JOIN_S
        for watched in self._forgotten:
            if watched.thread is not None:
                watched.thread.join(max(0.0, deadline - clock.now()))
        self._drop_ended()
        if self._locks is not None and not self._forgotten:
            self._locks.close()
        self._locks = None

    def _drop_ended(self) -> None:
        """Drop ended threads.

        A lock is not used again before the thread that waited for it has ended.
        """
        self._forgotten = [
            x for x in self._forgotten if x.thread is not None and x.thread.is_alive()
        ]

    def _free_number(self) -> int | None:
        self._drop_ended()
        used = {x.number for x in (*self._watched.values(), *self._forgotten)}
        return next((number for number in range(LOCKS_MAX) if number not in used), None)

    def _wait(self, key: WorkerKey, pid: int, watched: _Watched) -> None:
        """The thread: wait until the worker dies, or is forgotten."""
        lock = watched.lock
        # The system refuses to wait, or the loop is closed and the result is not needed.
        with contextlib.suppress(OSError, RuntimeError):
            while (word := lock.read()) != RELEASED:
                status = linux.status_of_dying(pid) if word & OWNER_DIED else None
                if status:
                    self._loop.call_soon_threadsafe(self._read_on, key, watched, status, 2)
                    return
                lock.wait_while(word)

    def _read_on(self, key: WorkerKey, watched: _Watched, status: int, rounds: int) -> None:
        """Handle first what the worker has sent before its end, which may be its goodbye.

        This data is in the sockets by now, so the loop reads it within its next two rounds.
        """
        if rounds:
            self._loop.call_soon(self._read_on, key, watched, status, rounds - 1)
        elif self._watched.get(key) is watched:  # not its replacement, which has the same name
            self._dying(key, status)
