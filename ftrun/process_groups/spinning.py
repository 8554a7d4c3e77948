"""Detects a Gloo thread that spins after an abort, and lets it sleep.

A collective may fail while a message for it from a live peer is half received. Gloo then has no
place for the rest and stops reading that connection (``prepareRead`` of its pair.cc), even its end.
Its loop polls for readable connections and gets this one, without a pause, until the collectives
behind the failed one time out. One processor is busy, and nothing is written.

Two facts prove that nothing is written. All connections are shut down, so no bytes arrive. And the
unread bytes have not changed while the loop used ``PROOF_NS`` of CPU time, in which it tried each
connection many times. Then the connections are made to report once more and never again
(edge-triggered epoll), so that the thread sleeps.

Not here: the threads that reduce (writers.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import select
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ftrun.process_groups.sockets import Descriptor, unread
from ftrun.process_groups.writers import thread_stat

LOOP = "gloo_tcp_loop"
PROOF_NS = 2_000_000
"""One round of the loop takes microseconds."""
_EPOLL_CTL_MOD = 3
_REGISTERED = re.compile(
    r"^tfd:\s*(\d+)\s+events:\s*\w+\s+data:\s*(\w+).*?\bino:(\w+)", re.MULTILINE
)
_libc = ctypes.CDLL(None, use_errno=True)


class _Event(ctypes.Structure):
    """``struct epoll_event``, see epoll_ctl(2). Only x86-64 packs it."""

    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class Loop:
    """The loop of a group, among the threads ``tids``, and all its connections.

    Attributes:
        tid: the loop's thread; None: no thread has its name.
    """

    def __init__(self, tids: Iterable[int], connections: Sequence[Descriptor]) -> None:
        self.tid = next((tid for tid in tids if thread_stat(tid)[0] == LOOP), None)
        self._connections = connections
        self._unread: list[int] | None = None
        self._since_ns = 0

    def spins(self) -> bool:
        """Whether the loop only spins, after the connections were shut down.

        Call it repeatedly: it compares with the previous call. True: proved, and the thread goes to
        sleep.
        """
        seen, used_ns = unread(self._connections), self._used_ns()
        if used_ns is None:
            return False
        if seen != self._unread:
            self._unread, self._since_ns = seen, used_ns
            return False
        if used_ns < self._since_ns + PROOF_NS:
            return False
        for connection in self._connections:
            _report_once(connection)
        return True

    def _used_ns(self) -> int | None:
        """The thread's CPU time; None: unknown, or it has ended."""
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/self/task/{self.tid}/schedstat").read_text().split()[0])
        return None


def _report_once(connection: Descriptor) -> None:
    for epoll, data in _registrations(connection):
        event = _Event(select.EPOLLIN | select.EPOLLET, data)
        _libc.epoll_ctl(epoll, _EPOLL_CTL_MOD, connection.fd, ctypes.byref(event))


def _registrations(connection: Descriptor) -> Iterator[tuple[int, int]]:
    """The epoll descriptors that watch a connection, each with its associated data: see proc(5)."""
    for name in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/self/fdinfo/{name}").read_text()
            for fd, data, inode in _REGISTERED.findall(text):
                if Descriptor(int(fd), int(inode, 16)) == connection:
                    yield int(name), int(data, 16)
