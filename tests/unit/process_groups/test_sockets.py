"""This process's connections: how much of them its peers may leave unread."""

from __future__ import annotations

import os
import socket

import pytest

from ftrun.process_groups.sockets import (
    UNREAD_BYTES_MAX,
    Descriptor,
    find_connections,
    keep_little_unread,
)


@pytest.mark.parametrize(("host", "is_little"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_little_is_unread_at_a_peer_of_this_machine(host: str, is_little: bool) -> None:
    """Another address stands for another machine: a long way needs more than that under way."""
    with socket.create_server((host, 0)) as server:
        listening = server.getsockname()
        with (
            socket.create_connection(listening, source_address=("127.0.0.1", 0)) as made,
            server.accept()[0] as accepted,
        ):
            both = find_connections(listening, {listening})
            inodes = [os.fstat(x.fileno()).st_ino for x in (made, accepted)]
            assert {x.inode for x in both} == {*inodes}
            before = [_room(x) for x in (made, accepted)]
            keep_little_unread([*both, Descriptor(made.fileno(), inode=0)])
            after = [_room(x) for x in (made, accepted)]
            assert after == ([2 * UNREAD_BYTES_MAX] * 2 if is_little else before)


def _room(connection: socket.socket) -> int:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
