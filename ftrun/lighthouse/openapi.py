"""The web server's routes as an OpenAPI document, served at ``/openapi.json``.

A test compares it with the route table in both directions, and schemathesis uses it to test every
route. Not here: the fields of a status (core/lighthouse/status.py), from which its schema is
derived.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from ftrun.core.lighthouse.status import OperationStatus, Status
from ftrun.lighthouse.events import STREAMS_MAX
from ftrun.lighthouse.operations import COMMANDS, RANK_MAX, WAIT_MAX_S
from ftrun.lighthouse.page_routes import FILES

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def openapi(version: str) -> dict[str, Any]:
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "ftrun lighthouse",
            "version": version,
            "description": "A lighthouse's status for people and scrapers. Every route but "
            "/healthz and the web page's files needs the job's token, or a session of the page. "
            "Only POST /operations changes anything in the job.",
        },
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object({"error": _TEXT})},
        },
        "paths": _paths(),
    }


def _paths() -> dict[str, Any]:
    alive = _json(_object({"ok": {"type": "boolean"}}))
    incidents = _object({"incidents": {"type": "array", "items": {"type": "object"}}})
    expiring = {"expires_s": {"type": "number"}}
    operation = _json(schema_of(OperationStatus))
    code = {"type": "object", "properties": {"code": _TEXT}}
    seconds = {"type": "number", "minimum": 0, "maximum": WAIT_MAX_S}
    return {
        "/healthz": _route("get", "Whether it is alive", alive, is_open=True),
        "/status": _route(
            "get", "The job: replicas, quorum, steps, events", _json(schema_of(Status))
        ),
        "/incidents": _route(
            "get", "The failures of the job, oldest first (docs/INCIDENTS.md)", _json(incidents)
        ),
        "/metrics": _route("get", "Figures for Prometheus", {"text/plain": {"schema": _TEXT}}),
        "/openapi.json": _route("get", "This document", _json({"type": "object"})),
        # Each event's data is a status without the fields that the page does not show.
        "/events": _route(
            "get",
            "The status once a second, for the web page",
            {"text/event-stream": {"schema": _TEXT}},
            {"503": f"{STREAMS_MAX} streams are open"},
        ),
        "/links": _route(
            "post",
            "A code for one link to the web page",
            _json(_object({"code": _TEXT, **expiring})),
            _TOO_LONG,
        ),
        # The code in the body replaces the token, so the token is not required.
        "/session": _route(
            "post",
            "A session of the web page, for the token or a link's code",
            _json(_object({"session": _TEXT, **expiring})),
            _TOO_LONG,
            requestBody={"required": False, "content": _json(code)},
        ),
        **{
            path: _route("get", f"The web page: {name}", {kind: {"schema": _TEXT}}, is_open=True)
            for path, (name, kind) in FILES.items()
        },
        "/operations": _route(
            "post",
            "Drain, restart or kill replicas, or take stacks",
            operation,
            {
                "404": "No such replica, worker or node",
                "409": "It cannot be done now",
                **_TOO_LONG,
                "415": "Not sent as application/json",
                "429": "Too many are under way",
            },
            requestBody={"required": True, "content": _json(_request())},
        ),
        "/operations/{number}": _route(
            "get",
            "What has become of it",
            operation,
            {"404": "There is no such operation, or no longer"},
            parameters=[
                {"name": "number", "in": "path", "required": True, "schema": _TEXT},
                {"name": "wait", "in": "query", "required": False, "schema": seconds},
            ],
        ),
    }


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a TypedDict, list, dict with text keys, scalar, or an optional of these.

    Raises:
        KeyError: JSON has no such type.
    """
    if is_typeddict(kind):
        return _object({name: schema_of(of) for name, of in get_type_hints(kind).items()})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin in (Union, UnionType):
        (value,) = (of for of in inner if of is not type(None))
        return {**schema_of(value), "nullable": True}
    return {"type": _SCALARS[kind]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _request() -> dict[str, Any]:
    name = {"type": "string", "maxLength": 128}
    return {
        "type": "object",
        "required": ["command"],
        "additionalProperties": False,
        "properties": {
            "command": {"type": "string", "enum": list(COMMANDS)},
            "replica": name,
            "rank": {"type": "integer", "minimum": 0, "maximum": RANK_MAX},
            "node": name,
            "request_id": name,
        },
    }


def _route(
    method: str,
    summary: str,
    content: dict[str, Any],
    refusals: dict[str, str] | None = None,
    *,
    is_open: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """``refusals``: in addition to the refusals of every route. ``is_open``: it needs no token."""
    found = {"400": "No HTTP", "421": "Not under that name", **(refusals or {})}
    if not is_open:
        found |= {"401": "No token, or another's", "403": "Of another page"}
    error = _json({"$ref": "#/components/schemas/Error"})
    answers = {code: {"description": why, "content": error} for code, why in found.items()}
    answers["200"] = {"description": summary, "content": content}
    security: dict[str, Any] = {"security": []} if is_open else {}
    return {method: {"summary": summary, "responses": answers, **security, **more}}


_TEXT = {"type": "string"}
_TOO_LONG = {"413": "Too long"}
