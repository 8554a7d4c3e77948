"""The agent's Unix socket: frames to and from its workers.

A connection is accepted once its first frame, a WorkerHello, has the job's token and names a worker
that this agent runs, with the pid that the kernel reports. Any other connection is closed.

Not here: the meaning of the messages (shell.py, core/).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, cast

from ftrun.base.errors import ProtocolError
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import AnotherForm, Beat, FailureReport, NoManager, WorkerHello
from ftrun.protocol.auth import token_matches
from ftrun.protocol.frames import FrameDecoder, encode_frame

SOCKET_NAME = "agent.sock"
HELLO_TIMEOUT_S = 10.0
OUT_BYTES_MAX = 16 << 20
CONNECTIONS_MAX = 8192
_UCRED = struct.Struct("3i")


class WorkerListener(Protocol):
    """The agent's callbacks for its workers' connections."""

    def worker_known(self, key: WorkerKey, pid: int) -> bool:
        """True if ``key`` is a worker that runs now, with this pid."""

    def worker_attached(self, key: WorkerKey) -> None:
        """``key`` has connected."""

    def worker_disconnected(self, key: WorkerKey) -> None:
        """The last connection of ``key`` is closed, and the agent did not cut it."""

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        """A message of FromWorker, a FailureReport, a NoManager, an AnotherForm or a Beat."""


class WorkerServer:
    """Listens on a Unix socket; one ``_Link`` per connection."""

    def __init__(self, listener: WorkerListener, token: str, directory: Path) -> None:
        self._listener = listener
        self._token = token
        self.path = directory / SOCKET_NAME
        self._server: asyncio.AbstractServer | None = None
        self._links: dict[WorkerKey, list[_Link]] = {}
        self._open: set[_Link] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Link(self), str(self.path))

    def send(self, replica_id: str, incarnation: str, message: object) -> int:
        """Send to every connected worker of an incarnation; return their number."""
        keys = [
            key
            for key in self._links
            if key.incarnation == incarnation and key.replica_id == replica_id
        ]
        return self._send(keys, message)

    def broadcast(self, message: object) -> None:
        self._send(list(self._links), message)

    def send_to(self, key: WorkerKey, message: object) -> None:
        self._send([key], message)

    def is_connected(self, key: WorkerKey) -> bool:
        return key in self._links

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
        for link in list(self._open):
            link.close()

    def _send(self, keys: Iterable[WorkerKey], message: object) -> int:
        links = [link for key in keys for link in self._links.get(key, ())]
        if links:
            frame = encode_frame(message)
            for link in links:
                link.write(frame)
        return len(links)

    # Callbacks of the links.

    def opened(self, link: _Link) -> bool:
        """Register a connection. False: there are too many."""
        if len(self._open) >= CONNECTIONS_MAX:
            return False
        self._open.add(link)
        return True

    def greeted(self, link: _Link, hello: WorkerHello, pid: int) -> bool:
        """Check a WorkerHello. True: the connection is accepted (Q7)."""
        if not token_matches(hello.token, self._token):
            return False
        if not self._listener.worker_known(hello.key, pid):
            return False
        self._links.setdefault(hello.key, []).append(link)
        self._listener.worker_attached(hello.key)
        return True

    def received(self, key: WorkerKey, message: Any) -> None:
        self._listener.worker_message(key, message)

    def closed(self, link: _Link, key: WorkerKey | None) -> None:
        self._open.discard(link)
        links = self._links.get(key, []) if key is not None else []
        with contextlib.suppress(ValueError):
            links.remove(link)
        if key is not None and not links:
            self._links.pop(key, None)
            if not link.is_cut:
                self._listener.worker_disconnected(key)


class _Link(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(self, server: WorkerServer) -> None:
        self._server = server
        self._decoder = FrameDecoder()
        self._key: WorkerKey | None = None
        self._transport: asyncio.Transport | None = None
        self._pid = 0
        self._deadline: asyncio.TimerHandle | None = None
        self.is_cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pid = _peer_pid(self._transport)
        if not self._server.opened(self):
            self.close()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HELLO_TIMEOUT_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._received(message)
        except ProtocolError:
            self.is_cut = True
            self.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.closed(self, self._key)

    def write(self, frame: bytes) -> None:
        """Queue a frame. Disconnect a worker that does not read: the lighthouse notices that."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > OUT_BYTES_MAX:
            self.is_cut = True
            self._transport.abort()
        else:
            self._transport.write(frame)

    def close(self) -> None:
        """Close the connection after the queued frames."""
        if self._transport is not None:
            self._transport.close()

    def _received(self, message: Any) -> None:
        if self._key is None:
            if not isinstance(message, WorkerHello) or message.pid != self._pid:
                raise ProtocolError("the first frame is no hello")
            if not self._server.greeted(self, message, self._pid):
                raise ProtocolError("the hello is not accepted")
            self._key = message.key
            return
        self._server.received(self._key, message)
        if isinstance(message, (FailureReport, NoManager, AnotherForm, Beat)):
            # The worker waits for the close, so that its message arrives before its exit.
            self.close()

    def _too_late(self) -> None:
        if self._key is None:
            self.close()


def _peer_pid(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, _, _ = _UCRED.unpack(data)
    return int(pid)
