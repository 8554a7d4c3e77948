"""The gRPC server of a lighthouse, for its agents and nodes.

Not here: streams (protocol/serving.py), the effect of a message (shell.py passes it to the core).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, get_args

import grpc

from ftrun.base.addresses import join_address
from ftrun.base.errors import UserError
from ftrun.core.agent.imports import LIMIT_S
from ftrun.core.messages import FromAgent, FromNode, Hello, NodeHello
from ftrun.lighthouse.registrar import Registrar
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.shell import Shell
from ftrun.protocol import rpc
from ftrun.protocol.grpc_port import GrpcPort
from ftrun.protocol.serving import Session, StreamServer
from ftrun.protocol.streams import StreamCodec

# An agent opens its stream at once, to detect a wrong address or token, and sends Hello when its
# spawner has imported torch, which may take minutes on a cold disk. Its token is checked before
# that.
HELLO_TIMEOUT_S = LIMIT_S + 60.0
BACKLOG = 128


class MembershipServer(StreamServer):
    """Serves ``Membership.Attach`` on one port; every call needs the token.

    ``attach``: serves a stream differently from a lighthouse (door.py).
    """

    what = "lighthouse"
    first = Hello, NodeHello
    taken = frozenset(get_args(FromAgent | FromNode))
    hello_timeout_s = HELLO_TIMEOUT_S
    streams_max = 16_384

    def __init__(self, settings: ServiceSettings, attach: rpc.AttachHandler | None = None) -> None:
        self._settings = settings
        self._shell: Shell | None = None
        self._registrar: Registrar | None = None
        self._leads = asyncio.Event()
        credentials = partial(settings.tls.server_credentials, grpc) if settings.tls else None
        super().__init__(settings.token, attach or self._attach, credentials)

    def bind(self) -> tuple[str, int]:
        """Bind the port. Returns host and port.

        Raises:
            UserError: the port is taken, or the host is not one of this machine.
        """
        host, port = self._settings.grpc_address()
        return host, bind_port(self._port, host, port, "--bind")

    async def start(self, shell: Shell | None) -> None:
        """Accept agents. With None they wait, after their token is checked, until ``lead``."""
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

    async def _attach(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Serve one agent's stream, from its Hello to its end; or a node's, with the registrar."""
        shell, codec = await self._leader(), StreamCodec()
        opening = await self.opened(requests, context, codec)
        if not opening:
            return
        hello = opening[0]
        is_node = isinstance(hello, NodeHello)
        session = Session(hello.node_id if is_node else hello.agent_id, codec)
        host: Any = self._registrar if is_node else shell
        await self.serve(host, session, opening, requests, context)
        if session.cut:
            rpc.end_call(context, grpc.StatusCode.ABORTED, session.closing or "")

    async def _leader(self) -> Shell:
        """Wait, as long as the agent does, until this lighthouse leads and can prove it."""
        while True:
            await self._leads.wait()
            shell = self._shell
            assert shell is not None
            await shell.caught_up()
            if shell is self._shell:
                return shell


def bind_port(served: GrpcPort, host: str, port: int, option: str) -> int:
    """Bind a gRPC port. Returns its number. ``option``: the option that names the address.

    Raises:
        UserError: the port is taken, or the host is not one of this machine.
    """
    # gRPC reports a bad port by its own text on stderr, so the port is tried first.
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
        # Python appends the address to the text, which has it already.
        why = (error.strerror or str(error)).partition(" (while ")[0]
        raise UserError(
            f"{option} {host}:{port}: {why.lower()}. The lighthouse was not started. "
            "Give another address, or port 0 for any."
        ) from error
