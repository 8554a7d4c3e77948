"""The lead's gRPC server for its hands: one stream each, with the token, and TLS if it is given.

A node that may become a lead has its door from its start on: while it leads nobody, hands that come
are asked to try again.

Not here: what a hand's message does (lead.py), the hand's end of the stream (protocol/rpc.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import cache, partial
from typing import Any, Protocol

import grpc
import grpc.aio

from ftrun.base import clock
from ftrun.base.errors import ProtocolError
from ftrun.core.messages import FromHand, HandHello, ToHand
from ftrun.protocol import rpc
from ftrun.protocol.grpc_port import GrpcPort
from ftrun.protocol.send_queue import SendQueue
from ftrun.protocol.streams import StreamCodec
from ftrun.protocol.tls import TlsFiles

HELLO_TIMEOUT_S = 10.0
FLUSH_TIMEOUT_S = 1.0
STREAMS_MAX = 4096


class HandStream:
    """One hand's stream. ``node_id``: of this stream alone. ``heard_at``: the last time."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.codec = StreamCodec()
        self.queue = SendQueue(rpc.OUTBOX_MAX)
        self.ended = asyncio.Event()
        self.heard_at = clock.now()
        self.why_cut = ""

    def cut(self, reason: str) -> None:
        """The hand is lost, whatever its connection says."""
        self.why_cut = reason
        self.queue.close()

    def send(self, message: ToHand) -> None:
        """Queue a message; a hand that does not read is cut."""
        self.queue.put(self.codec.encode(message))

    def end(self) -> None:
        """Send what is queued, then end the stream."""
        self.queue.close()


class DoorListener(Protocol):
    """The lead's callbacks."""

    def hand_came(self, stream: HandStream, hello: HandHello) -> None:
        """A hand has said hello."""

    def hand_said(self, stream: HandStream, message: FromHand) -> None:
        """A message of a hand that has said hello."""

    def hand_gone(self, stream: HandStream, reason: str) -> None:
        """The stream of a hand that has said hello has ended."""


class Door:
    """Serves at one address. ``streams``: of the hands that have said hello.

    ``listener``: who leads here; None: nobody does now. ``token``: of the team.
    """

    def __init__(self, token: str, tls: TlsFiles) -> None:
        self.listener: DoorListener | None = None
        self.token = token
        self._count = 0
        self.streams: dict[str, HandStream] = {}
        # Read once: the files of a certificate of one life are not kept.
        credentials = cache(partial(tls.server_credentials, grpc)) if tls else None
        self._port = GrpcPort(self._make, credentials)

    async def start(self, host: str, port: int = 0) -> int:
        """Listen; returns the port. Port 0: any.

        Raises:
            RuntimeError: the port is taken.
        """
        bound = self._port.bind(host, port)
        await self._port.start()
        return bound

    async def stop(self) -> None:
        """Send what is queued, and end."""
        await self.dismiss()
        await self._port.stop()

    async def dismiss(self) -> None:
        """Send what is queued, and end all streams: nobody leads here now."""
        self.listener = None
        for stream in list(self.streams.values()):
            stream.end()
        waiting = [asyncio.ensure_future(x.ended.wait()) for x in self.streams.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=FLUSH_TIMEOUT_S)
        for task in waiting:
            task.cancel()

    def _make(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=[rpc.TokenInterceptor(self.token)],
            options=rpc.SERVER_OPTIONS,
            maximum_concurrent_rpcs=STREAMS_MAX,
        )
        server.add_generic_rpc_handlers((rpc.membership_service(self._attach),))
        return server

    async def _attach(self, requests: AsyncIterator[bytes], context: Any) -> None:
        listener = self.listener
        if listener is None:
            return rpc.end_call(context, grpc.StatusCode.UNAVAILABLE, "it leads no group yet")
        await context.send_initial_metadata(rpc.ACCEPTED)
        self._count += 1
        stream = HandStream(f"hand-{self._count}")
        try:
            opening = await asyncio.wait_for(_opening(requests, stream), HELLO_TIMEOUT_S)
        except asyncio.TimeoutError:
            return rpc.end_call(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no hello")
        if isinstance(opening, str):
            return rpc.end_call(context, grpc.StatusCode.INVALID_ARGUMENT, opening)
        self.streams[stream.node_id] = stream
        reason = "its machine or its ftrun is gone"
        try:
            hello, *rest = opening
            listener.hand_came(stream, hello)
            reason = await self._serve(listener, stream, rest, requests, context)
        finally:
            del self.streams[stream.node_id]
            stream.ended.set()
            listener.hand_gone(stream, reason)

    async def _serve(
        self,
        listener: DoorListener,
        stream: HandStream,
        first: list[Any],
        requests: AsyncIterator[bytes],
        context: Any,
    ) -> str:
        reader = asyncio.ensure_future(_read(listener, stream, first, requests))
        writer = asyncio.ensure_future(_write(stream, context))
        overflow = asyncio.ensure_future(stream.queue.overflown.wait())
        tasks: list[asyncio.Future[Any]] = [reader, writer, overflow]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                return reader.result()
            if stream.why_cut:
                return stream.why_cut
            return "it was sent away" if writer.done() else "it does not read what it is sent"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    listener: DoorListener, stream: HandStream, first: list[Any], requests: AsyncIterator[bytes]
) -> str:
    try:
        _received(listener, stream, first)
        async for data in requests:
            _received(listener, stream, stream.codec.decode(data))
    except ProtocolError as error:
        return f"it does not keep the protocol: {error}"
    return "its connection has ended"


def _received(listener: DoorListener, stream: HandStream, messages: list[Any]) -> None:
    stream.heard_at = clock.now()
    for message in messages:
        if not isinstance(message, FromHand):
            raise ProtocolError(f"a {type(message).__name__} is not for a lead")
        listener.hand_said(stream, message)


async def _opening(requests: AsyncIterator[bytes], stream: HandStream) -> list[Any] | str:
    """The first batch; or a text that names the error (lighthouse/server.py has the reason)."""
    try:
        async for data in requests:
            messages = stream.codec.decode(data)
            if messages and isinstance(messages[0], HandHello):
                return messages
            return (
                "this is where the nodes of one group meet (--nnodes). It is no lighthouse, which "
                "`ftrun lighthouse` starts"
            )
    except ProtocolError as error:
        return str(error)
    return "the stream ended without a hello"


async def _write(stream: HandStream, context: Any) -> None:
    with contextlib.suppress(grpc.aio.UsageError, grpc.RpcError):
        while (data := await stream.queue.next_batch()) is not None:
            await context.write(data)
