"""HTTP of a lighthouse: ``/healthz`` for probes, ``/status`` for people, ``/metrics`` to scrape.

Every route but ``/healthz`` asks for the token (X1), and none of them changes anything. Connections
are few and short (X3). Not here: what stands before the routes (guard.py), what the status says
(core/), the figures' names (metrics.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from aiohttp import web

from ftrun.lighthouse.guard import add_headers, guard
from ftrun.lighthouse.metrics import CONTENT_TYPE, render_metrics
from ftrun.lighthouse.openapi import openapi
from ftrun.lighthouse.settings import ServiceSettings

SHUTDOWN_TIMEOUT_S = 0.5
KEEPALIVE_TIMEOUT_S = 15.0
CONNECTION_LIFETIME_S = 60.0
HANDSHAKE_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 256
BODY_BYTES_MAX = 64 * 1024

Status = Callable[[], dict[str, Any]]


class WebServer:
    """Serves the routes on a socket that listens already."""

    def __init__(self, status: Status, settings: ServiceSettings) -> None:
        self._runner = web.AppRunner(
            build_app(status, settings),
            access_log=None,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
        )
        self._tls = settings.tls.server_context()
        self._server: asyncio.AbstractServer | None = None

    async def start(self, listener: socket.socket) -> None:
        """Answer what comes in on ``listener``, which is closed with the server."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connection,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls else None,
        )

    async def stop(self) -> None:
        """Let requests under way end, for a moment, and close."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        """One connection's protocol: refused if there are too many, cut when its time is over.

        aiohttp waits for a request for ever: without the token one could hold every descriptor.
        """
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= CONNECTIONS_MAX:
            return _Refused()
        handler = server()
        asyncio.get_running_loop().call_later(CONNECTION_LIFETIME_S, handler.force_close)
        return handler


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def build_app(status: Status, settings: ServiceSettings) -> web.Application:
    """The routes, behind the guard."""

    async def healthz(request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def show_status(request: web.Request) -> web.Response:
        return web.json_response(status())

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=render_metrics(status()), headers={"Content-Type": CONTENT_TYPE})

    async def document(request: web.Request) -> web.Response:
        return web.json_response(openapi(version("ftrun")))

    app = web.Application(middlewares=[guard(settings)], client_max_size=BODY_BYTES_MAX)
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/status", show_status)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/openapi.json", document)
    return app
