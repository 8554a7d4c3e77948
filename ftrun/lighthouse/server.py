"""The gRPC server of a lighthouse: one task per agent's stream, one bounded queue each.

Not here: what an agent's message does (shell.py hands it to the core).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, get_args

import grpc
import grpc.aio

from ftrun.base.addresses import join_address
from ftrun.base.errors import ProtocolError, UserError
from ftrun.core.agent.imports import LIMIT_S
from ftrun.core.messages import FromAgent, FromNode, Hello, NodeHello
from ftrun.lighthouse.registrar import Registrar
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.shell import Session, Shell
from ftrun.protocol import rpc
from ftrun.protocol.grpc_port import GrpcPort
from ftrun.protocol.streams import StreamCodec

# An agent opens its stream at once, to detect a wrong address or token, and sends Hello when its
# spawner has imported torch: minutes later on a cold disk. Its token is already checked by then.
HELLO_TIMEOUT_S = LIMIT_S + 60.0
FLUSH_TIMEOUT_S = 1.0
STREAMS_MAX = 16_384
BACKLOG = 128
TAKEN = frozenset(get_args(FromAgent | FromNode))
"""A check against the union would take longer than all else that is done with a message here."""

log = logging.getLogger(__name__)


class MembershipServer:
    """Serves ``Membership.Attach`` on one port; every call needs the token.

    ``attach``: serves a stream in another way than a lighthouse does (door.py).
    """

    def __init__(self, settings: ServiceSettings, attach: rpc.AttachHandler | None = None) -> None:
        self._settings = settings
        self._serve_stream = attach or self._attach
        self._shell: Shell | None = None
        self._registrar: Registrar | None = None
        self._leads = asyncio.Event()
        credentials = partial(settings.tls.server_credentials, grpc) if settings.tls else None
        self._port = GrpcPort(self._make, credentials)

    def bind(self) -> tuple[str, int]:
        """Bind the port; returns host and port.

        Raises:
            UserError: the port is taken, or the host is not one of this machine.
        """
        host, port = self._settings.grpc_address()
        return host, bind_port(self._port, host, port, "--bind")

    async def start(self, shell: Shell | None) -> None:
        """Accept agents; None: they wait, with a token that is checked, until ``lead``."""
        self.lead(shell)
        await self._port.start()

    def lead(self, shell: Shell | None) -> None:
        """Accept agents for this shell from now on; None: let them wait."""
        if self._registrar is not None:
            self._registrar.close()
        self._shell = shell
        self._registrar = None if shell is None else Registrar(shell)
        if shell is not None:
            self._leads.set()
        else:
            self._leads.clear()

    async def stop(self) -> None:
        """Send what is queued, end all streams and release the port."""
        await self._port.stop()

    def _make(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=[rpc.TokenInterceptor(self._settings.token)],
            options=rpc.SERVER_OPTIONS,
            maximum_concurrent_rpcs=STREAMS_MAX,
        )
        server.add_generic_rpc_handlers((rpc.membership_service(self._serve_stream),))
        return server

    async def _attach(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """One agent's stream, from its Hello to its end; or that of a node, at the registrar."""
        shell = await self._leader()
        await context.send_initial_metadata(rpc.ACCEPTED)
        codec = StreamCodec()
        try:
            opening = await asyncio.wait_for(_opening(requests, codec), HELLO_TIMEOUT_S)
        except asyncio.TimeoutError:
            return rpc.end_call(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello")
        if isinstance(opening, str):
            return rpc.end_call(context, grpc.StatusCode.INVALID_ARGUMENT, opening)
        hello, *rest = opening
        is_node = isinstance(hello, NodeHello)
        session = Session(hello.node_id if is_node else hello.agent_id, codec)
        host: Any = self._registrar if is_node else shell
        host.attached(session, hello)
        reason = "the agent or its machine is gone"
        try:
            reason = await _serve(host, session, rest, requests, context)
        finally:
            host.detached(session, reason)
        if session.cut:
            rpc.end_call(context, grpc.StatusCode.ABORTED, reason)

    async def _leader(self) -> Shell:
        """Wait until this lighthouse leads and can prove it, as long as the agent does."""
        while True:
            await self._leads.wait()
            shell = self._shell
            assert shell is not None
            await shell.caught_up()
            if shell is self._shell:
                return shell


def bind_port(served: GrpcPort, host: str, port: int, option: str) -> int:
    """Bind a gRPC port; returns its number. ``option``: that names the address.

    Raises:
        UserError: the port is taken, or the host is not one of this machine.
    """
    # gRPC reports a bad port in its own words on stderr, so the port is tried first.
    listen(host, port, option).close()
    try:
        return served.bind(host, port)
    except RuntimeError as error:
        address = join_address(host, port)
        raise UserError(f"{option} {address}: {error}. The lighthouse was not started.") from error


def listen(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens on a port.

    Raises:
        UserError: the port is taken, or the host is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        # Python appends the address to the text, which names it already.
        why = (error.strerror or str(error)).partition(" (while ")[0]
        raise UserError(
            f"{option} {host}:{port}: {why.lower()}. The lighthouse was not started. "
            "Give another address, or port 0 for any."
        ) from error


async def _opening(requests: AsyncIterator[bytes], codec: StreamCodec) -> list[Any] | str:
    """The first batch, a Hello and what follows it; or a text that names the error.

    The error is returned, not raised: ``wait_for`` would keep it, and all data read, in a cycle.
    """
    try:
        async for data in requests:
            messages = codec.decode(data)
            if messages and isinstance(messages[0], Hello | NodeHello):
                return messages
            names = ", ".join(type(message).__name__ for message in messages[:1])
            return f"the first message is a {names or 'nothing'}, not a Hello"
    except ProtocolError as error:
        return str(error)
    return "the stream ended without a Hello"


async def _serve(
    shell: Shell | Registrar,
    session: Session,
    first: list[Any],
    requests: AsyncIterator[bytes],
    context: Any,
) -> str:
    """Read and write until the agent ends the stream or the shell closes it; returns the reason."""
    reader = asyncio.ensure_future(_read(shell, session, first, requests))
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
    shell: Shell | Registrar, session: Session, first: list[Any], requests: AsyncIterator[bytes]
) -> str:
    try:
        _received(shell, session, first)
        async for data in requests:
            _received(shell, session, session.codec.decode(data))
            if shell.is_behind:  # the agent is read on when its messages are handled
                await shell.caught_up()
    except ProtocolError as error:
        why = str(error)
        log.warning("agent %s does not keep the protocol: %s", session.agent_id, why)
        session.close(f"it does not keep the protocol: {why}")
        return why
    return "the agent ended the stream"


def _received(shell: Shell | Registrar, session: Session, messages: list[Any]) -> None:
    for message in messages:
        if type(message) not in TAKEN:
            raise ProtocolError(f"a {type(message).__name__} is not for a lighthouse")
    shell.received(session, *messages)


async def _write(session: Session, context: Any) -> str:
    with contextlib.suppress(grpc.aio.UsageError, grpc.RpcError):
        while (data := await session.next()) is not None:
            await context.write(data)
    return session.closing or "the stream broke"
