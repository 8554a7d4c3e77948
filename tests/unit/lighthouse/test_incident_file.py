"""The lighthouse's incidents on disk: bounded, one job's, never in the way."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.books.incidents import INCIDENTS_MAX
from ftrun.lighthouse.incident_file import IncidentFile

NOW = datetime(2030, 1, 2, tzinfo=timezone.utc)


def record(number: int, job_id: str = "job", **more: Any) -> dict[str, Any]:
    return {"number": number, "job_id": job_id, **more}


def test_a_restarted_lighthouse_has_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "incidents.json"
    first = IncidentFile(path)
    for number in range(1, INCIDENTS_MAX + 3):
        first.write(record(number))
    again = IncidentFile(path)
    assert [x["number"] for x in again.of("job")] == list(range(3, INCIDENTS_MAX + 3))
    assert again.of("another") == []
    again.write(record(1, "another"))
    assert again.of("another") == [record(1, "another")]
    assert again.of("job") == []


def test_records_come_with_their_present_ages(tmp_path: Path) -> None:
    path = tmp_path / "incidents.json"
    first = IncidentFile(path)
    times = {1: NOW.isoformat(), 2: (NOW + timedelta(hours=1)).isoformat(), 3: "x", 4: None}
    for number, time in times.items():
        first.write(record(number, time=time))
    found = IncidentFile(path).earlier(NOW + timedelta(seconds=90))
    assert [(x.document["number"], x.age_s) for x in found] == [(1, 90.0), (2, 0), (3, 0), (4, 0)]


def test_what_cannot_be_read_or_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "incidents.json"
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert IncidentFile(path).of("job") == []
        lost = IncidentFile(tmp_path / "none" / "x.json")
        lost.write(record(1))
        lost.write(record(2))
    assert len(caplog.records) == 2
    assert len(lost.of("job")) == 2
