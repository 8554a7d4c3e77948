"""Detects hosts that acknowledge nothing, from all TCP connections of this machine.

Linux's sock_diag lists the connections without privileges, 1,000 of them in about 2 ms. Not here:
which host counts as silent (core/agent/peer_watch.py).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator

from ftrun.base import clock
from ftrun.base.addresses import is_loopback
from ftrun.core.agent.peer_watch import Connection, PeerWatch
from ftrun.core.messages import PeersSilent

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST_DUMP = 0x301
DONE, ERROR = 3, 2
ESTABLISHED = 1 << 1
WITH_INFO, INFO = 1 << 1, 2
HEADER = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")
ATTRIBUTES_AT, DESTINATION_AT = 72, 24
RETRANSMITS_AT, LAST_ACK_RECEIVED_AT = 2, 56
"""Offsets in the kernel's tcp_info; the second field is in milliseconds."""
BUFFER_BYTES = 1 << 17
READ_TIMEOUT_S = 1.0
PAUSE_TIMES = 30.0
"""The pause between two reads is at least this many times the last read: at most 3 % of a core."""


class Peers:
    """Reports the silent hosts to ``send`` whenever they change, and when ``again`` is called."""

    def __init__(self, send: Callable[[PeersSilent], None]) -> None:
        self._send = send
        self._watch = PeerWatch()

    def again(self) -> None:
        """Report again: the lighthouse is a new one, or has lost the report."""
        if self._watch.silent:
            self._send(PeersSilent(self._watch.silent))

    async def run(self) -> OSError:
        """Check until cancelled. Return the error if the kernel cannot list the connections."""
        took_s = 0.0
        while True:
            await asyncio.sleep(max(self._watch.look_s, PAUSE_TIMES * took_s))
            began = clock.now()
            try:
                has_changed = self._watch.looked(connections())
            except OSError as error:
                return error
            took_s = clock.now() - began
            if has_changed:
                self._send(PeersSilent(self._watch.silent))


def connections() -> Iterator[Connection]:
    """The open TCP connections to other hosts.

    Raises:
        OSError: the kernel does not list them.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as diag:
        diag.settimeout(READ_TIMEOUT_S)
        diag.bind((0, 0))
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, WITH_INFO, 0, ESTABLISHED)
            asked += bytes(48)
            header = HEADER.pack(HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0)
            diag.send(header + asked)
            yield from _answers(diag, family)


def _answers(diag: socket.socket, family: int) -> Iterator[Connection]:
    while True:
        data, at = diag.recv(BUFFER_BYTES), 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == DONE:
                return
            if kind == ERROR:
                number = -struct.unpack_from("=i", data, at + HEADER.size)[0]
                raise OSError(number, "the kernel does not list TCP connections")
            found = _connection(data[at + HEADER.size : at + length], family)
            if found is not None and not is_loopback(found.host):
                yield found
            at += (length + 3) & ~3


def _connection(row: bytes, family: int) -> Connection | None:
    size = 4 if family == socket.AF_INET else 16
    host = socket.inet_ntop(family, row[DESTINATION_AT : DESTINATION_AT + size])
    at = ATTRIBUTES_AT
    while at < len(row):
        length, kind = ATTRIBUTE.unpack_from(row, at)
        if kind == INFO:
            info = at + ATTRIBUTE.size
            (silent_ms,) = struct.unpack_from("=I", row, info + LAST_ACK_RECEIVED_AT)
            repeats = row[info + RETRANSMITS_AT] > 0
            return Connection(host.removeprefix("::ffff:"), repeats, silent_ms / 1e3)
        at += (length + 3) & ~3
    return None
