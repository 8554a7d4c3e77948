"""The answer to a gRPC client that has reached a port for HTTP/1.1: an HTTP/2 error with words.

Without it the client reports an error of the protocol and nobody learns what the port is. Not here:
the port (lighthouse/web.py).
"""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every HTTP/2 client sends first; no HTTP/1.1 request begins so."""

UNIMPLEMENTED = 12
_SETTINGS, _HEADERS, _GOAWAY = 4, 1, 7
_ACK = 1
_END_STREAM_AND_HEADERS = 5
_STATUS_200 = b"\x88"  # row 8 of HPACK's static table
_LITERAL = b"\x00"  # name and value follow, and are in no table
_TEXT_BYTES_MAX = 1000
_HEAD_BYTES = 9


def is_http2(data: bytes) -> bool | None:
    """Whether a connection's first bytes are an HTTP/2 client's; None: too few to tell."""
    if data.startswith(PREFACE):
        return True
    return None if PREFACE.startswith(data) else False


class Http2Refusal:
    """One connection of such a client: the first call gets UNIMPLEMENTED and ``text``.

    ``is_over``: it has been sent. The client is to end the connection, because gRPC's own reports
    an end in place of an answer that comes with it.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._head = b""
        self._skip = 0
        self.is_over = False

    def begin(self) -> bytes:
        """What is sent as soon as the preface has come."""
        return _frame(_SETTINGS, 0, 0, b"")

    def feed(self, data: bytes) -> bytes:
        """Read what came behind the preface; returns what is to be sent.

        Of each frame only the head is kept: 9 bytes.
        """
        answer = b""
        while data and not self.is_over:
            skipped = min(self._skip, len(data))
            data, self._skip = data[skipped:], self._skip - skipped
            missing = _HEAD_BYTES - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) == _HEAD_BYTES:
                answer += self._answer(self._head)
                self._skip = int.from_bytes(self._head[:3], "big")
                self._head = b""
        return answer

    def _answer(self, head: bytes) -> bytes:
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        if kind == _SETTINGS and not flags & _ACK:
            return _frame(_SETTINGS, _ACK, 0, b"")
        if kind != _HEADERS:
            return b""
        self.is_over = True
        headers = (
            _STATUS_200
            + _field(b"content-type", b"application/grpc")
            + _field(b"grpc-status", b"%d" % UNIMPLEMENTED)
            + _field(b"grpc-message", _percent_encoded(self._text))
        )
        return _frame(_HEADERS, _END_STREAM_AND_HEADERS, stream, headers) + _frame(
            _GOAWAY, 0, 0, struct.pack(">II", stream, 0)
        )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: bytes, value: bytes) -> bytes:
    return _LITERAL + _string(name) + _string(value)


def _string(data: bytes) -> bytes:
    """HPACK's string: a length in 7 bits, or beyond that in groups of 7, then the bytes."""
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, prefix = len(data) - 127, bytearray([127])
    while rest >= 128:
        prefix.append(rest % 128 + 128)
        rest //= 128
    prefix.append(rest)
    return bytes(prefix) + data


def _percent_encoded(text: str) -> bytes:
    """gRPC's form of a message: all but printable ASCII, and "%", as %XX."""
    raw = text.encode()[:_TEXT_BYTES_MAX]
    return b"".join(
        bytes([byte]) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in raw
    )
