"""Keys that ask the lighthouse: its real web server answers, over HTTP."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import clock
from ftrun.core.ids import WorkerKey
from ftrun.core.lighthouse.events import Operation, Request
from ftrun.logs.disk import LogFile
from ftrun.logs.layout import log_path
from ftrun.logs.reading import Worker
from ftrun.protocol.auth import load_or_create_token
from ftrun.tools.status.jobs import RunningJob
from ftrun.tools.status.screen.following import LogText, clean
from ftrun.tools.status.screen.pages import LogPage
from ftrun.tools.status.screen.requests import chosen
from ftrun.tools.status.source import Picture, State
from tests.unit.tools.status.documents import healing, healthy
from tests.unit.tools.status.screen.driven import Driven, drive
from tests.unit.tools.status.served_status import served
from tests.unit.tools.status.still import Still


class Lighthouse:
    """Ends every operation at once, and notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.refuses = False

    async def ask(self, request: Request) -> Operation | None:
        """Done, with stacks if these were asked for."""
        self.asked.append(request)
        found = Operation(len(self.asked), request, "under way")
        found.has_ended = True
        found.text = f"{request.command} of replica {request.replica_id} is done"
        if self.refuses:
            found.refused, found.text = 409, "the replica does not run."
        if request.command == "stack":
            key = WorkerKey(request.replica_id, "abc", request.group_rank or 0)
            found.stacks = {key: 'Thread 0x7f\n  File "train.py", line 12 in step\x1b[2J'}
        return found

    def operation(self, number: int) -> Operation | None:
        """It has ended, so nobody asks."""
        return None

    async def operation_changed(self, number: int, timeout_s: float) -> None:
        """It has ended."""


RECORD: dict[str, Any] = {
    "number": 3,
    "time": "2026-11-23T12:00:00.000+00:00",
    "step": 14_177,
    "first_cause": {
        "replica_id": "8",
        "host": "gpu-04",
        "cause": "RuntimeError: CUDA error: uncorrectable ECC error",
        "worker": {"pid": 20_367, "traceback": "Traceback:\n  File train.py\nRuntimeError: ECC"},
    },
    "consequences": [{"replica_id": "6", "cause": "killed by SIGSEGV", "after_s": 0.2}],
    "verdict": "restarted",
}


def acting(test: Any, lighthouse: Lighthouse | None = None, **facts: Any) -> Lighthouse:
    """Drive the screen with a lighthouse behind it."""
    lighthouse = lighthouse or Lighthouse()
    with tempfile.TemporaryDirectory() as directory:
        token_file = Path(directory) / "token"
        token = load_or_create_token(token_file)
        with served({}, token, lighthouse, [{**RECORD, "number": 1}, RECORD]) as address:
            picture = Picture(State.LIVE, facts.pop("status", healing(0)), clock.now(), **facts)
            drive(picture, test, doors=Still(address, token_file))
    lighthouse.asked = [replace(request, request_id="") for request in lighthouse.asked]
    return lighthouse


@pytest.mark.parametrize(("key", "command"), [("d", "drain"), ("r", "restart"), ("K", "kill")])
def test_what_changes_the_job_is_asked_first(key: str, command: str) -> None:
    async def test(screen: Driven) -> None:
        await screen.press("j", key)
        assert f"{command.capitalize()} replica 1" in screen.text()
        await screen.press("n")
        await screen.press(key, "escape")
        assert f"{command.capitalize()} replica 1" not in screen.text()
        await screen.press(key, "y")
        await screen.until(f"{command} of replica 1 is done")

    assert acting(test).asked == [Request(command, "1")]


def test_a_refusal_is_said() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("K", "enter")
        await screen.until("the replica does not run.")

    lighthouse = Lighthouse()
    lighthouse.refuses = True
    assert len(acting(test, lighthouse).asked) == 1


def test_one_rank_is_killed_or_shows_its_stacks() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("space", "j", "j", "K")
        assert "Kill worker 0.1 now" in screen.text()
        await screen.press("y")
        await screen.until("kill of replica 0 is done")
        await screen.press("s")
        await screen.until("line 12 in step")
        assert "worker 0.1" in screen.text()
        await screen.press("escape", "d")
        assert "Drain replica 0?" in screen.text()

    assert acting(test).asked == [Request("kill", "0", 1), Request("stack", "0", 1)]


def test_a_group_is_no_replica() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("f", "K")
        assert "Choose a replica first" in screen.text()

    assert acting(test).asked == []


def test_an_incident_is_explained() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("tab", "tab", "enter")
        await screen.until("Incident 3, 2026-11-23 12:00:00 UTC, at step 14177")
        assert "| RuntimeError: ECC" in screen.text()
        await screen.press("escape", "tab", "e")
        await screen.until("uncorrectable ECC error")

    acting(test)


def test_the_incident_of_a_replica_is_the_last_that_names_it() -> None:
    records = [{**RECORD, "number": 1}, {**RECORD, "number": 2}, {"number": 3}]
    assert chosen(records, "6", None) == records[1]
    assert chosen(records, "5", None) is None
    assert chosen(records, None, None) == records[2]
    assert chosen(records, None, 1) == records[0]
    assert chosen(records, None, 9) is None


