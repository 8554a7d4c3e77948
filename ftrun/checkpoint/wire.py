"""The part of HTTP/1.1 that donors and receivers of a state use, with a limit on everything.

Requests have no body; answers have a Content-Length. Every wait has a deadline: sockets are
non-blocking, or have a short timeout of their own after which deadlines are checked. Not here: TLS
(tls.py), routes and answers (requests.py, serve.py), the receiver (heal.py).
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ftrun.base import clock
from ftrun.base.errors import PeerError, ProtocolError

HEAD_BYTES_MAX = 16 << 10
FIELDS_MAX = 32
PIECE_BYTES = 512 << 10
"""The unit of hashing and of a socket call."""
PIECES_PER_CALL = 512
"""Buffers per sendmsg: the kernel takes 1024 at most."""

RECEIVER_FIELD = "x-ftrun-receiver"
CATCHES_UP_FIELD = "x-ftrun-catches-up"
"""In any request for a state: a state that is kept between two steps is accepted too."""
DIGEST_FIELD = "x-ftrun-digest"
LACKS_FIELD = "x-ftrun-lacks"
"""In a request for data: the chunks that no donor has sent yet, ``first-stop,first-stop``."""

RANGES_MAX = 256


class PeerTimeout(PeerError):
    """The other side of a socket sent nothing, or accepted nothing, until the deadline."""


class PeerClosed(PeerError):
    """The other side closed the connection in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request's or an answer's first line and fields, names in lower case."""

    line: str
    fields: Mapping[str, str]

    def content_length(self) -> int:
        text = self.fields.get("content-length", "0")
        if not text.isdecimal() or len(text) > 18:
            raise ProtocolError(f"a Content-Length of {text[:40]!r}")
        return int(text)


class Pipe(Protocol):
    """A socket, or a TLS connection on top of one (tls.py).

    A call that cannot proceed raises BlockingIOError, at once or after the socket's timeout.
    """

    def fileno(self) -> int:
        """The descriptor, for poll."""

    def recv(self, bytes_max: int, /) -> bytes:
        """The bytes that have come; none if the peer has closed the connection."""

    def recv_into(self, view: memoryview, nbytes: int = 0, flags: int = 0, /) -> int:
        """As ``recv``, into ``view``; returns how many bytes."""

    def sendmsg(self, views: Sequence[memoryview], /) -> int:
        """Send some of ``views``; returns how many bytes."""


class HeadReader:
    """Reads heads from a socket; keeps the bytes after a head for ``read_into``."""

    def __init__(self, sock: Pipe) -> None:
        self._sock = sock
        self._rest = bytearray()

    def read(self, deadline: float, whole_within_s: float = math.inf) -> Head | None:
        """The next head, or None if the peer closed the connection before one.

        ``whole_within_s``: the time from its first bytes to its last, if that is sooner.

        Raises:
            PeerTimeout: the head was not complete at the deadline.
            ProtocolError: the head is too long, or no HTTP.
        """
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            if len(self._rest) > HEAD_BYTES_MAX:
                raise ProtocolError(f"an HTTP head longer than {HEAD_BYTES_MAX} bytes")
            try:
                # Before any wait, because TLS may have taken the bytes from the socket already.
                data = self._sock.recv(4096)
            except BlockingIOError:
                wait_for(self._sock, select.POLLIN, deadline)
                continue
            if not data and self._rest:
                raise PeerClosed("the peer closed the connection within an HTTP head")
            if not data:
                return None
            if not self._rest:
                deadline = min(deadline, clock.now() + whole_within_s)
            self._rest += data
            if not self._rest[:1].isalpha():
                # For example the first bytes of TLS, whose sender waits for an answer.
                raise ProtocolError("the peer does not speak HTTP")
        head = parse_head(bytes(self._rest[:end]))
        del self._rest[: end + 4]
        return head

    def read_into(self, view: memoryview, deadline: float) -> None:
        """Fill ``view`` with the bytes that come next.

        Raises:
            PeerTimeout: the bytes did not come before the deadline.
            PeerClosed: the peer closed the connection first.
        """
        filled = min(len(self._rest), view.nbytes)
        view[:filled] = self._rest[:filled]
        del self._rest[:filled]
        while filled < view.nbytes:
            try:
                # A blocking socket is woken once for all bytes, not for each packet.
                got = self._sock.recv_into(view[filled:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                wait_for(self._sock, select.POLLIN, deadline)
                continue
            if got == 0:
                raise PeerClosed("the peer closed the connection within a body")
            filled += got


def parse_head(data: bytes) -> Head:
    """Parse ``data``, a head without its empty line.

    Raises:
        ProtocolError: the data is no head, or has too many fields or a field twice.
    """
    try:
        first, *lines = data.decode("ascii").split("\r\n")
        pairs = [line.split(":", 1) for line in lines]
        fields = {name.strip().lower(): value.strip() for name, value in pairs}
    except ValueError as why:
        raise ProtocolError("the peer does not speak HTTP") from why
    if len(lines) > FIELDS_MAX:
        raise ProtocolError(f"an HTTP head of {len(lines)} fields")
    if len(fields) < len(lines):
        raise ProtocolError("an HTTP head that has a field twice")
    return Head(first, fields)


def format_ranges(ranges: Sequence[tuple[int, int]]) -> str | None:
    """The value of ``LACKS_FIELD``; None if it would be too long to be useful."""
    return ",".join(f"{a}-{b}" for a, b in ranges) if len(ranges) <= RANGES_MAX else None


def parse_ranges(text: str, chunks: int) -> list[tuple[int, int]]:
    """The ranges that ``format_ranges`` wrote, of a state with this number of chunks.

    Raises:
        ProtocolError: the text is no list of ranges.
    """
    try:
        pairs = [tuple(map(int, part.split("-"))) for part in text.split(",", RANGES_MAX)]
        ranges = [(first, stop) for first, stop in pairs]
    except ValueError as why:
        raise ProtocolError(f"{LACKS_FIELD} is not a list of ranges") from why
    if not all(0 <= first <= stop <= chunks for first, stop in ranges):
        raise ProtocolError(f"{LACKS_FIELD} names chunks of which there are none")
    return ranges


def format_head(line: str, fields: Mapping[str, str | int]) -> bytes:
    text = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{line}\r\n{text}\r\n".encode("ascii")


def send_all(sock: Pipe, data: bytes | memoryview, deadline: float) -> None:
    """Send ``data``, all of it, before the deadline."""
    pending = [memoryview(data)]
    while pending:
        sent = send_now(sock, pending)
        pending = advance(pending, sent)
        if not sent:
            wait_for(sock, select.POLLOUT, deadline)


def send_now(sock: Pipe, views: Sequence[memoryview]) -> int:
    """Send what the kernel accepts at once: 0 if it accepts nothing. Never waits."""
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


def wait_for(sock: Pipe, event: int, deadline: float) -> None:
    """Wait until ``sock`` is ready for poll ``event``.

    Raises:
        PeerTimeout: it was not ready before the deadline.
    """
    poller = select.poll()
    poller.register(sock, event)
    remaining_s = deadline - clock.now()
    if remaining_s <= 0 or not poller.poll(remaining_s * 1000):
        raise PeerTimeout("the peer neither sent nor took anything before the deadline")
