"""A lighthouse among several: its journal is the register, and events wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.base import clock
from ftrun.core.ids import EPOCH_MAX
from ftrun.core.lighthouse.events import JournalState, LighthouseSettings, Request
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.messages import Heartbeat, HeartbeatAck, Hello, JobSpec, Welcome
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.lighthouse import shell as shell_module
from ftrun.lighthouse.candidacy import Candidacy, stands_by
from ftrun.lighthouse.register.directory import DirectoryStore
from ftrun.lighthouse.shell import Shell
from ftrun.protocol.codec import decode_batch
from ftrun.protocol.serving import Session

SPEC = JobSpec("job", 2, 1, 1, 5.0, 2.0, 60.0)
HELLO = Hello("node", SPEC, 8, "h", "s")
DRAIN = Request("drain", "1", request_id="x")
LONG_S = 600.0
DEADLINE_S = 60.0
VALUE = Value(7, "other", "b:1", LONG_S, 3)


class Gated(DirectoryStore):
    """Its writes wait for the test."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.open = asyncio.Event()
        self.open.set()

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        await self.open.wait()
        return await super().swap(version, value)


async def within(waited: Awaitable[object]) -> None:
    await asyncio.wait_for(waited, DEADLINE_S)


async def leading(store: DirectoryStore, silence_s: float = LONG_S) -> tuple[Candidacy, Shell]:
    candidacy = Candidacy(store, "a:1", silence_s, 100)
    record = await asyncio.wait_for(candidacy.until_it_leads(asyncio.Event()), DEADLINE_S)
    assert record is not None
    shell = Shell(Lighthouse(LighthouseSettings(), record, clock.now()), candidacy)
    candidacy.go_on = shell.go_on
    shell.start()
    return candidacy, shell


async def attached(shell: Shell) -> Session:
    """An agent that has had its Welcome."""
    session = Session("node")
    shell.attached(session, HELLO)
    await within(shell.caught_up())
    assert isinstance(decode_batch(await session.next() or b"")[0], Welcome)
    return session


