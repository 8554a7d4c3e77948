"""HTTP of a lighthouse: ``/healthz`` for probes, ``/status`` for people, ``/metrics`` to scrape.

Every route but ``/healthz`` asks for the token (X1). Not here: what the status says (core/), the
figures' names (metrics.py).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web

from ftrun.lighthouse.metrics import CONTENT_TYPE, render_metrics
from ftrun.protocol.auth import bearer_matches

OPEN_ROUTES = frozenset({"/healthz"})
SHUTDOWN_TIMEOUT_S = 0.5
KEEPALIVE_TIMEOUT_S = 15.0

Status = Callable[[], dict[str, Any]]


class WebServer:
    """Serves the routes on a socket that listens already."""

    def __init__(self, status: Status, token: str, tls: ssl.SSLContext | None = None) -> None:
        self._runner = web.AppRunner(
            build_app(status, token),
            access_log=None,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
        )
        self._tls = tls

    async def start(self, listener: socket.socket) -> None:
        """Answer what comes in on ``listener``, which is closed with the server."""
        await self._runner.setup()
        await web.SockSite(self._runner, listener, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """Let requests under way end, for a moment, and close."""
        await self._runner.cleanup()


def build_app(status: Status, token: str) -> web.Application:
    """The routes, behind the token."""

    async def healthz(request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def show_status(request: web.Request) -> web.Response:
        return web.json_response(status())

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=render_metrics(status()), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(middlewares=[_token_gate(token)], client_max_size=64 * 1024)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/status", show_status)
    app.router.add_get("/metrics", metrics)
    return app


def _token_gate(token: str) -> Any:
    """Refuse every path without the token, known or not, but the open ones."""

    @web.middleware
    async def gate(
        request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        if request.path in OPEN_ROUTES or bearer_matches(
            request.headers.get("Authorization"), token
        ):
            response: web.StreamResponse = await handler(request)
            return response
        return web.json_response(
            {"error": "the job's token is missing or wrong"},
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )

    return gate
