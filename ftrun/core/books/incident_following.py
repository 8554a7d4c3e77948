"""The time after an incident: how the others continue, and when its replicas are back.

Not here: which failures are one incident (incidents.py), its data (incident_state.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.core.books.facts import Stage
from ftrun.core.books.incident_state import Incident, Part, Response, Standing
from ftrun.core.books.picture import Picture

STANDING_MAX = 64


def standing_of(picture: Picture, members: Iterable[str], but: str) -> list[Standing]:
    """The position of each member except ``but``, by its last message."""
    found = []
    for name in [name for name in members if name != but][:STANDING_MAX]:
        slot = picture.slots[name]
        if slot.progress is not None:
            found.append(Standing(name, slot.progress.step, slot.progress.phase.value))
        else:
            known = [report.state.step for report in slot.reports]
            found.append(Standing(name, max(known, default=0), ""))
    return found


def note_response(picture: Picture, incident: Incident) -> None:
    """Note the first quorum in force after the failure, and what its members reported."""
    if incident.response is not None or incident.others_go_on:
        return
    if picture.stage is not Stage.STANDS or picture.quorum is None:
        return
    changes = [c for c in picture.history.changes if c.ended_at is not None and c.quorum]
    change = next((c for c in changes if (c.ended_at or 0.0) >= incident.noted_at), None)
    if change is None or change.ended_at is None:
        incident.others_go_on = incident.is_earlier
        return
    incident.response = Response(
        kind=change.kind,
        quorum=change.quorum,
        members=change.members,
        survivors=tuple(name for name in incident.members if name in picture.members),
        recomputes=picture.quorum.recomputes,
        step=change.step,
        duration_s=change.ended_at - change.began_at,
    )
    for standing in incident.standing:
        slot = picture.slots.get(standing.replica_id)
        if slot is not None and slot.reports:
            standing.note(slot.reports)


def note_returns(picture: Picture, incident: Incident) -> None:
    """Note which of its replicas are back. Once all are, the incident is over."""
    for part in incident.parts:
        if part.back_at is not None:
            continue
        slot = picture.slots.get(part.replica_id)
        is_next = slot is not None and slot.incarnation and part.is_followed_by(slot.incarnation)
        if slot is None or not slot.is_open or (is_next and _trains(picture, part, incident)):
            part.back_at = picture.now
        elif part.started_at is not None and part.replica_id not in incident.members:
            part.back_at = part.started_at
    incident.close_if_over(picture.now)


def _trains(picture: Picture, part: Part, incident: Incident) -> bool:
    """Whether the slot is in a quorum in force, and has its peers' state."""
    slot, quorum = picture.slots[part.replica_id], picture.quorum
    if not slot.is_member or picture.stage is not Stage.STANDS or quorum is None:
        return False
    if part.healed is not None or part.replica_id not in quorum.newcomers:
        return True
    return incident.is_earlier and not slot.is_unhealed
