"""What follows an incident: how the others go on, and when its replicas are back.

Not here: which failures are one incident (incidents.py), its data (incident_state.py).
"""

from __future__ import annotations

from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.incident_state import Incident, Part, Response, Standing
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.state import MembershipState

STANDS = IN_QUORUM - {Phase.BUILD}
STANDING_MAX = 64


def standing_of(state: MembershipState, but: str) -> list[Standing]:
    """Where each other member is, as far as its last message tells."""
    found = []
    for name in sorted(state.live - {but}, key=replica_order)[:STANDING_MAX]:
        replica = state.replicas[name]
        if replica.progress is not None:
            found.append(Standing(name, replica.progress.step, replica.progress.phase.value))
        else:
            known = [report.state.step for report in replica.reports.values()]
            found.append(Standing(name, max(known, default=0), ""))
    return found


def note_response(state: MembershipState, incident: Incident) -> None:
    """The first quorum that stands after the failure, and how its members came to it."""
    if incident.response is not None or incident.others_go_on:
        return
    if state.phase not in STANDS or state.quorum is None:
        return
    changes = [c for c in state.history.changes if c.ended_at is not None and c.quorum]
    change = next((c for c in changes if (c.ended_at or 0.0) >= incident.noted_at), None)
    if change is None or change.ended_at is None:
        incident.others_go_on = incident.is_earlier
        return
    survivors = [name for name in incident.members if name in state.live]
    incident.response = Response(
        kind=change.kind,
        quorum=change.quorum,
        members=change.members,
        survivors=tuple(survivors),
        recomputes=state.quorum.recomputes,
        step=change.step,
        duration_s=change.ended_at - change.began_at,
    )
    for standing in incident.standing:
        replica = state.replicas.at(standing.replica_id)
        if replica is not None and replica.reports:
            standing.note(list(replica.reports.values()))


def note_returns(state: MembershipState, incident: Incident) -> None:
    """Which of its replicas are back; once all are, it is over."""
    for part in incident.parts:
        if part.back_at is not None:
            continue
        replica = state.replicas.at(part.replica_id)
        is_next = replica is not None and part.is_followed_by(replica.incarnation)
        is_open = part.replica_id in state.slots and state.slots[part.replica_id].is_open
        if not is_open or (is_next and _trains(state, part, incident)):
            part.back_at = state.now
        elif part.started_at is not None and part.replica_id not in incident.members:
            part.back_at = part.started_at
    incident.close_if_over(state.now)


def _trains(state: MembershipState, part: Part, incident: Incident) -> bool:
    """Whether the slot is in a quorum that stands, and has its peers' state."""
    name = part.replica_id
    if name not in state.live or state.phase not in STANDS or state.quorum is None:
        return False
    if part.healed is not None or name not in state.quorum.newcomers:
        return True
    return incident.is_earlier and not state.replicas[name].has_not_healed()
