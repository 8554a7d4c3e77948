"""The little HTTP/1.1 that donors and receivers of a state speak, with a limit on everything.

Requests have no body; answers have a Content-Length. Sockets are non-blocking: every wait is a poll
with a deadline.
Not here: routes and what they answer (serve.py), and who asks what (heal.py).
"""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftrun import clock
from ftrun.errors import PeerError, ProtocolError

HEAD_BYTES_MAX = 16 << 10
FIELDS_MAX = 32
PIECES_PER_CALL = 512
"""Buffers per sendmsg or recvmsg: the kernel takes 1024 at most."""

TOKEN_FIELD = "authorization"
RECEIVER_FIELD = "x-ftrun-receiver"
DIGEST_FIELD = "x-ftrun-digest"


class PeerTimeout(PeerError):
    """The other side of a socket was silent, or took nothing, until the deadline."""


class PeerClosed(PeerError):
    """The other side closed the connection in the middle of something."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request's or an answer's first line and fields, names in lower case."""

    line: str
    fields: Mapping[str, str]

    def content_length(self) -> int:
        """The length of the body that follows."""
        text = self.fields.get("content-length", "0")
        if not text.isdecimal() or len(text) > 18:
            raise ProtocolError(f"a Content-Length of {text[:40]!r}")
        return int(text)


class HeadReader:
    """Reads heads from a socket; keeps what came after a head for whoever reads the body."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = bytearray()

    def read(self, deadline: float) -> Head | None:
        """The next head, or None if the peer closed instead of beginning one.

        Raises:
            PeerTimeout: it was not whole at the deadline.
            ProtocolError: it is too long, or no HTTP.
        """
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            if len(self._rest) > HEAD_BYTES_MAX:
                raise ProtocolError(f"an HTTP head longer than {HEAD_BYTES_MAX} bytes")
            wait_for(self._sock, select.POLLIN, deadline)
            data = self._sock.recv(4096)
            if not data and self._rest:
                raise PeerClosed("the peer closed the connection within an HTTP head")
            if not data:
                return None
            self._rest += data
        head = parse_head(bytes(self._rest[:end]))
        del self._rest[: end + 4]
        return head

    def read_into(self, views: Sequence[memoryview], deadline: float) -> None:
        """Fill ``views`` with the bytes that come next.

        Raises:
            PeerTimeout: they did not come before the deadline.
            PeerClosed: the peer closed the connection before that.
        """
        pending = _take(self._rest, list(views))
        while pending:
            try:
                got = self._receive(pending[:PIECES_PER_CALL])
            except BlockingIOError:
                wait_for(self._sock, select.POLLIN, deadline)
                continue
            if got == 0:
                raise PeerClosed("the peer closed the connection within a body")
            pending = advance(pending, got)

    def _receive(self, views: list[memoryview]) -> int:
        if len(views) == 1:
            return self._sock.recv_into(views[0])
        return self._sock.recvmsg_into(views)[0]


def parse_head(data: bytes) -> Head:
    """The head that ``data`` (without the empty line) is.

    Raises:
        ProtocolError: it is none, or has too many fields.
    """
    try:
        first, *lines = data.decode("ascii").split("\r\n")
        pairs = [line.split(":", 1) for line in lines]
        fields = {name.strip().lower(): value.strip() for name, value in pairs}
    except ValueError as why:
        raise ProtocolError("the peer does not speak HTTP") from why
    if len(lines) > FIELDS_MAX:
        raise ProtocolError(f"an HTTP head of {len(lines)} fields")
    return Head(first, fields)


def format_head(line: str, fields: Mapping[str, str | int]) -> bytes:
    """A head as it goes over the wire."""
    text = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{line}\r\n{text}\r\n".encode("ascii")


def send_all(sock: socket.socket, data: bytes, deadline: float) -> None:
    """Send ``data``, all of it, before the deadline."""
    pending = [memoryview(data)]
    while pending:
        sent = send_now(sock, pending)
        pending = advance(pending, sent)
        if not sent:
            wait_for(sock, select.POLLOUT, deadline)


def send_now(sock: socket.socket, views: Sequence[memoryview]) -> int:
    """Send what the kernel takes at once: 0 if it takes nothing. Never waits."""
    try:
        return sock.sendmsg(views[:PIECES_PER_CALL])
    except BlockingIOError:
        return 0


def advance(views: list[memoryview], nbytes: int) -> list[memoryview]:
    """``views`` without their first ``nbytes`` bytes."""
    index = 0
    while index < len(views) and nbytes >= views[index].nbytes:
        nbytes -= views[index].nbytes
        index += 1
    rest = views[index:]
    if nbytes:
        rest[0] = rest[0][nbytes:]
    return rest


def wait_for(sock: socket.socket, event: int, deadline: float) -> None:
    """Wait until ``sock`` is ready for poll ``event``.

    Raises:
        PeerTimeout: it was not before the deadline.
    """
    poller = select.poll()
    poller.register(sock, event)
    remaining_s = deadline - clock.now()
    if remaining_s <= 0 or not poller.poll(remaining_s * 1000):
        raise PeerTimeout("the peer neither sent nor took anything before the deadline")


def _take(rest: bytearray, views: list[memoryview]) -> list[memoryview]:
    """Move what lies in ``rest`` into ``views``; what is left to fill."""
    while rest and views:
        count = min(len(rest), views[0].nbytes)
        views[0][:count] = rest[:count]
        del rest[:count]
        views = advance(views, count)
    return views
