"""A connection to a server whose every request proves the token. It is opened when needed.

The first request of a connection carries no proof. The server answers it with the challenge from
which the proofs of all later requests are made (proof.py). Imports no torch, because agents use it
too.

Not here: the requests (donor.py; agents: agent/team/keeping.py), the server (listening.py).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ftrun.base import clock
from ftrun.base.addresses import split_address
from ftrun.base.errors import PeerError, ProtocolError
from ftrun.checkpoint import wire
from ftrun.checkpoint.proof import PROOF_FIELD, Proofs, read_challenge

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
CHUNK_TIMEOUT_S = 10.0
REFUSAL_BYTES_MAX = 4096
SOCKET_TIMEOUT = struct.pack("@ll", 1, 0)
"""One second, as a timeval: the kernel waits that long before deadlines are checked again."""


class DonorRefused(PeerError):
    """The donor answered and refused the request.

    ``ask_again``: it may accept a retry. ``cannot_serve``: its state cannot be served; ``text`` has
    the reason.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status, self.text = status, text
        self.ask_again, self.cannot_serve = status == 409, status == 500


@dataclass(frozen=True, slots=True)
class _Line:
    """A connection on which the server has sent its challenge."""

    pipe: wire.Pipe
    reader: wire.HeadReader
    proofs: Proofs


class ProvenLink:
    """One connection to a server, opened again after ``close``.

    Every wait has a deadline. One thread uses the link; any other may call ``cut``, which wakes
    that thread with an error.
    """

    def __init__(
        self, address: str, key: bytes, deadline: float, certificate: str | None = None
    ) -> None:
        """A link that is not connected yet.

        ``key``: of the proofs. ``certificate``: the fingerprint of the certificate that the server
        must show; None: no TLS.
        """
        self.address = address
        self._key = key
        self._certificate = certificate
        self._fields = {"host": address}
        self._deadline = deadline
        self._lock = threading.Lock()
        self._ended = False
        self._sock: socket.socket | None = None
        self._line: _Line | None = None

    def read(self, piece: memoryview) -> None:
        """Fill ``piece`` with the next bytes of a chunk."""
        assert self._line is not None
        self._line.reader.read_into(piece, self._soon(CHUNK_TIMEOUT_S))

    def cut(self) -> None:
        """Break the connection: the thread that reads from it gets an error at once."""
        with self._lock, contextlib.suppress(OSError):
            if self._sock is not None:
                self._sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Cut the connection, and never open another one."""
        with self._lock:
            self._ended = True
        self.cut()

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        with self._lock:
            sock, self._sock, self._line = self._sock, None, None
        if sock is not None:
            sock.close()

    def ask(self, method: str, path: str, more: Mapping[str, str] | None = None) -> wire.Head:
        """Send a request. Returns the head of the answer, whose body must be read next.

        Raises:
            DonorRefused: the server refuses it.
            PeerError: the server is silent or violates the protocol.
        """
        to = self._connected()
        line = f"{method} {path} HTTP/1.1"
        fields = {**self._fields, **(more or {})}
        fields[PROOF_FIELD] = to.proofs.next(line, fields)
        status, head = self._exchange(to.pipe, to.reader, line, fields)
        if status != 200:
            raise self._refusal(status, head)
        return head

    def _exchange(
        self, pipe: wire.Pipe, reader: wire.HeadReader, line: str, fields: Mapping[str, str]
    ) -> tuple[int, wire.Head]:
        """Send a request. Returns the status and the head of the answer."""
        deadline = self._soon(ANSWER_TIMEOUT_S)
        wire.send_all(pipe, wire.format_head(line, fields), deadline)
        head = reader.read(deadline)
        if head is None:
            raise wire.PeerClosed(f"{self.address} closed the connection")
        _, _, rest = head.line.partition(" ")
        status = rest[:3]
        if not (head.line.startswith("HTTP/1.1 ") and status.isdecimal()):
            raise ProtocolError(f"{self.address} does not speak HTTP/1.1")
        return int(status), head

    def _refusal(self, status: int, head: wire.Head) -> DonorRefused:
        assert self._line is not None
        text = self._text(self._line.reader, head)
        self.close()
        return DonorRefused(status, text)

    def _text(self, reader: wire.HeadReader, head: wire.Head) -> str:
        """The text of a refusal."""
        text = bytearray(self.length(head, REFUSAL_BYTES_MAX))
        reader.read_into(memoryview(text), self._soon(CHUNK_TIMEOUT_S))
        return text.decode("utf-8", "replace")

    def length(self, head: wire.Head, limit: int) -> int:
        """The length of an answer's body in bytes, ``limit`` at most."""
        length = head.content_length()
        if length > limit:
            raise ProtocolError(f"{self.address} announces {length} bytes, more than {limit}")
        return length

    def _soon(self, timeout_s: float) -> float:
        return min(clock.now() + timeout_s, self._deadline)

    def _connected(self) -> _Line:
        if self._line is None:
            self.close()
            pipe = self._connect()
            reader = wire.HeadReader(pipe)
            self._line = _Line(pipe, reader, self._proofs(pipe, reader))
        return self._line

    def _proofs(self, pipe: wire.Pipe, reader: wire.HeadReader) -> Proofs:
        """Send a request without a proof, to get the challenge."""
        status, head = self._exchange(pipe, reader, "GET / HTTP/1.1", {"host": self.address})
        text = self._text(reader, head)
        if status != 401:
            raise DonorRefused(status, text)
        return Proofs(self._key, read_challenge(head.fields), self._certificate or "")

    def _connect(self) -> wire.Pipe:
        try:
            host, port = split_address(self.address)
        except ValueError as error:
            raise ProtocolError(f"a donor cannot be reached: {error}") from None
        remaining_s = self._deadline - clock.now()
        if remaining_s <= 0:
            raise wire.PeerTimeout(f"no time left to connect to {self.address}")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        with self._lock:
            # Set before connecting, so that ``cut`` reaches it while it connects.
            self._sock = sock
            if self._ended:
                raise wire.PeerClosed(f"the connection to {self.address} is not wanted any more")
        sock.settimeout(min(CONNECT_TIMEOUT_S, remaining_s))
        sock.connect((host, port))
        sock.settimeout(None)  # blocking, for MSG_WAITALL, with timeouts:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SOCKET_TIMEOUT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SOCKET_TIMEOUT)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._certificate is None:
            return sock
        from ftrun.checkpoint import tls  # Only now: see there.

        return tls.connect(sock, self.address, self._certificate, self._soon(CONNECT_TIMEOUT_S))
