"""The lighthouse's records of incidents, as lighthouse/incident_file.py keeps them on disk.

It checks that each failure is reported once: an incarnation has one number in all lives of the
lighthouse. Only if the files are lost may a failure that no agent knew be reported again.
"""

from __future__ import annotations

import json
from typing import Any

from ftrun.core import failure_kinds as kinds
from ftrun.core.books.records import EarlierIncident
from ftrun.core.messages import IncidentRecord
from tests.sim.violation import Violation


class Records:
    """By number: the time of the first cause, and the record as JSON."""

    def __init__(self) -> None:
        self._records: dict[int, tuple[float, str]] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._reached: set[str] = set()

    def write(self, document: dict[str, Any], now: float) -> None:
        """Add or replace a record.

        Raises:
            Violation: one of its incarnations was reported under another number.
        """
        number = document["number"]
        self._records[number] = (now - document["ago_s"], json.dumps(document))
        for part in (document["first_cause"], *document["consequences"]):
            if part["kind"] == kinds.NODE:
                continue  # it may come back, and be lost again
            key = (part["replica_id"], part["incarnation"])
            told = self._numbers.setdefault(key, number)
            if told != number:
                raise Violation("CHECK", f"{key} is told twice: incidents {told} and {number}")

    def earlier(self, now: float) -> list[EarlierIncident]:
        """The records that a new lighthouse finds on disk."""
        in_order = [self._records[number] for number in sorted(self._records)]
        return [EarlierIncident(json.loads(text), now - began) for began, text in in_order]

    def reached(self, record: IncidentRecord) -> None:
        """An agent that may have the evidence knows the number now."""
        self._reached.update(record.incarnations)

    def lose(self) -> None:
        """Delete the files; the agents keep what they know."""
        self._records.clear()
        known = self._numbers.items()
        self._numbers = {key: number for key, number in known if key[1] in self._reached}
