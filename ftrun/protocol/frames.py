"""Frames between an agent and its workers: a 4-byte big-endian length, then an Envelope.

``FrameDecoder`` is the pure part, and the agent's; ``FrameSocket`` serves threads (the worker's
link). Not here: which workers may connect (the agent checks that).
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections import deque
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import PeerError, ProtocolError
from ftrun.protocol.codec import decode, encode
from ftrun.protocol.limits import MESSAGE_BYTES_MAX

HEADER = struct.Struct(">I")
CHUNK_BYTES = 64 * 1024
SEND_TIMEOUT_S = 30.0


def encode_frame(message: object) -> bytes:
    """One message as a frame.

    Raises:
        ProtocolError: it is no message, or over a limit.
    """
    data = encode(message)
    return HEADER.pack(len(data)) + data


class FrameDecoder:
    """Turns incoming bytes into whole messages. After an error the stream must be closed."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that ``data`` completes.

        Raises:
            ProtocolError: a frame is too long or holds no message.
        """
        self._buffer += data
        found = []
        start = 0
        while (end := self._frame_end(start)) is not None:
            found.append(decode(bytes(self._buffer[start + HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return found

    def _frame_end(self, start: int) -> int | None:
        """Where the frame that begins at ``start`` ends, if it is whole."""
        if len(self._buffer) - start < HEADER.size:
            return None
        end = start + HEADER.size + _checked_length(self._buffer, start)
        return end if end <= len(self._buffer) else None


def _checked_length(data: bytes | bytearray, start: int = 0) -> int:
    (length,) = HEADER.unpack_from(data, start)
    if length > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a frame of {length} bytes is over {MESSAGE_BYTES_MAX}")
    return int(length)


class FrameSocket:
    """Frames over a connected stream socket, for threads. Owns the socket.

    Any thread may send; one thread receives. No call waits longer than its deadline.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder = FrameDecoder()
        self._received: deque[Any] = deque()
        self._send_lock = threading.Lock()

    def send(self, message: object, timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Send one message whole.

        Raises:
            ProtocolError: it is no message; nothing was sent.
            PeerError: the peer is gone, or did not drain within ``timeout_s``; the stream must be
                closed.
        """
        frame = memoryview(encode_frame(message))
        deadline = clock.now() + timeout_s
        with self._send_lock:
            while frame:
                frame = frame[self._send_some(frame, deadline) :]

    def receive(self, timeout_s: float) -> Any | None:
        """The next message, or None if none came within ``timeout_s``.

        Raises:
            ProtocolError: the bytes are no message.
            PeerError: the peer has closed the stream.
        """
        deadline = clock.now() + timeout_s
        while not self._received:
            data = self._receive_some(deadline)
            if data is None:
                return None
            if not data:
                raise PeerError("the peer has closed the stream")
            self._received.extend(self._decoder.feed(data))
        return self._received.popleft()

    def close(self) -> None:
        """Close the socket. A thread that waits in ``receive`` sees the end of the stream."""
        self.shut_down()
        self._sock.close()

    def shut_down(self) -> None:
        """End the stream in both directions, here and for the peer; the descriptor stays open."""
        with contextlib.suppress(OSError):  # the peer may have been faster
            self._sock.shutdown(socket.SHUT_RDWR)

    def _send_some(self, frame: memoryview, deadline: float) -> int:
        while True:
            try:
                return self._sock.send(frame, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if not self._wait(select.POLLOUT, deadline):
                    raise PeerError("the peer does not drain the stream") from None
            except OSError as error:
                raise PeerError(f"the stream broke: {error}") from error

    def _receive_some(self, deadline: float) -> bytes | None:
        """Bytes, b"" at the end of the stream, None when the deadline has passed."""
        while True:
            try:
                return self._sock.recv(CHUNK_BYTES)
            except BlockingIOError:
                if not self._wait(select.POLLIN, deadline):
                    return None
            except OSError as error:
                raise PeerError(f"the stream broke: {error}") from error

    def _wait(self, events: int, deadline: float) -> bool:
        left_s = deadline - clock.now()
        if left_s <= 0:
            return False
        fd = self._sock.fileno()
        if fd < 0:
            raise PeerError("the stream was closed here")
        poll = select.poll()
        poll.register(fd, events)
        return bool(poll.poll(left_s * 1000))
