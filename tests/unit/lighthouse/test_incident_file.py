"""The lighthouse's incidents on disk: bounded, one job's, never in the way."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.lighthouse.incidents import INCIDENTS_MAX
from ftrun.lighthouse.incident_file import IncidentFile


def record(number: int, job_id: str = "job") -> dict[str, Any]:
    return {"number": number, "job_id": job_id}


def test_a_restarted_lighthouse_has_the_newest_and_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "incidents.json"
    first = IncidentFile(path, "job")
    for number in range(1, INCIDENTS_MAX + 3):
        first.write(record(number))
    again = IncidentFile(path, "job")
    assert again.last_number == INCIDENTS_MAX + 2
    assert [x["number"] for x in again.all()] == list(range(3, INCIDENTS_MAX + 3))
    assert IncidentFile(path, "another").all() == []
    again.write(record(1, "another"))
    assert again.all() == [record(1, "another")]


def test_what_cannot_be_read_or_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "incidents.json"
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert IncidentFile(path, "job").all() == []
        lost = IncidentFile(tmp_path / "none" / "x.json", "job")
        lost.write(record(1))
        lost.write(record(2))
    assert len(caplog.records) == 2
    assert len(lost.all()) == 2
