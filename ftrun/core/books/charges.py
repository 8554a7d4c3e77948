"""Which incident the lost time of a slot is charged to, if any; one at a time.

- A replica that has failed: its latest failure, until it is back.
- A member that survives: the oldest open incident, until a quorum is in force. It may have waited
  for the failed one before the failure was known: the incident is charged for that wait from its
  begin.

A loop that made no progress while all others waited for it was booked as training. When it is given
up, that time is booked again as standing still. Not here: when a replica is back (incidents.py).
"""

from __future__ import annotations

from ftrun.core import failure_kinds as kinds
from ftrun.core.books.incident_state import Incident, Part
from ftrun.core.books.incidents import Incidents
from ftrun.core.books.ledger import Ledger, microseconds
from ftrun.core.books.picture import Picture
from ftrun.core.books.uses import GOES_ON, LOST, Use

STANDS_STILL = frozenset({kinds.HANG, kinds.GIVEN_UP, kinds.NODE})
"""Failures of a loop that made no progress while the others waited for it."""


class Charges:
    """Reads the open incidents.

    ``by_slot``: the number of the incident that a use is charged to which begins now.
    """

    def __init__(self, picture: Picture, incidents: Incidents) -> None:
        self.by_slot: dict[str, int] = {}
        self._picture = picture
        self._incidents = incidents
        self._key: object = None

    def have_changed(self) -> bool:
        """Whether an open incident, or one of its parts, has changed since the last call."""
        key = [
            (x.number, len(x.parts), sum(p.back_at is None for p in x.parts), x.response is None)
            for x in self._incidents.open
        ]
        former, self._key = self._key, key
        self._incidents.have_changed = False
        return former != key

    def apply(self, ledger: Ledger, former_event: int) -> None:
        """Charge the time that is being lost. A charge ends with the event that ended its cause."""
        failed, survivors = self._to_charge(ledger)
        self.by_slot = {name: incident.number for name, incident in survivors.items()}
        self.by_slot |= {name: incident.number for name, (incident, _) in failed.items()}
        for name in ledger.charged - self.by_slot.keys():
            ledger.change(name, ledger.books[name].use, 0, former_event)
        for name, incident in survivors.items():
            book = ledger.books[name]
            if book.use in LOST and book.charge != incident.number:
                waits = book.use is Use.WAITING and not book.charge
                at = book.opened if waits else microseconds(incident.began_at)
                ledger.change(name, book.use, incident.number, at)
        for name, (incident, part) in failed.items():
            self._charge_failed(ledger, name, incident, part)

    def _to_charge(
        self, ledger: Ledger
    ) -> tuple[dict[str, tuple[Incident, Part]], dict[str, Incident]]:
        """The replicas that have failed, with their last failure, and those that survive one."""
        failed: dict[str, tuple[Incident, Part]] = {}
        survivors: dict[str, Incident] = {}
        for incident in self._incidents.open:
            for part in incident.parts:
                if part.back_at is None and part.replica_id in ledger.books:
                    failed[part.replica_id] = (incident, part)
            if incident.response is None and incident.is_in_quorum:
                for name in self._picture.members.intersection(incident.members):
                    survivors.setdefault(name, incident)
        return failed, {name: x for name, x in survivors.items() if name not in failed}

    def _charge_failed(self, ledger: Ledger, name: str, incident: Incident, part: Part) -> None:
        book = ledger.books[name]
        if book.use in LOST and book.charge != incident.number:
            ledger.change(name, book.use, incident.number, microseconds(part.at))
        if book.use in LOST or part.kind not in STANDS_STILL:
            return
        others = [ledger.books[other] for other in self._picture.members if other != name]
        if others and all(other.use is Use.WAITING for other in others):
            since = max(other.since for other in others)
            ledger.rebook(name, since, GOES_ON, Use.STOPPED, incident.number)
