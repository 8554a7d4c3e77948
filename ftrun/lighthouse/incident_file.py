"""The incidents of the lighthouse's job on disk, so that a restarted lighthouse still has them.

One JSON document, replaced as a whole. Unlike the journal nothing depends on it: a full disk costs
the file, and the records in memory and with the agents stay. Not here: what an incident is
(core/lighthouse/incidents.py).
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from ftrun.core.lighthouse.incidents import INCIDENTS_MAX

INCIDENTS_FILE = "incidents.json"
FILE_BYTES_MAX = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class IncidentFile:
    """The newest ``INCIDENTS_MAX`` records of one job, by number; without a path in memory only."""

    def __init__(self, path: Path | None = None, job_id: str = "") -> None:
        self._path = path
        self._records = {} if path is None else _load(path, job_id)
        self._has_failed = False

    @property
    def last_number(self) -> int:
        """The highest number that an incident of this job has; 0: there is none."""
        return max(self._records, default=0)

    def all(self) -> list[dict[str, Any]]:
        """The records, oldest first."""
        return [self._records[number] for number in sorted(self._records)]

    def write(self, record: dict[str, Any]) -> None:
        """Add a record, or replace the one of its number; another job's records go."""
        job_id = record["job_id"]
        self._records = {n: r for n, r in self._records.items() if r["job_id"] == job_id}
        self._records[record["number"]] = record
        for number in sorted(self._records)[:-INCIDENTS_MAX]:
            del self._records[number]
        if self._path is not None:
            self._put(self._path)

    def _put(self, path: Path) -> None:
        draft = path.with_suffix(".draft")
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(self.all(), file)
            os.replace(draft, path)
        except OSError as error:
            if not self._has_failed:
                log.warning("%s cannot be written: %s", path, error.strerror)
            self._has_failed = True


def _load(path: Path, job_id: str) -> dict[int, dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
        return {int(x["number"]): x for x in found[-INCIDENTS_MAX:] if x["job_id"] == job_id}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%s): earlier incidents are not shown", path, error)
        return {}
