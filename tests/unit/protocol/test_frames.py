"""Frames: whole messages from any cut of the bytes, deadlines kept, noise refused."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.base.errors import PeerError, ProtocolError
from ftrun.core.ids import Attempt, WorkerKey
from ftrun.core.messages import Built, Heartbeat, Lease, Notice, WorkerHello
from ftrun.protocol.frames import FrameDecoder, FrameSocket, encode_frame
from ftrun.protocol.limits import MESSAGE_BYTES_MAX

MESSAGES = [
    WorkerHello(WorkerKey("0", "aa", 0), 812, "secret"),
    Built(Attempt(1 << 32, 1)),
    Heartbeat(),
    Notice("lost", ("0",), "x" * 3000),
    Lease(7.5),
    Lease(12345.678),
]
STREAM = b"".join(encode_frame(message) for message in MESSAGES)


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, FrameSocket]]:
    left, right = (FrameSocket(sock) for sock in socket.socketpair())
    yield left, right
    left.close()
    right.close()


@given(st.lists(st.integers(0, len(STREAM)), max_size=20).map(sorted))
def test_any_cut_of_the_bytes_gives_the_same_messages(cuts: list[int]) -> None:
    decoder = FrameDecoder()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        found += decoder.feed(STREAM[start:end])
    assert found == MESSAGES


@pytest.mark.parametrize(
    "data",
    [struct.pack(">I", MESSAGE_BYTES_MAX + 1), struct.pack(">I", 3) + b"abc", b"\0\0\0\0"],
    ids=["too long", "noise", "empty"],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(data)


def test_messages_go_both_ways(pair: tuple[FrameSocket, FrameSocket]) -> None:
    left, right = pair
    for message in MESSAGES:
        left.send(message)
    assert [right.receive(1.0) for _ in MESSAGES] == MESSAGES
    right.send(Heartbeat())
    assert left.receive(1.0) == Heartbeat()


def test_what_has_arrived_together_is_received_one_by_one(
    pair: tuple[FrameSocket, FrameSocket],
) -> None:
    left, right = pair
    left.send(Heartbeat())
    left.send(Lease(8.5))
    assert right.receive(1.0) == Heartbeat()
    assert right.receive(0.0) == Lease(8.5)


def test_receive_keeps_its_deadline(pair: tuple[FrameSocket, FrameSocket]) -> None:
    start = time.monotonic()
    assert pair[1].receive(0.05) is None
    assert time.monotonic() - start >= 0.04


def test_the_end_of_the_stream_is_told(pair: tuple[FrameSocket, FrameSocket]) -> None:
    left, right = pair
    left.send(Heartbeat())
    left.close()
    assert right.receive(1.0) == Heartbeat()
    with pytest.raises(PeerError):
        right.receive(1.0)
    with pytest.raises(PeerError):
        right.send(Heartbeat())


def test_a_peer_that_does_not_drain_is_given_up(pair: tuple[FrameSocket, FrameSocket]) -> None:
    with pytest.raises(PeerError, match="drain"):
        for _ in range(10_000):
            pair[0].send(MESSAGES[3], timeout_s=0.05)


def test_close_wakes_the_receiver(pair: tuple[FrameSocket, FrameSocket]) -> None:
    told: list[BaseException] = []

    def wait() -> None:
        try:
            pair[0].receive(30.0)
        except PeerError as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    pair[0].close()
    thread.join(60.0)
    assert not thread.is_alive()
    assert len(told) == 1
    with pytest.raises(PeerError):
        pair[0].receive(0.1)


def test_many_threads_send_whole_frames(pair: tuple[FrameSocket, FrameSocket]) -> None:
    """More than the socket's buffer at once, so that sends block in the middle of frames."""
    left, right = pair
    big = Notice("k", (), "y" * 50_000)
    threads = [threading.Thread(target=left.send, args=(big,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert [right.receive(60.0) for _ in threads] == [big] * 20
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_the_token_is_not_in_a_repr() -> None:
    assert "secret" not in repr(MESSAGES[0])
