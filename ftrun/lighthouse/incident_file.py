"""The incidents of the lighthouse's job on disk, so that a restarted lighthouse still has them.

It is one JSON document, replaced as a whole. Unlike the journal, it is not needed to run a job. If
the disk is full the file is lost, but the records in memory and at the agents stay. Not here: what
an incident is (core/books/incidents.py).
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

from ftrun.base.files import write_whole
from ftrun.core.books.incidents import INCIDENTS_MAX
from ftrun.core.books.records import EarlierIncident

INCIDENTS_FILE = "incidents.json"
FILE_BYTES_MAX = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class IncidentFile:
    """The newest ``INCIDENTS_MAX`` records of one job, by number; without a path in memory only.

    Each record names its job, because the file may outlive the journal, and the job.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._records = {} if path is None else _load(path)
        self._has_failed = False

    def of(self, job_id: str) -> list[dict[str, Any]]:
        return [x for x in self._all() if x["job_id"] == job_id]

    def earlier(self, now: datetime) -> list[EarlierIncident]:
        """All records with their current ages, oldest first, for a lighthouse that starts."""
        return [EarlierIncident(x, _age_s(x, now)) for x in self._all()]

    def _all(self) -> list[dict[str, Any]]:
        return [self._records[number] for number in sorted(self._records)]

    def write(self, record: dict[str, Any]) -> None:
        """Add a record, or replace the one with its number. Drops records of another job."""
        job_id = record["job_id"]
        self._records = {n: r for n, r in self._records.items() if r["job_id"] == job_id}
        self._records[record["number"]] = record
        for number in sorted(self._records)[:-INCIDENTS_MAX]:
            del self._records[number]
        if self._path is not None:
            self._put(self._path)

    def _put(self, path: Path) -> None:
        try:
            write_whole(path, json.dumps(self._all()), mode=0o600)
        except OSError as error:
            if not self._has_failed:
                log.warning("%s cannot be written: %s", path, error.strerror)
            self._has_failed = True


def _age_s(record: dict[str, Any], now: datetime) -> float:
    """The time since its first cause; 0 if the record has no readable date."""
    try:
        return max(0.0, (now - datetime.fromisoformat(record["time"])).total_seconds())
    except (KeyError, ValueError, TypeError):
        return 0.0


def _load(path: Path) -> dict[int, dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
        return {int(x["number"]): x for x in found[-INCIDENTS_MAX:] if x["job_id"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%s): earlier incidents are not shown", path, error)
        return {}
