"""The web server's routes as an OpenAPI document, served at ``/openapi.json``.

A test holds it against the route table, so that no route is forgotten here or there, and
schemathesis asks every route by it. Not here: a status, field by field
(core/lighthouse/snapshot.py).
"""

from __future__ import annotations

from typing import Any

STATUS_FIELDS = (
    "lighthouse", "job", "phase", "epoch", "quorum", "step", "replicas", "agents", "history",
    "events",
)  # fmt: skip


def openapi(version: str) -> dict[str, Any]:
    """The document of this version of ftrun."""
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "ftrun lighthouse",
            "version": version,
            "description": "What a lighthouse tells people and scrapers. Every route but /healthz "
            "asks for the job's token. Nothing can be changed here.",
        },
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object({"error": {"type": "string"}})},
        },
        "paths": {
            "/healthz": _get("Whether it is alive", _json(_object({"ok": {"type": "boolean"}}))),
            "/status": _get("The job: replicas, quorum, steps, events", _json(_status())),
            "/metrics": _get("Figures for Prometheus", {"text/plain": {"schema": _TEXT}}),
            "/openapi.json": _get("This document", _json({"type": "object"})),
        },
    }


_TEXT = {"type": "string"}


def _status() -> dict[str, Any]:
    return {"type": "object", "required": list(STATUS_FIELDS)}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


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
