"""``GET /events``: the status once a second, as server-sent events, for the web page.

All streams share one snapshot. If making it takes long it is made less often, so that watching
costs the lighthouse at most a twentieth of a core. The number of streams is limited and they end by
themselves: the page reconnects. Not here: the checks before the route (guard.py), the status's
fields (core/lighthouse/status.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from ftrun.base import clock
from ftrun.core.lighthouse.status import ReplicaStatus, Status

STREAMS_MAX = 16
STREAM_S = 50.0
"""Less than a connection's lifetime (web.py), so that a stream ends between two events."""
INTERVAL_S = 1.0
LOAD_MAX = 0.05
WRITE_S = 5.0
WHOLE_REPLICAS_MAX = 64
HEARTBEAT = b": alive\n\n"

_NOT_ON_THE_PAGE = frozenset({"messages_received", "torchft"})
_LEFT_OUT = frozenset({"seconds", "incarnation", "agent_id", "batches", "scalars"})
_LEFT_OUT_OF_MANY = _LEFT_OUT | {"workers", "last_event"}


class Snapshots:
    """The latest event, made again when it is a second old and a stream wants it."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._event = b""
        self._number = 0
        self._due = 0.0

    def after(self, number: int) -> tuple[int, bytes]:
        """The event that follows ``number``, with its own number; empty if none is due yet."""
        began = clock.now()
        if began >= self._due:
            self._number += 1
            data = json.dumps(page_status(self._status()), separators=(",", ":"))
            self._event = f"id: {self._number}\ndata: {data}\n\n".encode()
            took_s = clock.now() - began
            # A tenth less than the interval, so that streams that tick together all find it due.
            self._due = began + max(0.9 * INTERVAL_S, took_s / LOAD_MAX)
        return (self._number, self._event) if self._number != number else (number, b"")


def page_status(status: Status) -> dict[str, Any]:
    """The status without the fields that the page does not show; for many replicas with fewer of
    each."""
    left_out = _LEFT_OUT if len(status["replicas"]) <= WHOLE_REPLICAS_MAX else _LEFT_OUT_OF_MANY
    shown: dict[str, Any] = {k: v for k, v in status.items() if k not in _NOT_ON_THE_PAGE}
    shown["replicas"] = [_without(replica, left_out) for replica in status["replicas"]]
    return shown


def _without(replica: ReplicaStatus, left_out: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in replica.items() if name not in left_out}


def add_events(app: web.Application, status: Callable[[], Status]) -> None:
    snapshots, streams = Snapshots(status), set[asyncio.Task[Any] | None]()

    async def events(request: web.Request) -> web.StreamResponse:
        if len(streams) >= STREAMS_MAX:
            error = {"error": f"{STREAMS_MAX} pages watch this job: close one, or ask again later"}
            return web.json_response(error, status=503, headers={"Retry-After": "5"})
        task = asyncio.current_task()
        streams.add(task)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await _send(response, snapshots)
        except (ConnectionError, asyncio.TimeoutError):
            response.force_close()  # the browser is gone, or does not read
        finally:
            streams.discard(task)
        return response

    app.router.add_get("/events", events, allow_head=False)


async def _send(response: web.StreamResponse, snapshots: Snapshots) -> None:
    """Write events, or heartbeats if none is due, until the stream's time is over."""
    ends, number = clock.now() + STREAM_S, 0
    while clock.now() < ends:
        number, event = snapshots.after(number)
        await asyncio.wait_for(response.write(event or HEARTBEAT), WRITE_S)
        await asyncio.sleep(INTERVAL_S)
