"""The web server's routes as an OpenAPI document, served at ``/openapi.json``.

A test compares it with the route table, so that no route is missing in either, and schemathesis
uses it to test every route. Not here: the fields of a status
(core/lighthouse/status.py), from which its schema is derived.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from ftrun.core.lighthouse.status import OperationStatus, Status
from ftrun.lighthouse.operations import COMMANDS, RANK_MAX, WAIT_MAX_S

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def openapi(version: str) -> dict[str, Any]:
    """The document of this version of ftrun."""
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "ftrun lighthouse",
            "version": version,
            "description": "A lighthouse's status for people and scrapers. Every route but "
            "/healthz needs the job's token. Only POST /operations changes anything.",
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
            "/operations": _post_operation(),
            "/operations/{number}": _get_operation(),
        },
    }


_TEXT = {"type": "string"}


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
    refusals = {"400": "No HTTP", "401": "No token, or another's", "421": "Not under that name"}
    error = _json({"$ref": "#/components/schemas/Error"})
    answers: dict[str, Any] = {"200": {"description": summary, "content": content}}
    for code, why in refusals.items():
        answers[code] = {"description": why, "content": error}
    operation: dict[str, Any] = {"summary": summary, "responses": answers}
    if summary == "Whether it is alive":
        operation["security"] = []
        del answers["401"]
    return {"get": operation}


_OPERATION = _json(schema_of(OperationStatus))
