"""Finds this process's connections by the addresses at their ends and shuts them down.

Gloo has no call that wakes a waiter, but a closed connection wakes it. The listening socket of a
Gloo device must never be touched: Gloo terminates the process when accepting fails.

Not here: which addresses belong to a group (rendezvous.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator

from ftrun.process_groups.store import split_address

Address = tuple[str, int]
_ESTABLISHED = 1
"""TCP_ESTABLISHED of Linux."""


def shut_down_connections(listening: Address | None, peers: Collection[Address]) -> int:
    """Shut down each TCP connection of this process accepted at ``listening`` or made to a peer.

    A descriptor is duplicated before its socket is checked, so that it cannot name another socket
    between the check and the shutdown. It does not matter whether forked children share the
    descriptor, because a shutdown ends the connection.

    Returns:
        The number of connections that were shut down.
    """
    count = 0
    for connection in _connections(listening, peers):
        with contextlib.suppress(OSError):  # The other end may be gone already.
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def count_established(listening: Address, peers: Collection[Address]) -> int:
    """The number of those connections that neither end has closed."""
    return sum(_state(connection) == _ESTABLISHED for connection in _connections(listening, peers))


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
        probe.connect(address)  # A datagram socket: nothing is sent.
        return str(probe.getsockname()[0])


def _duplicate(fd: int) -> socket.socket | None:
    """A socket object on a duplicate of ``fd``; None unless it is a TCP socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        copy = os.dup(fd)
    except OSError:  # Closed meanwhile.
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


def _connections(listening: Address | None, peers: Collection[Address]) -> Iterator[socket.socket]:
    for name in os.listdir("/proc/self/fd"):
        connection = _duplicate(int(name))
        if connection is None:
            continue
        with connection:
            if _belongs(connection, listening, peers):
                yield connection


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
    except OSError:  # Not connected.
        return None
    return str(host), int(port)
