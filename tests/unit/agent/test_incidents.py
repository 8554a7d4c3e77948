"""Evidence and records on the agent's side: last lines, files, exit reasons, typed events."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ftrun.agent.exit_reason import exit_document, write_exit
from ftrun.agent.health import check_health
from ftrun.agent.incidents import IncidentRecords, incident_path, with_output
from ftrun.agent.last_lines import LINES_MAX, last_lines
from ftrun.agent.typed_events import TypedEvents
from ftrun.core.agent.events import EndAgent, SendEvidence, StartReplica
from ftrun.core.messages import FailedWorker, FailureEvidence, IncidentRecord
from ftrun.logs.layout import log_path

WORKER = FailedWorker(0, 7, -9, "signal", "died: SIGKILL", 0.0)
EVIDENCE = FailureEvidence("1", "i1", 2, (WORKER,), verdict="restarted")


def record(number: int, text: str = "") -> IncidentRecord:
    return IncidentRecord(number, ("i1",), False, text or json.dumps({"number": number}))


def test_the_last_lines_are_the_last_as_a_terminal_would_show_them(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text("".join(f"line {n}\n" for n in range(100)) + "1%\r2%\r\nend")
    lines = last_lines(path).splitlines()
    assert len(lines) == LINES_MAX
    assert lines[-3:] == ["line 99", "2%", "end"]
    assert last_lines(tmp_path / "none") == ""


def test_of_a_crash_the_top_of_the_stacks_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    frames = "".join(f"  File {n}\n" for n in range(300))
    path.write_text(f"before\nFatal Python error: Segmentation fault\n{frames}")
    lines = last_lines(path).splitlines()
    assert lines[:2] == ["before", "Fatal Python error: Segmentation fault"]
    assert "  File 0" in lines


def test_evidence_gets_the_output_of_its_own_life(tmp_path: Path) -> None:
    path = log_path(tmp_path, "1", 0, 2)
    path.parent.mkdir(parents=True)
    path.write_text("its last words\n")
    assert with_output(EVIDENCE, tmp_path).workers[0].output == "its last words"


def test_a_record_replaces_the_former_one_and_the_newest_is_kept(tmp_path: Path) -> None:
    lines: list[str] = []
    records = IncidentRecords(tmp_path, lines.append)
    records.keep(record(2))
    records.keep(record(2, json.dumps({"number": 2, "is_open": False})))
    records.keep(record(1))
    records.keep(record(3, "no JSON"))
    assert json.loads(incident_path(tmp_path, 2).read_text())["is_open"] is False
    assert records.last is not None and records.last["number"] == 2
    assert lines == []


def test_a_directory_that_cannot_be_written_costs_one_line(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "incidents").write_text("a file")
    records = IncidentRecords(tmp_path, lines.append)
    records.keep(record(1))
    records.keep(record(2))
    assert len(lines) == 1 and "with the lighthouse only" in lines[0]


def test_the_exit_reason_tells_the_scripts_code_from_ftruns(tmp_path: Path) -> None:
    incident: dict[str, Any] = {
        "number": 3,
        "verdict": "restarts spent",
        "first_cause": {"replica_id": "1", "kind": "signal", "cause": "died: SIGKILL"},
    }
    found = exit_document(EndAgent(137, "no restart is left", "script"), "job", "h", incident)
    assert (found["kind"], found["source"], found["incident"]) == ("signal", "script", 3)
    assert found["first_cause"]["cause"] == "died: SIGKILL"
    own = exit_document(EndAgent(75, "SIGTERM"), "job", "h", None)
    assert (own["kind"], own["source"], own["first_cause"]) == ("preempted", "ftrun", None)
    assert write_exit(own, tmp_path) is None
    assert json.loads((tmp_path / "exit.json").read_text())["exit_code"] == 75
    assert write_exit(own, tmp_path / "none") is not None


def test_starts_failures_and_the_end_are_typed_events_and_nothing_else_is() -> None:
    lines: list[str] = []
    events = TypedEvents("job", lines.append)
    for instruction in (
        StartReplica("1", "i1", 0),
        SendEvidence(EVIDENCE),
        StartReplica("1", "i2", 1),
        EndAgent(137, "no restart is left", "script"),
    ):
        events.note(instruction)
    found = [json.loads(line) for line in lines]
    assert [x["name"] for x in found] == [
        "ftrun.replica.started",
        "ftrun.replica.failed",
        "ftrun.replica.restarted",
        "ftrun.agent.ended",
    ]
    assert {x["source"] for x in found} == {"AGENT"}
    assert found[1]["metadata"]["cause"] == "died: SIGKILL"
    assert found[3]["metadata"]["kind"] == "signal"
    TypedEvents("job", None).note(EndAgent(0, ""))


def test_a_health_check_is_judged_by_its_exit_code_and_quoted() -> None:
    async def check(command: str, timeout_s: float = 30.0) -> str:
        return await check_health(command, "3", "guard", timeout_s)

    assert asyncio.run(check('test "$FTRUN_REPLICA_ID" = 3')) == ""
    failed = asyncio.run(check("echo one; echo; echo two >&2; exit 4"))
    assert failed == "--health-check ended with exit code 4: one / two"
    assert "signal 9" in asyncio.run(check("kill -9 $$"))
    assert "did not end within 0.2 s" in asyncio.run(check("sleep 100", 0.2))