def test_without_a_lighthouse_the_reason_is_said(tmp_path: Path) -> None:
    async def test(screen: Driven) -> None:
        await screen.press("s")
        await screen.until("No lighthouse answers at http://127.0.0.1:1")

    load_or_create_token(tmp_path / "token")
    drive(healthy(0), test, doors=Still(token_file=tmp_path / "token"))


def job_with_logs(directory: Path) -> RunningJob:
    return RunningJob("job", "127.0.0.1:1", 1, str(directory), "", "2026")


def write(directory: Path, rank: int, attempt: int, data: bytes) -> None:
    log = LogFile(log_path(directory, "0", rank, attempt), has_index=True)
    log.write(data, "o", 1.0)
    log.close()


def test_a_log_is_followed_over_a_restart(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, b"one\n\x1b[31mred\x1b[0m\x07\n 10%\r 20%\r 30%\n" + b"x" * 500 + b"\n")

    async def test(screen: Driven) -> None:
        await screen.press("l")
        await screen.until(" red")
        assert screen.line(" 30%").strip() == "30%"
        assert "xxx…" in screen.text()
        await screen.press("w")
        assert screen.text().count("x" * 118) >= 4
        write(tmp_path, 0, 1, b"two\n")
        await screen.until("start 1 of worker 0.0")
        await screen.until(" two")
        await screen.press("escape")
        assert "timeline" in screen.text()

    job = job_with_logs(tmp_path)
    drive(Picture(State.LIVE, healthy(0), clock.now(), job=job), test)


def test_lines_that_come_while_a_log_is_opened_or_closed_disturb_nobody(tmp_path: Path) -> None:
    """The thread that reads hands them over at any moment: here at every turn of the loop."""
    write(tmp_path, 0, 0, b"one\n")

    async def test(screen: Driven) -> None:
        for closes_after in range(12):
            page = LogPage(tmp_path, Worker("0", 0))
            screen.app.push_screen(page)
            for turn in range(60):
                page._add([LogText(f"line {turn}")])
                if turn == closes_after:
                    page.dismiss()
                await asyncio.sleep(0)
            await screen.pilot.pause()
            page._add([LogText("the last")])
        assert screen.app.is_running
        assert "timeline" in screen.text()

    job = job_with_logs(tmp_path)
    drive(Picture(State.LIVE, healthy(0), clock.now(), job=job), test)


def test_it_says_where_a_log_is_that_is_not_here(tmp_path: Path) -> None:
    async def test(screen: Driven) -> None:
        await screen.press("j", "l")
        assert "on node gpu-02, not on this machine: ftrun logs" in screen.text()

    job = job_with_logs(tmp_path)
    drive(Picture(State.LIVE, healthy(0), clock.now(), job=job), test)


def test_a_log_cannot_move_the_cursor_or_colour_the_screen() -> None:
    assert clean(b"\x1b]0;title\x07a\x1b[2Jb\x9b31m\tc\xff\r\n"[:-1]) == "ab�31m  c�"
    assert clean(b"done\r") == "done"
    assert len(clean(b"y" * 10_000)) == 2001


def test_one_of_several_jobs_is_chosen() -> None:
    jobs = tuple(
        RunningJob(f"job-{n}", f"127.0.0.1:{n}", n, "/logs", "", "2026-11-23T12:00:00+00:00")
        for n in range(3)
    )
    doors = Still()

    async def test(screen: Driven) -> None:
        assert "3 jobs of yours run here" in screen.text()
        await screen.press("j", "enter")
        assert doors.chosen == ["job-1"]
        await screen.take(healthy(0))
        assert "llama-1b-pretrain" in screen.text()
        await screen.press("escape")
        assert doors.chosen == ["job-1", None]
        await screen.take(None, State.CHOOSING, jobs=jobs[:2])
        assert "2 jobs of yours run here" in screen.text()

    drive(Picture(State.CHOOSING, jobs=jobs), test, doors=doors)


def test_the_mouse_chooses_opens_and_presses_keys() -> None:
    async def test(screen: Driven) -> None:
        rows = screen.lines()
        row = next(at for at, line in enumerate(rows) if line.startswith(" ▸ 4 "))
        await screen.pilot.click(offset=(10, row))
        await screen.pilot.pause()
        assert screen.chosen == "replica:4"
        await screen.pilot.click(offset=(10, row))
        await screen.pilot.pause()
        assert "replica 4" in screen.lines()[0]
        await screen.press("escape")
        column = rows[-1].index("? help")
        await screen.pilot.click(offset=(column, len(rows) - 1))
        await screen.pilot.pause()
        assert "PgUp" in screen.text()
        await screen.press("escape")

        async def click(words: str) -> None:
            rows = screen.lines()
            row = next(at for at, line in enumerate(rows) if words in line)
            await screen.pilot.click(offset=(rows[row].index(words), row))
            await screen.pilot.pause()

        await click("d drain")
        assert "Drain replica 4?" in screen.text()
        await click("n leave it")
        assert "Drain replica 4?" not in screen.text()
        await click("1 incident")
        await screen.until("first cause")
        assert screen.chosen == "incident:1"

    drive(healthy(0), test)
