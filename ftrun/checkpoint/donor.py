"""A receiver's connection to one donor: connect when needed, ask, read."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping, Sequence

import xxhash

from ftrun import clock
from ftrun.checkpoint import wire
from ftrun.checkpoint.header import HEADER_BYTES_MAX
from ftrun.checkpoint.layout import DIGEST_BYTES
from ftrun.core.ids import Tag
from ftrun.errors import PeerError, ProtocolError
from ftrun.protocol.auth import bearer

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
CHUNK_TIMEOUT_S = 10.0
DONE_TIMEOUT_S = 1.0
REFUSAL_BYTES_MAX = 4096
PATIENCE = struct.pack("@ll", 1, 0)
"""A second, as a timeval: how long the kernel waits before deadlines are looked at again."""


class DonorRefused(PeerError):
    """The donor answered, and not with what was asked. ``ask_again``: it may later."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.ask_again = status == 409


class DonorLink:
    """One connection to a donor's state server, opened again after ``close``.

    Every wait has a deadline. Used by one thread; ``cut`` may
    be called from any and wakes that one with an error.
    """

    def __init__(self, address: str, tag: Tag, token: str, receiver: str, deadline: float) -> None:
        self.address = address
        self._base = f"/state/{tag.path()}"
        self._fields = {
            "host": address,
            wire.TOKEN_FIELD: bearer(token),
            wire.RECEIVER_FIELD: receiver,
        }
        self._deadline = deadline
        self._lock = threading.Lock()
        self._ended = False
        self._sock: socket.socket | None = None
        self._reader: wire.HeadReader | None = None

    def header(self) -> bytes:
        """The donor's header, checked against its digest.

        Raises:
            DonorRefused: it does not offer the tag (yet, or any more), or knows another token.
            PeerError: it is silent or speaks nonsense.
        """
        head = self._ask("GET", "header")
        body = bytearray(self._length(head, HEADER_BYTES_MAX))
        self.read(memoryview(body))
        if xxhash.xxh3_64_hexdigest(body) != head.fields.get(wire.DIGEST_FIELD):
            self.close()
            raise ProtocolError(f"the state header came corrupt from {self.address}")
        return bytes(body)

    def request(self, start: int, stop: int, lacking: Sequence[tuple[int, int]]) -> None:
        """Ask for the bytes ``[start, stop)``: whole chunks, behind each its digest.

        ``lacking``: the chunks that have not come, from this donor or another.
        """
        lacks = wire.format_ranges(lacking)
        fields = {} if lacks is None else {wire.LACKS_FIELD: lacks}
        self._ask("GET", f"data?offset={start}&length={stop - start}", fields)

    def read(self, piece: memoryview) -> None:
        """Fill ``piece`` with what comes next of a chunk."""
        assert self._reader is not None
        self._reader.read_into(piece, self._soon(CHUNK_TIMEOUT_S))

    def read_digest(self) -> bytes:
        """The digest that comes behind a chunk."""
        digest = bytearray(DIGEST_BYTES)
        self.read(memoryview(digest))
        return bytes(digest)

    def done(self) -> None:
        """Tell the donor that nothing more is wanted. It finds out by itself if this fails."""
        with contextlib.suppress(PeerError, OSError):
            self._deadline = clock.now() + DONE_TIMEOUT_S
            self._ask("POST", "done")

    def cut(self) -> None:
        """Break the connection: the thread that reads from it gets an error at once."""
        with self._lock, contextlib.suppress(OSError):
            if self._sock is not None:
                self._sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Cut the connection, and open no other."""
        with self._lock:
            self._ended = True
        self.cut()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        with self._lock:
            sock, self._sock, self._reader = self._sock, None, None
        if sock is not None:
            sock.close()

    def _ask(self, method: str, target: str, more: Mapping[str, str] | None = None) -> wire.Head:
        sock, reader = self._connected()
        deadline = self._soon(ANSWER_TIMEOUT_S)
        line = f"{method} {self._base}/{target} HTTP/1.1"
        wire.send_all(sock, wire.format_head(line, {**self._fields, **(more or {})}), deadline)
        head = reader.read(deadline)
        if head is None:
            raise wire.PeerClosed(f"{self.address} closed the connection")
        _, _, rest = head.line.partition(" ")
        status = rest[:3]
        if not (head.line.startswith("HTTP/1.1 ") and status.isdecimal()):
            raise ProtocolError(f"{self.address} does not speak HTTP/1.1")
        if status != "200":
            raise self._refusal(int(status), head)
        return head

    def _refusal(self, status: int, head: wire.Head) -> DonorRefused:
        text = bytearray(self._length(head, REFUSAL_BYTES_MAX))
        self.read(memoryview(text))
        self.close()
        return DonorRefused(status, text.decode("utf-8", "replace"))

    def _length(self, head: wire.Head, limit: int) -> int:
        length = head.content_length()
        if length > limit:
            raise ProtocolError(f"{self.address} announces {length} bytes, more than {limit}")
        return length

    def _soon(self, timeout_s: float) -> float:
        return min(clock.now() + timeout_s, self._deadline)

    def _connected(self) -> tuple[socket.socket, wire.HeadReader]:
        if self._sock is not None and self._reader is not None:
            return self._sock, self._reader
        host, _, port = self.address.rpartition(":")
        remaining_s = self._deadline - clock.now()
        if remaining_s <= 0:
            raise wire.PeerTimeout(f"no time left to connect to {self.address}")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        with self._lock:
            # Before it is connected, so that ``cut`` reaches it while it connects.
            self._sock, self._reader = sock, wire.HeadReader(sock)
            if self._ended:
                raise wire.PeerClosed(f"the connection to {self.address} is not wanted any more")
        sock.settimeout(min(CONNECT_TIMEOUT_S, remaining_s))
        sock.connect((host.strip("[]"), int(port)))
        sock.settimeout(None)  # blocking, for MSG_WAITALL, but not for ever:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, self._reader
