"""The gRPC stream between agents and the lighthouse: ``Membership.Attach``, batches both ways.

``LighthouseConnection`` is the agent's end: it keeps a stream open, with backoff, until closed. The
other parts are for servers (serving.py): the handler's registration, the interceptor that checks
the token, and the options of both ends.

Not here: the effects of messages (core/), sessions of the lighthouse (lighthouse/).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import grpc
import grpc.aio

from ftrun.base import clock
from ftrun.base.addresses import join_address, split_address
from ftrun.base.errors import ProtocolError, UserError
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.auth import bearer, bearer_matches
from ftrun.protocol.codec import encode
from ftrun.protocol.limits import BATCH_OVERHEAD_BYTES, MESSAGE_BYTES_MAX
from ftrun.protocol.send_queue import SendQueue
from ftrun.protocol.streams import StreamCodec
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

SERVICE = ftrun_pb2.DESCRIPTOR.services_by_name["Membership"].full_name
ATTACH = f"/{SERVICE}/Attach"

TORCHFT_PATHS = "/torchft."
TORCHFT_EXPLANATION = (
    "this is the port of an ftrun lighthouse for ftrun's own agents, and no torchft lighthouse. "
    "Either start the script with ftrun in place of torchrun, or give torchft a port of its own: "
    "ftrun lighthouse --torchft-bind HOST:PORT, and TORCHFT_LIGHTHOUSE=http://HOST:PORT"
)
"""The answer to a client of torchft, whose lighthouse has the same default port as ftrun's."""

_OF_HTTP_1 = "http1.x server"
"""gRPC's text for a port that answers by HTTP/1.1, such as a lighthouse's port for people."""

ACCEPTED = (("ftrun-accepts", "1"),)
"""The metadata by which a lighthouse accepts a stream: the token is right, send Hello."""

JOB = "ftrun-job"
"""The metadata by which an agent states its job, for a door shared by many jobs."""
MOVED = "ftrun-moved"
"""The trailing metadata by which a door states the port of that job's lighthouse."""

BACKOFF_FIRST_S = 0.05
BACKOFF_LAST_S = 2.0
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
OUTBOX_MAX = 4096
STREAMS_PER_CONNECTION_MAX = 64
WINDOW_BYTES = 1 << 20

