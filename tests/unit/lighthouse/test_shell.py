"""The shell: order, bounds, and what it does when it cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.lighthouse.events import JournalState, LighthouseSettings
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.messages import Heartbeat, HeartbeatAck, Hello, JobSpec, Notice, Welcome
from ftrun.lighthouse.event_log import EVENTS_MAX, EventLog
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.shell import Shell
from ftrun.protocol import serving
from ftrun.protocol.codec import decode_batch, encode
from ftrun.protocol.serving import Session

SPEC = JobSpec("job", 2, 1, 1, 5.0, 2.0, 60.0)
HELLO = Hello("node", SPEC, 8, "h", "s")


def with_shell(tmp_path: Path, test: Callable[[Shell, JournalFile], Any]) -> None:
    async def main() -> None:
        journal = JournalFile(tmp_path / "journal")
        core = Lighthouse(LighthouseSettings(), JournalState(), asyncio.get_running_loop().time())
        shell = Shell(core, journal)
        try:
            result = test(shell, journal)
            if result is not None:
                await asyncio.wait_for(result, 60.0)
        finally:
            shell.stop()
            if shell.failed.done():
                shell.failed.exception()

    asyncio.run(main())


async def drain(session: Session) -> list[Any]:
    """The messages queued for an agent."""
    session.close("test")
    found = []
    while (data := await session.next()) is not None:
        found.extend(decode_batch(data))
    return found


def test_its_epoch_is_on_disk_before_an_agent_can_attach(tmp_path: Path) -> None:
    def test(shell: Shell, journal: JournalFile) -> None:
        shell.start()
        state = journal.load()
        assert state is not None
        assert state.epoch == shell.snapshot(0.0)["epoch"] == 1

    with_shell(tmp_path, test)


def test_a_session_that_was_replaced_or_ended_is_not_heard(tmp_path: Path) -> None:
    async def test(shell: Shell, journal: JournalFile) -> None:
        shell.start()
        first, second = Session("node"), Session("node")
        shell.attached(first, HELLO)
        shell.attached(second, HELLO)
        assert first.closing == "the agent has come by another stream"
        shell.received(first, Heartbeat())
        shell.detached(first, "gone")
        assert shell.agents == 1
        assert shell.snapshot(0.0)["agents"][0]["attached"]
        shell.received(second, Heartbeat())
        received = await drain(second)
        assert isinstance(received[0], Welcome)
        assert received.count(HeartbeatAck()) == 1
        shell.detached(second, "gone")
        shell.received(second, Heartbeat())
        assert shell.agents == 0
        assert not shell.snapshot(0.0)["agents"][0]["attached"]

    with_shell(tmp_path, test)


def test_nothing_leaves_when_the_journal_fails(tmp_path: Path) -> None:
    async def test(shell: Shell, journal: JournalFile) -> None:
        (tmp_path / "journal").unlink(missing_ok=True)
        (tmp_path / "journal").mkdir()  # nothing can take its place
        session = Session("node")
        shell.start()
        shell.attached(session, HELLO)
        assert isinstance(shell.failed.exception(), OSError)
        assert await drain(session) == []

    with_shell(tmp_path, test)


def test_a_bug_in_the_core_stops_the_lighthouse_and_not_the_loop(tmp_path: Path) -> None:
    def test(shell: Shell, journal: JournalFile) -> None:
        shell.start()
        shell.attached(Session("node"), replace(HELLO, running=None))  # type: ignore[arg-type]
        assert isinstance(shell.failed.exception(), TypeError)
        shell.attached(Session("other"), replace(HELLO, agent_id="other"))
        assert "other" not in [agent["agent_id"] for agent in shell.snapshot(0.0)["agents"]]

    with_shell(tmp_path, test)


def test_the_timer_brings_the_core_to_its_deadlines(tmp_path: Path) -> None:
    """A silent agent is found without any message."""

    async def test(shell: Shell, journal: JournalFile) -> None:
        shell.start()
        session = Session("node")
        spec = JobSpec("job", 2, 1, 1, 5.0, 0.05, 60.0)
        shell.attached(session, Hello("node", spec, 8, "h", "s"))
        await session.closed.wait()
        assert "heartbeat" in (session.closing or "")
        assert shell.agents == 0

    with_shell(tmp_path, test)


def test_an_outbox_has_a_limit_in_messages_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "OUTBOX_MESSAGES_MAX", 10)
    monkeypatch.setattr(serving, "OUTBOX_BYTES_MAX", 1000)
    for data, count in ((b"x", 10), (b"x" * 100, 10), (b"x" * 500, 2)):
        session = Session("node")
        for _ in range(count):
            session.put(data)
        assert session.closing is None
        session.put(data)
        assert "drain" in str(session.closing)
        assert session.closed.is_set()
        assert asyncio.run(session.next()) is None
        session.put(data)
        assert asyncio.run(session.next()) is None


def test_what_is_queued_before_the_end_is_sent() -> None:
    session = Session("node")
    for _ in range(2):
        session.put(encode(HeartbeatAck()))
    session.close("done")
    session.close("again")
    assert session.closing == "done"
    assert decode_batch(asyncio.run(session.next()) or b"") == [HeartbeatAck()] * 2
    assert asyncio.run(session.next()) is None


def test_notices_are_remembered_once_and_not_for_ever() -> None:
    event_log = EventLog()
    first = Notice("lost", ("0", "1"), "first")
    assert event_log.note(first)
    assert not event_log.note(first)
    for number in range(EVENTS_MAX):
        assert event_log.note(Notice("healed", ("1",), str(number)))
    assert len(event_log.events(0.0)) == EVENTS_MAX
    last = {name: event_log.last_of(name, 0.0) for name in ("0", "1", "2")}
    assert last["0"] is not None and last["0"]["text"] == "first"
    assert last["1"] is not None and last["1"]["text"] == str(EVENTS_MAX - 1)
    assert last["2"] is None
