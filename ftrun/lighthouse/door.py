"""The common address of many jobs: agents get the port of their job's lighthouse.

An agent states its job in the metadata of its call. The door answers with a port on its own host,
to which the agent connects; if that lighthouse is gone, the agent asks again. No job's messages
pass through the door, so each job's lighthouse, journal and failures are separate.

Not here: the lighthouses' processes (tools/door.py), what an agent does with a port
(protocol/rpc.py).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypedDict

import grpc
from aiohttp import web

from ftrun.base.errors import ExitCode
from ftrun.lighthouse.guard import add_headers, guard
from ftrun.lighthouse.main import StopRequests
from ftrun.lighthouse.page_routes import DOOR_FILES, add_files
from ftrun.lighthouse.server import MembershipServer, listen
from ftrun.lighthouse.sessions import Sessions
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.web import WebServer
from ftrun.protocol.rpc import JOB, MOVED, end_call

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

log = logging.getLogger(__name__)


class HouseStatus(TypedDict):
    """One job's lighthouse. ``ports`` are on the door's host; 0: it is not running."""

    job_id: str
    agents_port: int
    status_port: int
    pid: int
    starts: int


class Houses(Protocol):
    """The lighthouses behind a door."""

    async def port(self, job_id: str) -> int | str:
        """The port of the job's lighthouse, which is started if necessary; or an error text."""

    def listed(self) -> list[HouseStatus]:
        """All of them."""

    async def stop(self) -> None:
        """Stop them all. Each serves until the leaving agents have left."""


async def serve_door(
    settings: ServiceSettings, houses: Houses, announce: Callable[[str], None] = print
) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code.

    ``announce`` is called with one line as soon as agents can connect.

    Raises:
        UserError: a port is taken.
    """

    async def attach(_requests: AsyncIterator[bytes], context: Any) -> None:
        found = dict(context.invocation_metadata() or ()).get(JOB, "")
        if not isinstance(found, str) or not JOB_ID.fullmatch(found):
            words = "this is a door of many jobs (--jobs), and the call states none"
            return end_call(context, grpc.StatusCode.INVALID_ARGUMENT, words)
        port = await houses.port(found)
        if isinstance(port, str):
            return end_call(context, grpc.StatusCode.UNAVAILABLE, port)
        context.set_trailing_metadata(((MOVED, str(port)),))
        end_call(context, grpc.StatusCode.UNAVAILABLE, f"its lighthouse is at port {port}")

    server = MembershipServer(settings, attach)
    host, port = server.bind()
    with listen(*settings.http_address(), "--http") as listener:
        http = f"{settings.http_address()[0]}:{listener.getsockname()[1]}"
        stopping = StopRequests(-1)
        web_server = WebServer(_routes(settings, houses), settings)
        await server.start(None)
        await web_server.start(listener.dup())
        scheme = "https" if settings.tls else "http"
        announce(
            f"lighthouse ready: agents {host}:{port}, status {scheme}://{http}/jobs, "
            f"a lighthouse for each job in {settings.state_dir / 'jobs'}"
        )
        try:
            await stopping.asked.wait()
            log.info(
                "the door stops, and the lighthouses behind it; jobs that run train on without them"
            )
            await _unless_insisted(houses, stopping)
        finally:
            await web_server.stop()
            await server.stop()
    return ExitCode.OK


async def _unless_insisted(houses: Houses, stopping: StopRequests) -> None:
    """Let the lighthouses end in order. At a second request they die with this process."""
    tasks = [asyncio.ensure_future(x) for x in (houses.stop(), stopping.insisted.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _routes(settings: ServiceSettings, houses: Houses) -> web.Application:
    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def jobs(_request: web.Request) -> web.Response:
        return web.json_response({"jobs": houses.listed()})

    app = web.Application(middlewares=[guard(settings, Sessions(settings.token), DOOR_FILES)])
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/jobs", jobs)
    add_files(app, DOOR_FILES)
    return app
