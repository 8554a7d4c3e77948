"""The lighthouse's records of incidents, as lighthouse/incident_file.py keeps them on disk.

It checks that one failure is told once: an incarnation has one number in all lives of the
lighthouse. Only if the files are lost, what had not reached an agent may be told again.
"""

from __future__ import annotations

import json
from typing import Any

from ftrun.core import failure_kinds as kinds
from ftrun.core.books.records import EarlierIncident
from ftrun.core.messages import IncidentRecord
from tests.sim.violation import Violation


class Records:
    """By number: the moment of the first cause, and the record as JSON."""

    def __init__(self) -> None:
        self._records: dict[int, tuple[float, str]] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._reached: set[str] = set()

    def write(self, document: dict[str, Any], now: float) -> None:
        """Add or replace a record.

        Raises:
            Violation: an incarnation of it has been told under another number.
        """
        number = document["number"]
        self._records[number] = (now - document["ago_s"], json.dumps(document))
        for part in (document["first_cause"], *document["consequences"]):
            if part["kind"] == kinds.NODE:
                continue  # it may come back, and be lost once more
            key = (part["replica_id"], part["incarnation"])
            told = self._numbers.setdefault(key, number)
            if told != number:
                raise Violation("CHECK", f"{key} is told twice: incidents {told} and {number}")

    def earlier(self, now: float) -> list[EarlierIncident]:
        """What a lighthouse that begins finds on disk."""
        in_order = [self._records[number] for number in sorted(self._records)]
        return [EarlierIncident(json.loads(text), now - began) for began, text in in_order]

    def reached(self, record: IncidentRecord) -> None:
        """An agent that may have the evidence knows the number now."""
        self._reached.update(record.incarnations)

    def lose(self) -> None:
        """The files are gone; what the agents know is not."""
        self._records.clear()
        known = self._numbers.items()
        self._numbers = {key: number for key, number in known if key[1] in self._reached}
