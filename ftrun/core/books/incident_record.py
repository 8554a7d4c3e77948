"""An incident as JSON, version 1 (docs/INCIDENTS.md). The texts and the whole are bounded.

``ago_s`` is relative to the moment of writing; the shell adds ``time`` and ``written``, because the
core knows no date. Not here: the incident itself (incident_state.py), its text for people
(core/incident_words.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ftrun.core.books.incident_state import Incident, Part
from ftrun.core.ids import quorum_name
from ftrun.core.messages import FailedWorker, FailureEvidence

SCHEMA = "ftrun.incident/1"
DOCUMENT_BYTES_MAX = 56 * 1024
"""A record fits into one text of a message, with its dates and its punctuation."""
TEXT_CHARS = 16 * 1024
FOLLOWER_CHARS = 1024
TEXTS = ("message", "traceback", "output", "stacks")


def document(incident: Incident, job_id: str, now: float) -> dict[str, Any]:
    """The record; its texts are shortened until the whole is within its limit."""
    chars = TEXT_CHARS
    while True:
        found = _document(incident, job_id, now, chars)
        if len(json.dumps(found).encode()) <= DOCUMENT_BYTES_MAX or chars < 16:
            return found
        chars //= 2


def _document(incident: Incident, job_id: str, now: float, chars: int) -> dict[str, Any]:
    verdict, words = incident.verdict()
    first, *followers = incident.in_order()
    shown = followers[: max(1, chars // 256)]
    return {
        "schema": SCHEMA,
        "job_id": job_id,
        "number": incident.number,
        "ago_s": round(now - first.at, 3),
        "is_open": incident.closed_at is None,
        "step": incident.step,
        "quorum": None if incident.quorum is None else quorum_name(incident.quorum),
        "first_cause": _part(first, first, chars),
        "consequences": [_part(x, first, min(chars, FOLLOWER_CHARS)) for x in shown],
        "consequences_not_shown": len(followers) - len(shown) + incident.unlisted_count,
        "members": [asdict(x) for x in incident.standing],
        "response": _response(incident),
        "cost": {
            "steps": incident.steps_lost(),
            "replica_seconds": round(incident.cost_s, 3),
        },
        "verdict": verdict,
        "verdict_words": words,
    }


def _part(part: Part, first: Part, chars: int) -> dict[str, Any]:
    evidence = part.evidence
    workers = evidence.workers if evidence is not None else ()
    main = workers[0] if workers else None
    return {
        "replica_id": part.replica_id,
        "incarnation": part.incarnation,
        "agent_id": part.agent_id,
        "host": part.host,
        "after_s": round(part.at - first.at, 3),
        "kind": part.kind,
        "cause": _clipped(part.cause, chars),
        "restarts": evidence.restarts if evidence is not None else None,
        "step": _step(evidence),
        "worker": _worker(main, chars) if main is not None else None,
        "other_workers": [_worker(x, min(chars, FOLLOWER_CHARS)) for x in workers[1:]],
        "back_after_s": None if part.back_at is None else round(part.back_at - part.at, 3),
        "healed": _healed(part),
    }


def _step(evidence: FailureEvidence | None) -> int | None:
    return evidence.step if evidence is not None and evidence.has_step else None


def _worker(worker: FailedWorker, chars: int) -> dict[str, Any]:
    return {
        "group_rank": worker.group_rank,
        "pid": worker.pid,
        "kind": worker.kind,
        "cause": _clipped(worker.cause, chars),
        "exit_code": worker.status if worker.status >= 0 else 128 - worker.status,
        "signal": -worker.status if worker.status < 0 else None,
        "error_type": _clipped(worker.error_type, 256),
        "memory": _clipped(worker.memory, 1024),
        **{name: _clipped(getattr(worker, name), chars) for name in TEXTS},
    }


def _healed(part: Part) -> dict[str, Any] | None:
    if part.healed is None:
        return None
    healed = part.healed
    return {
        "step": healed.step,
        "donors": list(healed.donors)[:64],
        "nbytes": healed.nbytes,
        "duration_s": round(healed.duration_s, 3),
    }


def _response(incident: Incident) -> dict[str, Any] | None:
    """How the others continued; None: none had to, or not yet."""
    if incident.response is None:
        return None
    found = {
        name: list(value)[:64] if isinstance(value, tuple) else value
        for name, value in asdict(incident.response).items()
    }
    return {**found, "duration_s": round(incident.response.duration_s, 4)}


def _clipped(text: str, chars: int) -> str:
    """The text, or its beginning and end: a traceback has its cause at the end."""
    if len(text) <= chars:
        return text
    head, tail = chars // 4, chars - chars // 4
    return f"{text[:head]}\n[... {len(text) - chars} characters left out ...]\n{text[-tail:]}"
