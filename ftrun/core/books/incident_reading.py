"""Turns the record of an incident back into the incident, for a restarted lighthouse.

The opposite of ``incident_record.document``: from that record and later evidence, the same record
results again. Not here: the consequences (incidents.py), the file (lighthouse/).
"""

from __future__ import annotations

from typing import Any

from ftrun.core import failure_kinds as kinds
from ftrun.core.books.incident_record import document
from ftrun.core.books.incident_state import Incident, Part, Response, Standing
from ftrun.core.ids import NO_ATTEMPT, pack_quorum_id
from ftrun.core.messages import FailedWorker, FailureEvidence, Healed

Record = dict[str, Any]


def incident_of(record: Record, age_s: float, now: float) -> Incident | None:
    """The incident with this record, whose first cause is ``age_s`` old; None: it is damaged."""
    try:
        incident = _incident(record, age_s, now)
        document(incident, record["job_id"], now)  # check that it can be written again
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return incident


def _incident(record: Record, age_s: float, now: float) -> Incident:
    began_at = now - age_s
    quorum = None if record["quorum"] is None else _quorum_id(record["quorum"])
    parts = [_part(x, began_at, record) for x in (record["first_cause"], *record["consequences"])]
    standing = [Standing(**x) for x in record["members"]]
    members = [x.replica_id for x in standing]
    if quorum is not None:
        members += [part.replica_id for part in parts]
    incident = Incident(
        number=record["number"],
        began_at=began_at,
        noted_at=now,
        step=record["step"],
        quorum=quorum,
        members=tuple(dict.fromkeys(members)),
        parts=parts,
        standing=standing,
        response=_response(record["response"]),
        not_listed=record["consequences_not_shown"],
        closed_at=None if record["is_open"] else now,
        is_earlier=True,
        cost_s=float(record["cost"]["replica_seconds"]),
    )
    if record["verdict"] in (kinds.ENDED, kinds.NOT_KNOWN):
        incident.end_verdict, incident.ended_words = record["verdict"], record["verdict_words"]
    return incident


def _quorum_id(name: str) -> int:
    epoch, _, seq = name.partition(".")
    return pack_quorum_id(int(epoch), int(seq))


def _part(found: Record, began_at: float, record: Record) -> Part:
    at = began_at + found["after_s"]
    back_after_s = found["back_after_s"]
    return Part(
        replica_id=found["replica_id"],
        incarnation=found["incarnation"],
        at=at,
        kind=found["kind"],
        cause=found["cause"],
        agent_id=found["agent_id"],
        host=found["host"],
        evidence=_evidence(found, record),
        back_at=None if back_after_s is None else at + back_after_s,
        healed=_healed(found["healed"]),
        set_aside=record["verdict_words"] if record["verdict"] == kinds.SET_ASIDE else "",
    )


def _evidence(found: Record, record: Record) -> FailureEvidence | None:
    """The evidence that an agent has sent. Its verdict is the whole record's."""
    if found["worker"] is None:
        return None
    step = found["step"]
    return FailureEvidence(
        replica_id=found["replica_id"],
        incarnation=found["incarnation"],
        restarts=found["restarts"],
        workers=tuple(map(_worker, (found["worker"], *found["other_workers"]))),
        has_step=step is not None,
        step=step or 0,
        verdict=record["verdict"],
        words=record["verdict_words"],
        steps_again=0 if record["response"] else record["cost"]["steps"],
    )


def _worker(found: Record) -> FailedWorker:
    signal = found["signal"]
    same = found.keys() - {"exit_code", "signal"}
    status = found["exit_code"] if signal is None else -signal
    return FailedWorker(status=status, age_s=0.0, **{name: found[name] for name in same})


def _healed(found: Record | None) -> Healed | None:
    if found is None:
        return None
    donors = tuple(found["donors"])
    return Healed(NO_ATTEMPT, found["step"], donors, found["nbytes"], found["duration_s"])


def _response(found: Record | None) -> Response | None:
    if found is None:
        return None
    facts: Record = {k: tuple(x) if isinstance(x, list) else x for k, x in found.items()}
    return Response(**facts)
