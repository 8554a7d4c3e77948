"""The web server's routes as an OpenAPI document, served at ``/openapi.json``.

A test compares it with the route table, so that no route is missing in either, and schemathesis
uses it to test every route. Not here: the fields of a status
(core/lighthouse/status.py), from which its schema is derived.
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
            "schemas": {"Error": _object({"error": {"type": "string"}})},
        },
        "paths": {
            "/healthz": _get("Whether it is alive", _json(_object({"ok": {"type": "boolean"}}))),
            "/status": _get("The job: replicas, quorum, steps, events", _json(schema_of(Status))),
            "/incidents": _get(
                "The failures of the job, oldest first (docs/INCIDENTS.md)",
                _json(_object({"incidents": {"type": "array", "items": {"type": "object"}}})),
            ),
            "/metrics": _get("Figures for Prometheus", {"text/plain": {"schema": _TEXT}}),
            "/openapi.json": _get("This document", _json({"type": "object"})),
            "/events": _get_events(),
            "/links": _post("A code for one link to the web page", _json(_CODE)),
            "/session": _post_session(),
            **{path: _open(name, kind) for path, (name, kind) in FILES.items()},
            "/operations": _post_operation(),
            "/operations/{number}": _get_operation(),
        },
    }


_TEXT = {"type": "string"}
_TEXT_ONLY = {"schema": _TEXT}


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a TypedDict, a list, a dict with text keys, a scalar, or one of these or None.

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


def _get_events() -> dict[str, Any]:
    """The stream: each event's data is a status without what the page does not show."""
    found = _get("The status once a second, for the web page", {"text/event-stream": _TEXT_ONLY})
    _add_refusals(found["get"], {"503": f"{STREAMS_MAX} streams are open"})
    return found


def _open(name: str, kind: str) -> dict[str, Any]:
    """A file of the web page, which needs no token."""
    found = _get(f"The web page: {name}", {kind: _TEXT_ONLY})
    found["get"]["security"] = []
    del found["get"]["responses"]["401"], found["get"]["responses"]["403"]
    return found


def _post(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    operation = _get(summary, content)["get"]
    _add_refusals(operation, {"413": "Too long"})
    return {"post": operation}


def _post_session() -> dict[str, Any]:
    """The code in the body stands for the token, so the token is not required."""
    found = _post("A session of the web page, for the token or a link's code", _json(_SESSION))
    body = {"type": "object", "properties": {"code": _TEXT}}
    found["post"]["requestBody"] = {"required": False, "content": _json(body)}
    return found


def _post_operation() -> dict[str, Any]:
    name = {"type": "string", "maxLength": 128}
    body = {
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
    operation = _get("Drain, restart or kill replicas, or take stacks", _OPERATION)["get"]
    operation["requestBody"] = {"required": True, "content": _json(body)}
    _add_refusals(
        operation,
        {
            "404": "No such replica, worker or node",
            "409": "It cannot be done now",
            "413": "Too long",
            "415": "Not sent as application/json",
            "429": "Too many are under way",
        },
    )
    return {"post": operation}


def _get_operation() -> dict[str, Any]:
    found = _get("What has become of it", _OPERATION)
    number = {"name": "number", "in": "path", "required": True, "schema": {"type": "string"}}
    seconds = {"type": "number", "minimum": 0, "maximum": WAIT_MAX_S}
    wait = {"name": "wait", "in": "query", "required": False, "schema": seconds}
    found["get"]["parameters"] = [number, wait]
    _add_refusals(found["get"], {"404": "There is no such operation, or no longer"})
    return found


def _add_refusals(operation: dict[str, Any], refusals: dict[str, str]) -> None:
    error = _json({"$ref": "#/components/schemas/Error"})
    for code, why in refusals.items():
        operation["responses"][code] = {"description": why, "content": error}


def _get(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    refusals = {
        "400": "No HTTP",
        "401": "No token, or another's",
        "403": "Of another page",
        "421": "Not under that name",
    }
    error = _json({"$ref": "#/components/schemas/Error"})
    answers: dict[str, Any] = {"200": {"description": summary, "content": content}}
    for code, why in refusals.items():
        answers[code] = {"description": why, "content": error}
    operation: dict[str, Any] = {"summary": summary, "responses": answers}
    if summary == "Whether it is alive":
        operation["security"] = []
        del answers["401"], answers["403"]
    return {"get": operation}


_OPERATION = _json(schema_of(OperationStatus))
_CODE = _object({"code": _TEXT, "expires_s": {"type": "number"}})
_SESSION = _object({"session": _TEXT, "expires_s": {"type": "number"}})
