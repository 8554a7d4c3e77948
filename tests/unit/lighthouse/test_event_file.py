"""``events.jsonl``: lines, its limit, a directory that cannot be written."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from ftrun.lighthouse.event_file import EVENTS_FILE, SCHEMA, EventFile


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_event_is_one_line_in_each_directory(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    file = EventFile([*directories, directories[0]])
    file.write("notice", {"text": "a\nb \x1b[31m <b>"})
    for directory in directories:
        (event,) = lines(directory / EVENTS_FILE)
        assert (event["schema"], event["event"]) == (SCHEMA, "notice")
        assert event["text"] == "a\nb \x1b[31m <b>"


def test_a_full_file_becomes_the_old_one_and_no_event_is_lost(tmp_path: Path) -> None:
    file = EventFile([tmp_path], limit_bytes=1000)
    for number in range(12):
        file.write("notice", {"number": number})
    both = lines(tmp_path / "events.old.jsonl") + lines(tmp_path / EVENTS_FILE)
    assert [event["number"] for event in both][-10:] == list(range(2, 12))
    assert (tmp_path / EVENTS_FILE).stat().st_size <= 1000


def test_what_cannot_be_written_is_counted_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "gone"
    file = EventFile([directory])
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            file.write("notice", {"number": number})
    assert len(caplog.records) == 1 and "lacks events until it can" in caplog.text
    directory.mkdir()
    file.write("notice", {"number": 3})
    file.write("notice", {"number": 4})
    first, second = lines(directory / EVENTS_FILE)
    assert (first["number"], first["unwritten"]) == (3, 3)
    assert "unwritten" not in second


def test_each_file_has_its_own_count(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = EventFile([tmp_path / "a", tmp_path / "b"])
    for number in range(3):
        file.write("notice", {"number": number})
    (tmp_path / "b").mkdir()
    file.write("notice", {"number": 3})
    assert not any("unwritten" in event for event in lines(tmp_path / "a" / EVENTS_FILE))
    (event,) = lines(tmp_path / "b" / EVENTS_FILE)
    assert (event["number"], event["unwritten"]) == (3, 3)


def test_a_number_that_json_lacks_loses_its_event_alone(tmp_path: Path) -> None:
    file = EventFile([tmp_path])
    file.write("account", {"goodput": float("nan")})
    file.write("notice", {"number": 1})
    (event,) = lines(tmp_path / EVENTS_FILE)
    assert (event["number"], event["unwritten"]) == (1, 1)
