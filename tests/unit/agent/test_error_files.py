"""Error files as torch writes them, as other handlers do, and as nobody should."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ftrun.agent.error_files import (
    FILE_BYTES_MAX,
    clear_error_file,
    error_path,
    hand_on,
    read_error_file,
)
from ftrun.core.messages import FailureReport
from ftrun.inject.bootstrap import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX


def test_what_torch_records_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    path = error_path(tmp_path / "rank_0" / "0.log")
    clear_error_file(path)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    try:
        raise ValueError("no such: key")
    except ValueError as error:
        ErrorHandler().record_exception(error)
    found = read_error_file(path)
    assert found is not None
    assert (found.error_type, found.message) == ("ValueError", "no such: key")
    assert 'raise ValueError("no such: key")' in found.traceback
    clear_error_file(path)
    assert read_error_file(path) is None


@pytest.mark.parametrize(
    ("content", "report"),
    [
        ({"message": "it broke", "timestamp": 1}, FailureReport("Error", "it broke", "")),
        ({"message": "my.Error: x"}, FailureReport("my.Error", "x", "")),
        ({"message": "not a type: x"}, FailureReport("Error", "not a type: x", "")),
        ({"message": {"message": "E: x", "extraInfo": 7}}, FailureReport("E", "x", "")),
        ({"message": {"message": "E: x", "extraInfo": {"py_callstack": 7}}},
         FailureReport("E", "x", "")),
        ({"message": {"message": ""}}, None),
        ({"message": None}, None),
        ([], None),
        ("text", None),
    ],
)  # fmt: skip
def test_other_forms(tmp_path: Path, content: object, report: FailureReport | None) -> None:
    path = tmp_path / "0.error.json"
    path.write_text(json.dumps(content))
    assert read_error_file(path) == report


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"message": "' + b"x" * FILE_BYTES_MAX]
)
def test_what_is_no_error_file_is_no_evidence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "0.error.json"
    path.write_bytes(data)
    assert read_error_file(path) is None
    assert read_error_file(tmp_path) is None


def test_long_texts_are_cut_and_the_end_of_a_traceback_stays(tmp_path: Path) -> None:
    path = tmp_path / "0.error.json"
    inner = {"message": "E: " + "m" * 9999, "extraInfo": {"py_callstack": "t" * 99_999 + "end"}}
    path.write_text(json.dumps({"message": inner}))
    found = read_error_file(path)
    assert found is not None
    assert len(found.message) == MESSAGE_CHARS_MAX
    assert len(found.traceback) == TRACEBACK_CHARS_MAX
    assert found.traceback.endswith("end")


def test_its_path_is_absolute_and_beside_the_log() -> None:
    assert error_path(Path("logs/rank_1/2.log")) == Path(os.getcwd(), "logs/rank_1/2.error.json")


INCIDENT = {
    "first_cause": {
        "worker": {"error_type": "KeyError", "message": "x", "traceback": "t", "cause": "failed: …"}
    }
}


def test_a_scheduler_finds_the_jobs_error_where_it_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reply.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert hand_on(INCIDENT, 5) is None
    assert read_error_file(path) == FailureReport("KeyError", "x", "t")
    message = json.loads(path.read_text())["message"]
    assert message["errorCode"] == 5 and message["extraInfo"]["timestamp"].isdecimal()
    killed = {"first_cause": {"worker": {"error_type": "", "cause": "died: SIGKILL"}}}
    assert hand_on(killed, 137) is None
    assert json.loads(path.read_text())["message"]["message"] == "died: SIGKILL"


def test_without_a_failure_or_a_request_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reply.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    for incident, code in ((None, 5), ({}, 5), (INCIDENT, 0)):
        assert hand_on(incident, code) is None
    assert not path.exists()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path))
    error = hand_on(INCIDENT, 5)
    assert error is not None and error.strerror == "Is a directory"
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert hand_on(INCIDENT, 5) is None
