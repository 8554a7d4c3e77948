"""The one port of a team: for its nodes to meet, and for its workers to reach the group's store.

torchrun's MASTER_PORT is the port of its command line, and often the only one that a firewall
permits. A connection's first byte tells which of the two it is for. Not here: messages of hands
(door.py), the store (agent/tcp_stores.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

OF_HANDS = frozenset((b"P", b"\x16"))
"""The first byte of HTTP/2, and of TLS; a store's client begins with another one."""
FIRST_BYTE_TIMEOUT_S = 30.0
CONNECTIONS_MAX = 65536
CHUNK_BYTES = 1 << 16
HAND_TIMEOUT_MS = 5_000
"""A hand whose node acknowledges nothing for this time is lost, as a stream of gRPC would be.

With the ping that gRPC sends after 5 s at most, the loss of a node without power is known within 10
s.
"""


class TeamPort:
    """Forwards each connection to one of two servers. ``door``, ``store``: their addresses.

    ``store``: of the present start of the group; None: there is none yet.
    """

    def __init__(self) -> None:
        self.door: tuple[str, int] | None = None
        self.store: tuple[str, int] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, hosts: list[str], port: int) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._accepted, hosts, port)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.TimeoutError):
            first = await asyncio.wait_for(reader.read(CHUNK_BYTES), FIRST_BYTE_TIMEOUT_S)
            address = self.door if first[:1] in OF_HANDS else self.store
            if not first or address is None:
                return
            if address is self.door:
                own = writer.get_extra_info("socket")
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, HAND_TIMEOUT_MS)
            inner_reader, inner_writer = await asyncio.open_connection(*address)
            with contextlib.closing(inner_writer):
                inner_writer.write(first)
                await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one direction ends. The other direction continues, as in a direct connection."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