_LIMITS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX + BATCH_OVERHEAD_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX + BATCH_OVERHEAD_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
]
_SPARSE = [
    # gRPC would ping at every message, to measure the bandwidth. ftrun's streams never need more
    # than the window at once, and without the pings a lighthouse does half the work.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
]
PING_S = 5.0
"""Ping interval on a silent stream. A peer whose machine is gone is detected after this time plus 5
s."""
_KEEPALIVE = [
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CHANNEL_OPTIONS: Sequence[tuple[str, Any]] = [
    *_LIMITS,
    *_SPARSE,
    *_KEEPALIVE,
    ("grpc.keepalive_time_ms", int(PING_S * 1e3)),
    # Each retry is a fresh channel, with ftrun's backoff: gRPC's own is shared between channels.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy for the web must not intercept the cluster's own traffic.
    ("grpc.enable_http_proxy", 0),
]
_SERVER_OPTIONS: Sequence[tuple[str, Any]] = [
    *_LIMITS,
    *_SPARSE,
    *_KEEPALIVE,
    # A peer that has not shown the token can hold little, and not for long (X3). An agent has one
    # stream.
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # Otherwise a second lighthouse could start on the same port and take some of the agents.
    ("grpc.so_reuseport", 0),
]


def server_options(ping_s: float = PING_S) -> Sequence[tuple[str, Any]]:
    """The options of a server that pings each silent stream at this interval."""
    return [*_SERVER_OPTIONS, ("grpc.keepalive_time_ms", int(ping_s * 1e3))]


class Refusal(Enum):
    """Why a server that answers does not accept a stream; the status of such a call."""

    TOKEN = grpc.StatusCode.UNAUTHENTICATED
    PORT = grpc.StatusCode.UNIMPLEMENTED


@dataclass(frozen=True)
class Connected:
    """The stream is open: send Hello and everything known. ``address``: of the lighthouse."""

    address: str


@dataclass(frozen=True)
class Disconnected:
    """The stream, or an attempt to open one, has failed. A retry follows unless closed.

    Attributes:
        words: why, without the address.
        refused: the server does not accept the token, or takes no agents. A retry helps only if
            another lighthouse answers then.
        failures: consecutive attempts without a stream.
        is_moved: another lighthouse leads, and its stream follows.
        moved: the lighthouse's address, as answered by a door.
    """

    address: str
    words: str
    refused: Refusal | None = None
    failures: int = 1
    is_moved: bool = False
    moved: str = ""

    @property
    def reason(self) -> str:
        """``words`` with the address in front."""
        return f"{self.address}: {self.words}"


@dataclass
class Traffic:
    """The traffic of a connection's streams, both ways."""

    messages: int = 0
    nbytes: int = 0

    def count(self, data: bytes) -> None:
        self.messages += 1
        self.nbytes += len(data)


ConnectionEvent: TypeAlias = Any
"""Connected, Disconnected, or a message of ``core.messages.ToAgent``."""


class LighthouseConnection:
    """An agent's stream to the lighthouse, opened again whenever it breaks.

    Of several lighthouses one leads. The others hold a call open and accept it when they lead. Then
    the stream moves there at once, even if the old one still seems alive.

    ``on_event`` is called in the event loop with ``Connected``, each incoming message, and
    ``Disconnected``, in order. After ``Connected`` the caller sends everything again, because
    messages that were sent without a stream, or were on their way when it broke, are lost.

    Args:
        addresses: ``host:port`` of the lighthouse, or of each that may become it.
        on_event: must not block or raise.
        tls: the certificates of both sides; without files: plaintext.
        job_id: for a door, which has the lighthouses of many jobs.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        on_event: Callable[[ConnectionEvent], None],
        *,
        tls: TlsFiles = PLAINTEXT,
        job_id: str = "",
    ) -> None:
        if not addresses:
            raise ValueError("a lighthouse needs an address")
        self._addresses = list(addresses)
        self._metadata = (("authorization", bearer(token)), (JOB, job_id))
        self._on_event = on_event
        self._tls = tls
        self._stream: _Stream | None = None
        self._current: int | None = None
        self._is_moving = False
        self._freed = asyncio.Event()
        self._closed = asyncio.Event()
        self.traffic = Traffic()

    def send(self, message: object) -> bool:
        """Queue a message; never waits. False: there is no stream, and it was dropped.

        If more than ``OUTBOX_MAX`` messages are queued, the stream is cut and opened again.

        Raises:
            ProtocolError: the message cannot be encoded.
        """
        if self._stream is None:
            encode(message)
            return False
        return self._stream.send(message)

    def move(self, addresses: Sequence[str]) -> None:
        """Use these addresses from the next attempt on (a restarted lighthouse has new ports)."""
        self._addresses = list(addresses)

    def drop(self, reason: str) -> None:
        """End the open stream, and open another one."""
        if self._stream is not None:
            self._stream.leave(reason)

    def close(self) -> None:
        """End: ``run`` sends what is queued (for at most ``CLOSE_TIMEOUT_S``) and returns."""
        self._closed.set()

    async def run(self) -> None:
        """Keep a stream open until ``close``; each connection has ``CONNECT_TIMEOUT_S``."""
        await asyncio.gather(*(self._keep(number) for number in range(len(self._addresses))))

    async def _keep(self, number: int) -> None:
        """Request a stream from one of the addresses, repeatedly."""
        failures, moved = 0, ""
        while not self._closed.is_set():
            started = clock.now()
            ending = await self._attach(number, moved or self._addresses[number])
            moved = "" if moved else ending.moved
            if moved:
                continue
            # Also back off from a lighthouse that accepts and disconnects at once.
            failures = 1 if clock.now() - started >= BACKOFF_LAST_S else failures + 1
            if not self._closed.is_set() and self._current in (None, number):
                self._on_event(replace(ending, failures=failures))
            if self._current == number:
                self._current = None
                self._freed.set()
            if not self._closed.is_set():
                await self._back_off(failures)

    async def _attach(self, number: int, address: str) -> Disconnected:
        """Open one stream and serve it until it ends. Returns the reason."""
        try:
            async with self._channel(address) as channel:
                call = channel.stream_stream(ATTACH)(metadata=self._metadata)
                await self._opened(call)
                await self._take_over(number, address)
                if self._closed.is_set():
                    return Disconnected(address, "closed")
                self._stream = stream = _Stream(call, self.traffic)
                self._on_event(Connected(address))
                reason = await stream.run(self._on_event, self._closed)
                return Disconnected(address, reason, is_moved=self._is_moving)
        except grpc.aio.AioRpcError as error:
            words = error.details() or error.code().name
            if _OF_HTTP_1 in words:
                return Disconnected(address, "it speaks HTTP/1.1", Refusal.PORT)
            refused = next((one for one in Refusal if one.value is error.code()), None)
            return Disconnected(address, words, refused, moved=_moved(address, error))
        except asyncio.TimeoutError:
            return Disconnected(address, f"no answer in {CONNECT_TIMEOUT_S:g} s")
        except ProtocolError as error:
            return Disconnected(address, f"it does not keep the protocol: {error}")
        except UserError as error:
            return Disconnected(address, str(error))  # a TLS file has disappeared
        finally:
            if self._current == number:
                self._stream = None

    async def _take_over(self, number: int, address: str) -> None:
        """End the stream to another lighthouse, if there is one, because this one leads now."""
        while self._current not in (None, number):
            self._is_moving = True
            self.drop(f"the lighthouse at {address} leads now")
            self._freed.clear()
            await self._freed.wait()
        self._current, self._is_moving = number, False

    async def _opened(self, call: _Call) -> None:
        """Wait until the lighthouse has accepted the stream, or ``close`` was called.

        A standby may take any time: gRPC detects if it is gone.
        """
        opening = asyncio.ensure_future(_accepted(call))
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait(
                {opening, closing},
                timeout=CONNECT_TIMEOUT_S if len(self._addresses) == 1 else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not opening.done():
                raise asyncio.TimeoutError
            await opening
        finally:
            closing.cancel()
            opening.cancel()
            await asyncio.gather(opening, closing, return_exceptions=True)

    def _channel(self, address: str) -> Any:
        if not self._tls:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        credentials = self._tls.channel_credentials(grpc)
        return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)

    async def _back_off(self, failures: int) -> None:
        delay_s = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2 ** min(failures - 1, 10))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closed.wait(), delay_s * random.uniform(0.5, 1.0))


def _moved(address: str, error: grpc.aio.AioRpcError) -> str:
    """The lighthouse's address, if a door has answered; "": this was no door's answer."""
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == MOVED and isinstance(value, str) and value.isdecimal():
            return join_address(split_address(address)[0], int(value))
    return ""


_Call: TypeAlias = Any
"""A grpc.aio.StreamStreamCall of bytes. Its type stubs know only the form with an iterator."""


async def _accepted(call: _Call) -> None:
    """Wait until the lighthouse accepts the stream: a connection alone does not prove the token.

    A refusal has a status and no metadata. Do not write to a refused call: grpc.aio would then
    report an internal error instead of the status.
    """
    await call.wait_for_connection()
    name, value = ACCEPTED[0]
    if (await call.initial_metadata()).get(name) != value:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(call.code(), CLOSE_TIMEOUT_S)
        await call.wait_for_connection()  # raises the status
        raise ProtocolError("it accepts streams as no lighthouse of ftrun does")


class _Stream:
    """One stream's life, from acceptance to its end."""

    def __init__(self, call: _Call, traffic: Traffic) -> None:
        self._call = call
        self._traffic = traffic
        self._codec = StreamCodec()
        self._queue = SendQueue(OUTBOX_MAX)
        self._left = asyncio.Event()
        self._why_left = ""

    def leave(self, reason: str) -> None:
        """End without a message to the lighthouse."""
        self._why_left = reason
        self._left.set()

    def send(self, message: object) -> bool:
        return self._queue.put(self._codec.encode(message))

    async def run(self, on_message: Callable[[Any], None], closed: asyncio.Event) -> str:
        """Serve until the stream ends, overflows or ``closed`` is set. Returns the reason."""
        reader = asyncio.ensure_future(self._read(on_message))
        writer = asyncio.ensure_future(self._write())
        events = (self._queue.overflown, self._left, closed)
        signals = [asyncio.ensure_future(event.wait()) for event in events]
        tasks = [reader, writer, *signals]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._left.is_set():
                return self._why_left
            if closed.is_set():
                await self._flush(writer, reader)
            # The reader raises an error of the stream, because it has the status.
            if reader.done() or (writer.done() and not closed.is_set()):
                await asyncio.wait_for(reader, CLOSE_TIMEOUT_S)
                return "the lighthouse ended the stream"
            return "closed" if closed.is_set() else "it does not drain the stream"
        finally:
            self._call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, on_message: Callable[[Any], None]) -> None:
        async for data in self._call:
            self._traffic.count(data)
            for message in self._codec.decode(data):
                on_message(message)

    async def _write(self) -> None:
        while (data := await self._queue.next_batch()) is not None:
            self._traffic.count(data)
            await self._call.write(data)
        await self._call.done_writing()

    async def _flush(self, *tasks: asyncio.Future[None]) -> None:
        """Send what is queued, and let the lighthouse end the stream."""
        self._queue.close()
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)


