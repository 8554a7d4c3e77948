"""Finds this process's connections by the addresses at their ends, and shuts them down.

Gloo has no call that wakes a waiter, but a closed connection wakes it. The listening socket of a
Gloo device must never be touched, because Gloo terminates the process when accepting fails.

Not here: which addresses belong to a group (rendezvous.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import termios
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ftrun.process_groups.store import split_address

Address = tuple[str, int]
_INT = struct.Struct("i")
_ESTABLISHED = 1
"""TCP_ESTABLISHED of Linux."""
UNREAD_BYTES_MAX = 208 << 10
"""Linux doubles it. Measured: reductions are slower with half of it, and with a megabyte."""


class Descriptor(NamedTuple):
    """A descriptor with the inode of its socket. If the inode differs, the descriptor was
    reused."""

    fd: int
    inode: int


def find_connections(listening: Address | None, peers: Collection[Address]) -> list[Descriptor]:
    """All TCP connections of this process that were accepted at ``listening`` or made to a peer."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        connection = _duplicate(int(name))
        if connection is None:
            continue
        with connection:
            if _belongs(connection, listening, peers):
                found.append(Descriptor(int(name), _inode(connection)))
    return found


def shut_down(connections: Iterable[Descriptor]) -> None:
    """Shut connections down.

    A descriptor is duplicated before its socket is checked, so that it cannot refer to another
    socket between the check and the shutdown. It does not matter whether forked children share the
    descriptor, because a shutdown ends the connection.
    """
    for connection in _open(connections):
        with contextlib.suppress(OSError):  # the other end may be gone already
            connection.shutdown(socket.SHUT_RDWR)


def count_established(connections: Iterable[Descriptor]) -> int:
    """The number of these connections that neither end has closed."""
    return sum(_state(connection) == _ESTABLISHED for connection in _open(connections))


def keep_little_unread(connections: Iterable[Descriptor]) -> None:
    """Limit how many unread bytes a connection to a process of this machine buffers.

    Linux would buffer megabytes. Those have left the processor's cache when the peer reads them,
    and then a reduction takes a quarter more CPU time.
    """
    for connection in _open(connections):
        own, peer = _end(connection.getsockname), _end(connection.getpeername)
        if own is not None and peer is not None and own[0] == peer[0]:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES_MAX)


def unread(connections: Iterable[Descriptor]) -> list[int]:
    """The receivable bytes of each open connection. Waits while more are arriving."""
    counts = []
    for connection in _open(connections):
        answer = fcntl.ioctl(connection, termios.FIONREAD, bytes(_INT.size))
        counts.append(_INT.unpack(answer)[0])
    return counts


def is_listening(address: Address) -> bool:
    """Whether a socket of this process listens at ``address``."""
    for name in os.listdir("/proc/self/fd"):
        candidate = _duplicate(int(name))
        if candidate is None:
            continue
        with candidate:
            if _accepts(candidate) and _end(candidate.getsockname) == address:
                return True
    return False


def local_address(remote: str) -> str:
    """The numeric address of the interface that leads to ``remote``, a ``host:port``."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        *split_address(remote), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def _duplicate(fd: int) -> socket.socket | None:
    """A socket object on a duplicate of ``fd``; None unless it is a TCP socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        copy = os.dup(fd)
    except OSError:  # closed meanwhile
        return None
    try:
        candidate = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    if candidate.family in (socket.AF_INET, socket.AF_INET6) and (
        candidate.type & socket.SOCK_STREAM
    ):
        return candidate
    candidate.close()
    return None


def _open(connections: Iterable[Descriptor]) -> Iterator[socket.socket]:
    """The open connections, each as a duplicate."""
    for fd, inode in connections:
        connection = _duplicate(fd)
        if connection is None:
            continue
        with connection:
            if _inode(connection) == inode:
                yield connection


def _inode(connection: socket.socket) -> int:
    return os.fstat(connection.fileno()).st_ino


def _state(connection: socket.socket) -> int:
    """The first byte of Linux's tcp_info."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _belongs(
    connection: socket.socket, listening: Address | None, peers: Collection[Address]
) -> bool:
    if _accepts(connection):
        return False
    remote = _end(connection.getpeername)
    if remote is None:
        return False
    return remote in peers or (listening is not None and _end(connection.getsockname) == listening)


def _accepts(candidate: socket.socket) -> bool:
    return candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


def _end(name_of: object) -> Address | None:
    if not callable(name_of):
        return None
    try:
        host, port, *_ = name_of()
    except OSError:  # not connected
        return None
    return str(host), int(port)