def play(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


def test_nothing_is_sent_and_no_event_handled_before_the_record_is_written(tmp_path: Path) -> None:
    async def test() -> None:
        store = Gated(tmp_path)
        candidacy, shell = await leading(store)
        await within(shell.caught_up())
        session = await attached(shell)
        store.open.clear()
        asking = asyncio.ensure_future(shell.ask(DRAIN))
        await asyncio.sleep(0)
        shell.received(session, Heartbeat())
        assert shell.is_behind
        waiting = asyncio.ensure_future(session.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert not asking.done()
        store.open.set()
        assert HeartbeatAck() in decode_batch(await waiting or b"")
        assert await asking is not None
        assert candidacy.writes >= 2
        shell.stop()
        await candidacy.stop()

    play(test)


def test_a_request_of_people_is_answered_when_it_is_written_or_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_module, "ASK_TIMEOUT_S", 0.01)

    async def test() -> None:
        store = Gated(tmp_path)
        candidacy, shell = await leading(store)
        await within(shell.caught_up())
        await attached(shell)
        store.open.clear()
        assert await shell.ask(DRAIN) is None
        store.open.set()
        await within(shell.caught_up())
        monkeypatch.setattr(shell_module, "ASK_TIMEOUT_S", DEADLINE_S)
        operation = await shell.ask(DRAIN)
        assert operation is not None
        shell.stop()
        await candidacy.stop()

    play(test)


def test_the_next_one_goes_on_from_the_journal_with_the_next_epoch(tmp_path: Path) -> None:
    async def test() -> None:
        candidacy, shell = await leading(DirectoryStore(tmp_path))
        shell.attached(Session("node"), HELLO)
        await within(shell.caught_up())
        first = shell.snapshot(clock.now())
        shell.stop()
        await candidacy.stop()
        candidacy, shell = await leading(DirectoryStore(tmp_path))
        await within(shell.caught_up())
        assert shell.snapshot(clock.now())["epoch"] == first["epoch"] + 1 == 102
        shell.stop()
        await candidacy.stop()

    play(test)


def test_one_that_takes_over_knows_how_long_the_former_one_was_silent(tmp_path: Path) -> None:
    silence_s = 0.2

    async def test() -> None:
        first, _ = await leading(DirectoryStore(tmp_path))
        assert first.watched_s == 0.0
        await DirectoryStore(tmp_path / "other").swap(0, replace(VALUE, silence_s=silence_s))
        second, _ = await leading(DirectoryStore(tmp_path / "other"), silence_s)
        assert second.watched_s >= silence_s
        await first.stop()
        await second.stop()

    (tmp_path / "other").mkdir()
    play(test)


def test_a_deposed_lighthouse_ends_and_what_waits_for_it_is_let_go(tmp_path: Path) -> None:
    async def test() -> None:
        store = Gated(tmp_path)
        candidacy, shell = await leading(store)
        await within(shell.caught_up())
        session = await attached(shell)
        version = (await store.read(with_journal=False)).version
        store.open.clear()
        asking = asyncio.ensure_future(shell.ask(DRAIN))
        await asyncio.sleep(0)
        shell.received(session, Heartbeat())
        await DirectoryStore(tmp_path).swap(version, VALUE)
        store.open.set()
        await within(candidacy.ended)
        waiting = asyncio.ensure_future(shell.caught_up())
        shell.stop(is_deposed=True)
        await within(waiting)
        assert await session.next() is None  # no ack was ever queued
        assert await asking is None
        await candidacy.stop()

    play(test)


@pytest.mark.parametrize(
    "journal", [b"\xff\xff", None], ids=["no journal of ours", "the last epoch"]
)
def test_a_journal_that_cannot_be_read_is_rebuilt_from_reports(
    tmp_path: Path, journal: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    from ftrun.lighthouse.candidacy import _CODEC

    if journal is None:
        journal = _CODEC.encode(JournalState(epoch=EPOCH_MAX))

    async def test() -> None:
        free = replace(VALUE, is_free=True, journal=journal)
        await DirectoryStore(tmp_path).swap(0, free)
        candidacy = Candidacy(DirectoryStore(tmp_path), "a:1", LONG_S, 100)
        assert await candidacy.until_it_leads(asyncio.Event()) == JournalState(epoch=7)
        await candidacy.stop()

    with caplog.at_level(logging.WARNING):
        play(test)
    assert "the journal in the register is corrupt" in caplog.text


def test_who_is_to_stop_while_it_stands_by_stops(tmp_path: Path) -> None:
    async def test() -> None:
        await DirectoryStore(tmp_path).swap(0, VALUE)
        candidacy, stopping = Candidacy(DirectoryStore(tmp_path), "a:1", 1.0, 100), asyncio.Event()
        waiting = asyncio.ensure_future(candidacy.until_it_leads(stopping))
        await asyncio.sleep(0)
        stopping.set()
        assert await waiting is None
        await candidacy.stop()

    play(test)


def test_a_bug_ends_the_candidacy(tmp_path: Path) -> None:
    class Broken(DirectoryStore):
        async def read(self, *, with_journal: bool) -> Answered:
            raise ZeroDivisionError

    async def test() -> None:
        candidacy = Candidacy(Broken(tmp_path), "a:1", LONG_S, 100)
        with pytest.raises(ZeroDivisionError):
            await candidacy.until_it_leads(asyncio.Event())
        await candidacy.stop()

    play(test)


def test_the_status_of_one_that_stands_by_is_an_error_at_once() -> None:
    async def test() -> None:
        server = await asyncio.start_server(stands_by, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        request = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
        for sent, code in ((request, b"HTTP/1.1 503 "), (b"", b"")):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(sent)
            writer.write_eof()
            found = await asyncio.wait_for(reader.read(), DEADLINE_S)
            assert found.startswith(code)
            assert (b"stands by" in found) == bool(code)
            writer.close()
        server.close()

    play(test)
