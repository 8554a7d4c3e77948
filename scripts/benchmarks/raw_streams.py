"""A gRPC stream of a simulated agent, hand-written: HTTP/2 frames over asyncio's own transport.

A thousand real gRPC clients take as much CPU time as the lighthouse that is measured. This one
takes a tenth of that. It implements only what one stream that never breaks needs of HTTP/2: windows
that are never full, frames that fit, the answers to settings and pings.

Not here: TLS, other lighthouses, retries (protocol/rpc.py has all of them).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any

from ftrun.base.addresses import split_address
from ftrun.protocol.auth import bearer
from ftrun.protocol.rpc import ATTACH, Connected, Disconnected, Traffic
from ftrun.protocol.streams import StreamCodec, take_batch

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
STREAM = 1
FRAME_BYTES_MAX = 16_384
WINDOW_MAX = 2**31 - 1
DEFAULT_WINDOW = 65_535
INITIAL_WINDOW, MAX_FRAME = 4, 5
_HEAD, _LENGTH, _SETTING = Struct(">BHBBI"), Struct(">BI"), Struct(">HI")


class RawConnection(asyncio.Protocol):
    """The part of ``LighthouseConnection`` that a simulated agent uses."""

    def __init__(self, address: str, token: str, on_event: Callable[[Any], None]) -> None:
        self.traffic = Traffic()
        self._address, self._token, self._on_event = address, token, on_event
        self._codec = StreamCodec()
        self._out: deque[bytes] = deque()
        self._buffer = bytearray()
        self._message = bytearray()
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.Event()
        self._is_open = False

    def send(self, message: object) -> bool:
        """Send it in one batch with everything else of this loop iteration. False: no stream
        yet."""
        if not self._is_open:
            return False
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(self._codec.encode(message))
        return True

    def close(self) -> None:
        """End the stream."""
        if self._transport is not None:
            self._transport.close()

    async def run(self) -> None:
        """Connect, and serve to the end."""
        host, port = split_address(self._address)
        await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        await self._ended.wait()

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """Open the stream."""
        self._transport = transport
        settings = _SETTING.pack(INITIAL_WINDOW, WINDOW_MAX)
        more = (WINDOW_MAX - DEFAULT_WINDOW).to_bytes(4, "big")
        transport.write(
            PREFACE
            + _frame(SETTINGS, 0, 0, settings)
            + _frame(WINDOW, 0, 0, more)
            + _frame(HEADERS, END_HEADERS, STREAM, self._headers())
        )

    def data_received(self, data: bytes) -> None:
        """Take whole frames."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._buffer, at)
            end = at + _HEAD.size + (high << 16 | low)
            if len(self._buffer) < end:
                break
            self._frame_received(kind, flags, stream, bytes(self._buffer[at + _HEAD.size : end]))
            at = end
        del self._buffer[:at]

    def connection_lost(self, error: Exception | None) -> None:
        """The lighthouse, or ``close``, has ended it."""
        self._is_open = False
        self._on_event(Disconnected(self._address, str(error or "closed")))
        self._ended.set()

    # ------------------------------------------------------------ frames

    def _frame_received(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        assert self._transport is not None
        if kind == DATA:
            self._message += body
            self._take_messages()
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._transport.write(_frame(PING, ACK, 0, body))
        elif kind == HEADERS and not flags & END_STREAM:
            self._is_open = True
            self._on_event(Connected(self._address))
        elif kind in (HEADERS, RESET, GOAWAY):
            self._transport.close()

    def _take_messages(self) -> None:
        while len(self._message) >= _LENGTH.size:
            _, length = _LENGTH.unpack_from(self._message)
            end = _LENGTH.size + length
            if len(self._message) < end:
                return
            data = bytes(self._message[_LENGTH.size : end])
            del self._message[:end]
            self.traffic.count(data)
            for message in self._codec.decode(data):
                self._on_event(message)

    def _flush(self) -> None:
        while self._out and self._transport is not None:
            data = take_batch(self._out)
            self.traffic.count(data)
            data = _LENGTH.pack(0, len(data)) + data
            parts = [data[at : at + FRAME_BYTES_MAX] for at in range(0, len(data), FRAME_BYTES_MAX)]
            self._transport.write(b"".join(_frame(DATA, 0, STREAM, part) for part in parts))

    def _headers(self) -> bytes:
        """HPACK without its tables: names by their index in the static table, or literal."""
        return b"".join(
            (
                b"\x83\x86",  # :method POST, :scheme http
                b"\x04" + _text(ATTACH),
                b"\x01" + _text(self._address),
                b"\x0f\x10" + _text("application/grpc"),
                b"\x00" + _text("te") + _text("trailers"),
                b"\x0f\x08" + _text(bearer(self._token)),
            )
        )


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return _HEAD.pack(len(body) >> 16, len(body) & 0xFFFF, kind, flags, stream) + body


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data
