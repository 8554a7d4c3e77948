"""Messages and descriptors between the agent and its own children, over a Unix socket pair.

Frames are a 4-byte length and JSON; descriptors travel with the first byte of their frame. Both
ends are ftrun's own processes, so there is no token; there are still limits.

Not here: what the messages mean (process.py, spawner.py, tcp_stores.py).
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any

from ftrun.base.errors import ProtocolError

FRAME_BYTES_MAX = 8 << 20
FDS_MAX = 8
READ_BYTES = 1 << 18
_INT_BYTES = array.array("i").itemsize
_FDS_SPACE = socket.CMSG_LEN(FDS_MAX * _INT_BYTES)
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Frame:
    """One message and the descriptors that arrived with it; the receiver owns them."""

    message: dict[str, Any]
    fds: tuple[int, ...] = ()


def encode(message: dict[str, Any], fds: int = 0) -> bytes:
    """The bytes of a frame that is sent with ``fds`` descriptors."""
    body = json.dumps({**message, "fds": fds}).encode()
    return _LENGTH.pack(len(body)) + body


class DescriptorsLost(ProtocolError):
    """This process had no room for descriptors that were sent: their assignment to frames is
    lost.
    """


class Channel:
    """One end of the pair. ``send`` blocks; ``receive`` reads what has arrived, without waiting."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self.closed = False

    def fileno(self) -> int:
        """For poll and add_reader."""
        return self._sock.fileno()

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send one message; its descriptors stay open here.

        Raises:
            OSError: the other end is gone.
        """
        data = memoryview(encode(message, len(fds)))
        if fds:
            sent = socket.send_fds(self._sock, [data], list(fds))
            data = data[sent:]
        if data:
            self._sock.sendall(data)

    def receive(self) -> list[Frame]:
        """The complete messages that have arrived; the end of the stream sets ``closed``.

        Raises:
            DescriptorsLost: this process may open no more files.
            ProtocolError: a frame is too long.
        """
        # socket.recv_fds drops its flags, at least up to Python 3.13.
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(
                READ_BYTES, _FDS_SPACE, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return []
        except OSError:
            data, ancillary, flags = b"", [], 0
        if flags & socket.MSG_CTRUNC:
            raise DescriptorsLost("the agent may open no more files (ulimit -n)")
        for level, kind, body in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds.extend(array.array("i", body[: len(body) - len(body) % _INT_BYTES]))
        if not data:
            self.closed = True
        self._buffer += data
        return self._frames()

    def close(self) -> None:
        """Close this end and the descriptors that were not handed out."""
        self.closed = True
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _frames(self) -> list[Frame]:
        frames = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes between agent and spawner")
            if len(self._buffer) < _LENGTH.size + length:
                break
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            message = json.loads(body)
            fds = tuple(self._fds.popleft() for _ in range(message.pop("fds")))
            frames.append(Frame(message, fds))
        return frames
