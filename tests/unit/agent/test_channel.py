"""Messages and descriptors over a socket pair: whole, in order, owned by the receiver."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

from ftrun.agent.channel import FRAME_BYTES_MAX, Channel, DescriptorsLost, Frame
from ftrun.base.errors import ProtocolError


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, two = socket.socketpair()
    channels = Channel(one), Channel(two)
    yield channels
    for channel in channels:
        channel.close()


def test_messages_come_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    one, two = pair
    one.send({"op": "first"})
    one.send({"op": "second", "text": "ä" * 1000})
    assert two.receive() == [
        Frame({"op": "first"}),
        Frame({"op": "second", "text": "ä" * 1000}),
    ]
    assert two.receive() == []
    assert not two.closed


def test_descriptors_travel_with_their_message(pair: tuple[Channel, Channel]) -> None:
    one, two = pair
    read_fd, write_fd = os.pipe()
    one.send({"op": "plain"})
    one.send({"op": "pipe"}, (read_fd,))
    os.close(read_fd)
    frames = two.receive() + two.receive()
    assert [frame.message["op"] for frame in frames] == ["plain", "pipe"]
    (received,) = frames[1].fds
    os.write(write_fd, b"through")
    assert os.read(received, 100) == b"through"
    assert not os.get_inheritable(received)
    os.close(received)
    os.close(write_fd)


def test_the_end_of_the_other_side_is_seen(pair: tuple[Channel, Channel]) -> None:
    one, two = pair
    one.send({"op": "last"})
    one.close()
    assert two.receive() == [Frame({"op": "last"})]
    assert two.receive() == []
    assert two.closed
    with pytest.raises(OSError, match="Broken pipe"):
        two.send({"op": "nobody hears"})


def test_descriptors_that_nobody_took_are_closed(pair: tuple[Channel, Channel]) -> None:
    one, two = pair
    read_fd, write_fd = os.pipe()
    socket.send_fds(one._sock, [struct.pack(">I", 100)], [write_fd])
    os.close(write_fd)
    assert two.receive() == []
    two.close()
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)


def test_a_frame_over_the_limit_is_refused(pair: tuple[Channel, Channel]) -> None:
    one, two = pair
    one._sock.sendall(struct.pack(">I", FRAME_BYTES_MAX + 1))
    with pytest.raises(ProtocolError, match="bytes"):
        two.receive()


def test_descriptors_that_find_no_room_are_missed(pair: tuple[Channel, Channel]) -> None:
    one, two = pair
    one.send({"op": "pipe"}, (0, 1, 2))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(DescriptorsLost, match="ulimit -n"):
            two.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
