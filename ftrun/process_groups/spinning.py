"""Tells a thread of Gloo's that spins after an abort from one that works, and lets it sleep.

A collective may fail while a message of a live peer for it is half received. Gloo then knows no
place for the rest and reads that connection no more (``prepareRead`` of its pair.cc), not even its
end. Its loop asks for readable connections and gets this one, without a pause, until the
collectives behind the failed one time out: one processor is busy, and nothing is written.

Proof that nothing is: all connections are shut down, so no bytes arrive; what is unread has not
changed while the loop used ``PROOF_NS`` of a processor, in which it tried each connection many
times. Then the connections report themselves once more and never again (edge-triggered epoll).

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
    """``struct epoll_event``, see epoll_ctl(2); x86-64 alone packs it."""

    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class Loop:
    """The loop of a group, among the threads ``tids``, and all its connections.

    Attributes:
        tid: its thread; None: none has its name.
    """

    def __init__(self, tids: Iterable[int], connections: Sequence[Descriptor]) -> None:
        self.tid = next((tid for tid in tids if thread_stat(tid)[0] == LOOP), None)
        self._connections = connections
        self._unread: list[int] | None = None
        self._since_ns = 0

    def spins(self) -> bool:
        """Whether it only spins, after the connections were shut down.

        Call it again and again, since it compares with what it saw before. True: it is proved, and
        the thread goes to sleep.
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
        """The processor time of the thread; None: unknown, or it has ended."""
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/self/task/{self.tid}/schedstat").read_text().split()[0])
        return None


def _report_once(connection: Descriptor) -> None:
    for epoll, data in _registrations(connection):
        event = _Event(select.EPOLLIN | select.EPOLLET, data)
        _libc.epoll_ctl(epoll, _EPOLL_CTL_MOD, connection.fd, ctypes.byref(event))


def _registrations(connection: Descriptor) -> Iterator[tuple[int, int]]:
    """The epoll descriptors that watch it, each with the data that goes with it: see proc(5)."""
    for name in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/self/fdinfo/{name}").read_text()
            for fd, data, inode in _REGISTERED.findall(text):
                if Descriptor(int(fd), int(inode, 16)) == connection:
                    yield int(name), int(data, 16)
