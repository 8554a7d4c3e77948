"""Evidence that only the agent's machine has, and the incident records from the lighthouse.

The agent adds a worker's last lines to its failure before the failure goes to the lighthouse. It
keeps each record in the job's log directory, one file per incident, and the newest record for the
report at the end. Not here: what a failure is (core/agent/), which failures form one incident
(core/lighthouse/), the text for people (core/incident_words.py).
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftrun.agent.last_lines import last_lines
from ftrun.base.files import write_whole
from ftrun.core.messages import FailureEvidence, IncidentRecord
from ftrun.logs.layout import log_path

DIRECTORY = "incidents"
FILES_MAX = 1000
"""A job with more incidents loses the oldest records."""


def incident_path(job_log_dir: Path, number: int) -> Path:
    """``incidents/0003.json``."""
    return job_log_dir / DIRECTORY / f"{number:04d}.json"


def with_output(
    evidence: FailureEvidence, job_log_dir: Path, since_s: float = 0.0
) -> FailureEvidence:
    """The evidence, with each worker's last lines since ``since_s``."""
    workers = tuple(
        replace(
            worker,
            output=last_lines(
                log_path(job_log_dir, evidence.replica_id, worker.group_rank, evidence.restarts),
                since_s,
            ),
        )
        for worker in evidence.workers
    )
    return replace(evidence, workers=workers)


class IncidentRecords:
    """The records of this run. ``show``: prints a line if a record cannot be written."""

    def __init__(self, job_log_dir: Path, show: Callable[[str], None]) -> None:
        self._directory = job_log_dir
        self._show = show
        self._has_failed = False
        self.last: dict[str, Any] | None = None
        self.count = 0
        self._numbers: deque[int] = deque()

    def keep(self, record: IncidentRecord) -> None:
        """Write the record's file atomically."""
        if record.number not in self._numbers:
            self._numbers.append(record.number)
            self.count += 1
            self._drop_oldest()
        try:
            document = json.loads(record.document)
        except ValueError:
            return
        if self.last is None or self.last["number"] <= record.number:
            self.last = document
        path = incident_path(self._directory, record.number)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(document, indent=2) + "\n")
        except OSError as error:
            if not self._has_failed:
                self._show(f"{path}: {error.strerror}; incidents are with the lighthouse only.")
            self._has_failed = True

    def _drop_oldest(self) -> None:
        while len(self._numbers) > FILES_MAX:
            with contextlib.suppress(OSError):
                incident_path(self._directory, self._numbers.popleft()).unlink()
