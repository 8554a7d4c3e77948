"""The little HTTP/1.1 that donors and receivers of a state speak, with a limit on everything.

Requests have no body; answers have a Content-Length. Every wait has a deadline: sockets are
non-blocking, or give up by themselves soon enough that deadlines are looked at.
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
"""Buffers per sendmsg: the kernel takes 1024 at most."""

TOKEN_FIELD = "authorization"
RECEIVER_FIELD = "x-ftrun-receiver"
DIGEST_FIELD = "x-ftrun-digest"
LACKS_FIELD = "x-ftrun-lacks"
"""Of a request for data: the chunks that have not come from anybody, ``first-stop,first-stop``."""

RANGES_MAX = 256


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

    def read_into(self, view: memoryview, deadline: float) -> None:
        """Fill ``view`` with the bytes that come next.

        Raises:
            PeerTimeout: they did not come before the deadline.
            PeerClosed: the peer closed the connection before that.
        """
        filled = min(len(self._rest), view.nbytes)
        view[:filled] = self._rest[:filled]
        del self._rest[:filled]
        while filled < view.nbytes:
            try:
                # A blocking socket is woken once for all of it, not for each packet.
                got = self._sock.recv_into(view[filled:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                wait_for(self._sock, select.POLLIN, deadline)
                continue
            if got == 0:
                raise PeerClosed("the peer closed the connection within a body")
            filled += got


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


def format_ranges(ranges: Sequence[tuple[int, int]]) -> str | None:
    """What ``LACKS_FIELD`` says; None where it would be too long to be of use."""
    return ",".join(f"{a}-{b}" for a, b in ranges) if len(ranges) <= RANGES_MAX else None


def parse_ranges(text: str, chunks: int) -> list[tuple[int, int]]:
    """The ranges that ``format_ranges`` wrote, of a state of so many chunks.

    Raises:
        ProtocolError: it is none.
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
