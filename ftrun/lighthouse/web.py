"""A lighthouse's HTTP server: ``/healthz``, ``/status``, ``/metrics``, and a page for people.

Every route except ``/healthz`` and the page's files needs the token or a session (X1). Only ``POST
/operations`` changes anything in the job. The number of connections and their lifetime are limited
(X3). Not here: the checks before the routes (guard.py), the routes of operations (operations.py),
the page's (page_routes.py, events.py), the status (status.py), the names of the metrics
(metrics.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from aiohttp import web

from ftrun.base import clock
from ftrun.base.errors import not_installed
from ftrun.core.lighthouse.status import Status
from ftrun.lighthouse.events import add_events
from ftrun.lighthouse.guard import add_headers, guard
from ftrun.lighthouse.occurrences import Totals
from ftrun.lighthouse.openapi import openapi
from ftrun.lighthouse.operations import OperationSource, add_routes
from ftrun.lighthouse.page_routes import add_page
from ftrun.lighthouse.sessions import Sessions
from ftrun.lighthouse.settings import ServiceSettings

SHUTDOWN_TIMEOUT_S = 0.5
KEEPALIVE_TIMEOUT_S = 15.0
CONNECTION_LIFETIME_S = 60.0
SWEEP_INTERVAL_S = 5.0
HANDSHAKE_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 256
BODY_BYTES_MAX = 64 * 1024

StatusSource = Callable[[], Status]
IncidentSource = Callable[[], list[dict[str, Any]]]


class WebServer:
    """Serves routes (``build_app``) on a listening socket."""

    def __init__(self, app: web.Application, settings: ServiceSettings) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_silent(),
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
        )
        self._tls = settings.tls.server_context()
        self._server: asyncio.AbstractServer | None = None
        self._since: dict[Any, float] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Answer requests on ``listener``, which is closed with the server."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connection,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls else None,
        )
        self._sweep()

    async def stop(self) -> None:
        """Wait up to ``SHUTDOWN_TIMEOUT_S`` for open requests to end, and close."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        """The protocol of a new connection, or a refusal if there are too many."""
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= CONNECTIONS_MAX:
            return _Refused()
        found: asyncio.Protocol = server()
        return found

    def _sweep(self) -> None:
        """Close connections that are too old.

        aiohttp waits for a request forever, so clients without the token could hold every
        descriptor.
        """
        server, now = self._runner.server, clock.now()
        assert server is not None
        self._since = {x: self._since.get(x, now) for x in server.connections}
        for connection, since in self._since.items():
            if now - since >= CONNECTION_LIFETIME_S:
                connection.force_close()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)


def _silent() -> logging.Logger:
    """A disabled logger: aiohttp would log unparsable bytes, including a damaged token (X4).

    guard.py logs errors of the lighthouse's own handlers.
    """
    logger = logging.getLogger(f"{__name__}.bytes")
    logger.disabled = True
    return logger


class _Refused(asyncio.Protocol):
    """Closes a connection at once, because there are too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def build_app(
    status: StatusSource,
    settings: ServiceSettings,
    operations: OperationSource,
    incidents: IncidentSource = list,
    totals: Totals | None = None,
) -> web.Application:
    counted = totals if totals is not None else Totals()

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def show_status(_request: web.Request) -> web.Response:
        return web.json_response(status())

    async def show_incidents(_request: web.Request) -> web.Response:
        return web.json_response({"incidents": incidents()})

    async def metrics(_request: web.Request) -> web.Response:
        try:
            from ftrun.lighthouse.metrics import CONTENT_TYPE, render_metrics
        except ModuleNotFoundError as error:
            words = str(not_installed(error) or error)
            return web.json_response({"error": words}, status=501)
        body = render_metrics(status(), counted)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def document(_request: web.Request) -> web.Response:
        return web.json_response(openapi(version("ftrun")))

    sessions = Sessions(settings.token)
    app = web.Application(middlewares=[guard(settings, sessions)], client_max_size=BODY_BYTES_MAX)
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/status", show_status)
    app.router.add_get("/incidents", show_incidents)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/openapi.json", document)
    add_routes(app, operations)
    add_events(app, status)
    add_page(app, settings.token, sessions)
    return app