# ---------------------------------------------------------------- the lighthouse's pieces

AttachHandler: TypeAlias = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]
"""``attach(requests, context)``: serves one stream. It reads bytes from ``requests`` and writes
bytes by ``context.write``."""


def membership_service(attach: AttachHandler) -> grpc.GenericRpcHandler[Any, Any]:
    """The Membership service, for ``server.add_generic_rpc_handlers``."""
    handler: Any = grpc.stream_stream_rpc_method_handler(attach)
    return grpc.method_handlers_generic_handler(SERVICE, {"Attach": handler})


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not at run time
    """Refuses every call without the job's token, for known and unknown methods (X1)."""

    def __init__(self, token: str) -> None:
        self._token = token
        refusal: Any = grpc.stream_stream_rpc_method_handler(_refuse)
        self._refusal: grpc.RpcMethodHandler[Any, Any] = refusal
        explanation: Any = grpc.stream_stream_rpc_method_handler(_explain_to_torchft)
        self._explanation: grpc.RpcMethodHandler[Any, Any] = explanation

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Let the call through if its metadata carries the token."""
        if any(
            key == "authorization" and isinstance(value, str) and bearer_matches(value, self._token)
            for key, value in handler_call_details.invocation_metadata or ()
        ):
            return await continuation(handler_call_details)
        method = handler_call_details.method
        return self._explanation if method.startswith(TORCHFT_PATHS) else self._refusal


async def _refuse(_requests: AsyncIterator[bytes], context: Any) -> None:
    end_call(context, grpc.StatusCode.UNAUTHENTICATED, "the job's token is missing or wrong")


async def _explain_to_torchft(_requests: AsyncIterator[bytes], context: Any) -> None:
    end_call(context, grpc.StatusCode.UNIMPLEMENTED, TORCHFT_EXPLANATION)


def end_call(context: Any, code: grpc.StatusCode, details: str) -> None:
    """Set the status with which a call ends when its handler returns.

    ``context.abort`` raises an exception that grpc.aio keeps together with its traceback. That
    cycle keeps some 8 KiB of the handler until the garbage collector runs.
    """
    context.set_code(code)
    context.set_details(details)
