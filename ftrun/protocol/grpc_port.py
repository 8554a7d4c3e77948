"""A gRPC server on one port that survives a failure of grpc.aio to accept calls.

A call whose path is not UTF-8 ends the loop in which grpc.aio accepts calls, before anything is
checked (found by fuzzing; grpcio 1.85). The server's streams stay open. So another server takes the
port, and clients with a stream do not notice. Not here: what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from ftrun.base import clock
from ftrun.base.addresses import join_address

STOP_GRACE_S = 0.5
REPLACE_TIMEOUT_S = 30.0
REPLACE_PAUSE_S = 0.02
RETIRED_S_MAX = 365 * 86400.0

log = logging.getLogger(__name__)


class GrpcPort:
    """Serves on one address what ``make`` builds.

    Args:
        make: builds a server with its handlers, without a port.
        credentials: of TLS; None: plaintext.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        credentials: Callable[[], grpc.ServerCredentials] | None = None,
    ) -> None:
        self._make = make
        self._credentials = credentials
        self._server = make()
        self._host = ""
        self._port = 0
        self._replacing: asyncio.Task[None] | None = None
        self._retired: set[asyncio.Task[None]] = set()

    def bind(self, host: str, port: int) -> int:
        """Bind the address; port 0: any. Returns the port.

        Raises:
            RuntimeError: the port is taken.
        """
        self._host = host
        self._port = port
        self._port = self._add_port()
        return self._port

    async def start(self) -> None:
        before = asyncio.all_tasks()
        await self._server.start()
        for task in asyncio.all_tasks() - before:
            task.add_done_callback(self._accepting_ended)

    async def stop(self) -> None:
        """End all calls and release the port."""
        for task in (self._replacing, *self._retired):
            if task is not None:
                task.cancel()
        await self._server.stop(STOP_GRACE_S)

    def _accepting_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and isinstance(task.exception(), UnicodeDecodeError):
            log.warning("a call that cannot be read has ended a gRPC server; the next one serves")
            self._replacing = asyncio.ensure_future(self._replace())

    async def _replace(self) -> None:
        retired = asyncio.ensure_future(_outlive_streams(self._server))
        self._retired.add(retired)
        retired.add_done_callback(self._retired.discard)
        deadline = clock.now() + REPLACE_TIMEOUT_S
        while True:
            self._server = self._make()
            try:
                self._add_port()
                break
            except RuntimeError:
                # The old server releases the port at some later moment, without a signal.
                if clock.now() > deadline:
                    log.error(
                        "no gRPC server can take port %s again: no node can connect", self._port
                    )
                    return
                await asyncio.sleep(REPLACE_PAUSE_S)
        await self.start()

    def _add_port(self) -> int:
        address = join_address(self._host, self._port)
        if self._credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._credentials())


async def _outlive_streams(server: grpc.aio.Server) -> None:
    """Keep a server that accepts no more calls until its last stream has ended."""
    with contextlib.suppress(UnicodeDecodeError):
        await server.stop(RETIRED_S_MAX)
