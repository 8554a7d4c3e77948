"""The routes that act on a job: ``POST /operations``, ``GET /operations/NUMBER``.

They need the token in its header, as every route does, and a JSON body with a media type of their
own, so no web page can send them in a user's name. Not here: what a request does
(core/lighthouse/people/operators.py), the commands that send them (operate/).
"""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

from aiohttp import web

from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.events import Operation, Request
from ftrun.core.lighthouse.status import OperationStatus
from ftrun.protocol.limits import ID_BYTES_MAX

COMMANDS = ("drain", "restart", "kill", "stack")
NEEDS_REPLICA = ("restart", "kill")
WAIT_MAX_S = 30.0
RANK_MAX = 65_535
NUMBER_CHARS_MAX = 18


class OperationSource(Protocol):
    """The lighthouse's shell as these routes use it."""

    async def ask(self, request: Request) -> Operation | None:
        """Begin the requested operation; None: too many are pending."""

    def operation(self, number: int) -> Operation | None:
        """The state of a request; None if it is unknown."""

    async def operation_changed(self, number: int, timeout_s: float) -> None:
        """Wait until the operation changes, at most this long."""


def add_routes(app: web.Application, source: OperationSource) -> None:
    async def ask(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return _refusal(415, "send the request as application/json")
        try:
            wanted = parse_request(await request.json())
        except (ValueError, RecursionError) as error:
            why = "the body is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            return _refusal(400, why)
        operation = await source.ask(wanted)
        if operation is None:
            return _refusal(429, "too many requests are under way: ask again later")
        if operation.refused:
            return _refusal(operation.refused, operation.text)
        return web.json_response(view(operation))

    async def show(request: web.Request) -> web.Response:
        text = request.match_info["number"]
        is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX
        operation = source.operation(int(text)) if is_number else None
        if operation is None:
            return _refusal(404, "there is no such operation, or no longer")
        try:
            wait_s = float(request.query.get("wait", "0"))
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s <= WAIT_MAX_S:
            return _refusal(400, f"wait: give seconds from 0 to {WAIT_MAX_S:g}")
        if wait_s and not operation.has_ended:
            await source.operation_changed(operation.number, wait_s)
        return web.json_response(view(operation))

    app.router.add_post("/operations", ask)
    app.router.add_get("/operations/{number}", show)


def parse_request(found: Any) -> Request:
    """The request in a JSON body.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    if not isinstance(found, dict):
        raise ValueError("the body is no object")
    unknown = found.keys() - {"command", "replica", "rank", "node", "request_id"}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(map(repr, unknown)))[:200]}")
    command = found.get("command")
    if command not in COMMANDS:
        raise ValueError(f"command: give one of {', '.join(COMMANDS)}")
    replica, node = _name(found, "replica"), _name(found, "node")
    rank = found.get("rank")
    if rank is not None and (type(rank) is not int or not 0 <= rank <= RANK_MAX):
        raise ValueError("rank: give a number")
    if command in NEEDS_REPLICA and not replica:
        raise ValueError(f"replica: {command} needs one")
    if rank is not None and (command not in ("kill", "stack") or not replica):
        raise ValueError("rank: only kill and stack of a replica take one")
    if node and (command != "drain" or replica):
        raise ValueError("node: only drain takes one, and then no replica")
    return Request(command, replica, rank, node, _name(found, "request_id"))


def _name(found: dict[str, Any], field: str) -> str:
    value = found.get(field, "")
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{field}: give a short name")
    if len(value.encode()) > ID_BYTES_MAX:  # the same limit as in the journal
        raise ValueError(f"{field}: give a short name, of {ID_BYTES_MAX} bytes at most")
    return value


def view(operation: Operation) -> OperationStatus:
    ended = "failed" if operation.has_failed else "done"
    in_order = sorted(
        operation.stacks.items(), key=lambda x: (replica_order(x[0].replica_id), x[0].group_rank)
    )
    return {
        "operation": operation.number,
        "request_id": operation.request.request_id,
        "command": operation.request.command,
        "state": ended if operation.has_ended else "under way",
        "text": operation.text,
        "stacks": [
            {"replica_id": key.replica_id, "group_rank": key.group_rank, "text": text}
            for key, text in in_order
        ],
    }


def _refusal(status: int, why: str) -> web.Response:
    return web.json_response({"error": why}, status=status)
