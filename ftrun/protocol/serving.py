"""The server's end of ``Membership.Attach``: one task and one bounded queue per stream.

A lighthouse serves its agents and nodes with it (lighthouse/server.py), and a node that leads a
group serves its hands (agent/team/door.py). Not here: the effects of messages, the other end
(rpc.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from ftrun.base import clock
from ftrun.base.errors import ProtocolError
from ftrun.protocol import rpc
from ftrun.protocol.grpc_port import GrpcPort
from ftrun.protocol.send_queue import SendQueue
from ftrun.protocol.streams import StreamCodec

OUTBOX_MESSAGES_MAX = 4096
OUTBOX_BYTES_MAX = 32 * 1024 * 1024
FLUSH_TIMEOUT_S = 1.0

log = logging.getLogger(__name__)


class Session:
    """One peer's stream, as its host sees it: its queue, and whether it is closed.

    ``codec``: the stream's own; data for ``put`` is encoded for it, in this order. ``heard_at``:
    when the last message arrived.
    """

    def __init__(self, peer_id: str, codec: StreamCodec | None = None) -> None:
        self.peer_id = peer_id
        self.codec = codec or StreamCodec()
        self.rank: int | None = None
        self.closing: str | None = None
        self.cut = False
        self.heard_at = clock.now()
        self._queue = SendQueue(OUTBOX_MESSAGES_MAX, OUTBOX_BYTES_MAX)
        self.closed = asyncio.Event()

    def send(self, message: object) -> None:
        """Encode a message, and queue it."""
        self.put(self.codec.encode(message))

    def put(self, data: bytes) -> None:
        """Queue for sending. A peer that does not drain its queue is disconnected."""
        if not self._queue.put(data):
            self.close("it does not drain its messages")

    def close(self, reason: str) -> None:
        """End the stream once the queue is sent."""
        if self.closing is None:
            self.closing = reason
        self.closed.set()
        self._queue.close()

    async def next(self) -> bytes | None:
        """The batch to send next; None: the session is closing and everything is sent."""
        return await self._queue.next_batch()


class Host:
    """The owner of streams. Its methods do not wait, unless documented."""

    def attached(self, session: Any, hello: Any) -> None:
        """A peer's stream is open."""
        raise NotImplementedError

    def received(self, session: Any, *messages: Any) -> None:
        """A batch of messages has arrived on it."""
        raise NotImplementedError

    def detached(self, session: Any, reason: str) -> None:
        """The stream is over."""
        raise NotImplementedError

    @property
    def is_behind(self) -> bool:
        """Whether messages are queued for handling: then no more are read."""
        return False

    async def caught_up(self) -> None:
        """Wait until all messages are handled."""


class StreamServer:
    """Serves streams on one port; every call needs the token. ``attach`` serves one call.

    Attributes:
        what: the server, for people.
        first: the kinds of message with which a stream may begin.
        taken: the other kinds that are accepted. (A check against a union would take longer than
            the rest of a message's handling here.)
        elsewhere: the error text for a peer that begins with another message.
        ping_s: ping interval on silent streams.
    """

    what = ""
    first: tuple[type, ...] = ()
    taken: frozenset[type] = frozenset()
    elsewhere = ""
    hello_timeout_s = 10.0
    streams_max = 4096
    ping_s = rpc.PING_S

    def __init__(
        self,
        token: str,
        attach: rpc.AttachHandler,
        credentials: Callable[[], grpc.ServerCredentials] | None,
    ) -> None:
        self.token, self._serves = token, attach
        self._port = GrpcPort(self._make, credentials)

    async def stop(self) -> None:
        """Send what is queued, end all streams and release the port."""
        await self._port.stop()

    def _make(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=[rpc.TokenInterceptor(self.token)],
            options=rpc.server_options(self.ping_s),
            maximum_concurrent_rpcs=self.streams_max,
        )
        server.add_generic_rpc_handlers((rpc.membership_service(self._serves),))
        return server

    async def opened(
        self, requests: AsyncIterator[bytes], context: Any, codec: StreamCodec
    ) -> list[Any]:
        """Accept a call. Returns its first batch, a hello and what follows; empty: the call is
        over."""
        await context.send_initial_metadata(rpc.ACCEPTED)
        try:
            found = await asyncio.wait_for(self._opening(requests, codec), self.hello_timeout_s)
        except asyncio.TimeoutError:
            rpc.end_call(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello")
            return []
        if isinstance(found, str):
            rpc.end_call(context, grpc.StatusCode.INVALID_ARGUMENT, found)
            return []
        return found

    async def _opening(self, requests: AsyncIterator[bytes], codec: StreamCodec) -> list[Any] | str:
        """The first batch; or a text that names the error.

        The error is returned, not raised: ``wait_for`` would keep it, and all data read, in a
        cycle.
        """
        try:
            async for data in requests:
                messages = codec.decode(data)
                if messages and isinstance(messages[0], self.first):
                    return messages
                names = ", ".join(type(message).__name__ for message in messages[:1])
                return self.elsewhere or f"the first message is a {names or 'nothing'}, not a Hello"
        except ProtocolError as error:
            return str(error)
        return "the stream ended without a Hello"

    async def serve(
        self,
        host: Host,
        session: Session,
        opening: list[Any],
        requests: AsyncIterator[bytes],
        context: Any,
    ) -> None:
        """Serve a stream to its end. ``opening``: as ``opened`` returns it."""
        host.attached(session, opening[0])
        reason = "its machine or its ftrun is gone"
        try:
            reason = await self._exchange(host, session, opening[1:], requests, context)
        finally:
            host.detached(session, reason)

    async def _exchange(
        self,
        host: Host,
        session: Session,
        first: list[Any],
        requests: AsyncIterator[bytes],
        context: Any,
    ) -> str:
        """Read and write until the peer ends the stream or the host closes it. Returns the
        reason."""
        reader = asyncio.ensure_future(self._read(host, session, first, requests))
        writer = asyncio.ensure_future(_write(session, context))
        closed = asyncio.ensure_future(session.closed.wait())
        tasks = [reader, writer, closed]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if session.closing is not None:
                session.cut = True
                await asyncio.wait([writer], timeout=FLUSH_TIMEOUT_S)
                return session.closing
            return reader.result() if reader.done() else writer.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _read(
        self, host: Host, session: Session, first: list[Any], requests: AsyncIterator[bytes]
    ) -> str:
        try:
            self._received(host, session, first)
            async for data in requests:
                self._received(host, session, session.codec.decode(data))
                if host.is_behind:  # read no more until its messages are handled
                    await host.caught_up()
        except ProtocolError as error:
            why = f"it does not keep the protocol: {error}"  # logs would keep the error's frames
            log.warning("%s: %s", session.peer_id, why)
            session.close(why)
        return session.closing or "its connection has ended"

    def _received(self, host: Host, session: Session, messages: list[Any]) -> None:
        for message in messages:
            if type(message) not in self.taken:
                raise ProtocolError(f"a {type(message).__name__} is not for a {self.what}")
        session.heard_at = clock.now()
        host.received(session, *messages)


async def _write(session: Session, context: Any) -> str:
    with contextlib.suppress(grpc.aio.UsageError, grpc.RpcError):
        while (data := await session.next()) is not None:
            await context.write(data)
    return session.closing or "the stream broke"
