"""The machine with its store: who leads, what a dead holder costs, how it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftrun.core.register.events import Accepted, Answered, Record, Refused, Value
from ftrun.lighthouse.register import contender
from ftrun.lighthouse.register.contender import Contender, Leader, has_ended, process_name
from ftrun.lighthouse.register.directory import DirectoryStore
from ftrun.lighthouse.register.store import Store

LONG_S = 600.0
DEADLINE_S = 60.0


class Noting(Leader):
    """A leader that notes what comes."""

    def __init__(self) -> None:
        self.value: Value | None = None
        self.released: list[object] = []
        self.reasons: list[str] = []
        self._waits: list[tuple[Callable[[], object], asyncio.Event]] = []

    def leads(self, value: Value) -> None:
        self.value = value

    def release(self, output: object) -> None:
        self.released.append(output)

    def deposed(self, reason: str) -> None:
        self.reasons.append(reason)

    def may_go_on(self) -> None:
        for condition, event in self._waits:
            if condition():
                event.set()

    async def until(self, condition: Callable[[], object]) -> None:
        event = asyncio.Event()
        self._waits.append((condition, event))
        self.may_go_on()
        await asyncio.wait_for(event.wait(), DEADLINE_S)


async def leading(state: Path, silence_s: float = LONG_S) -> tuple[Contender, Noting]:
    return await leading_in(DirectoryStore(state), silence_s)


async def leading_in(store: Store, silence_s: float = LONG_S) -> tuple[Contender, Noting]:
    noting = Noting()
    one = Contender(store, "a:1", silence_s, 100, noting)
    one.start()
    await noting.until(lambda: noting.value)
    return one, noting


def test_one_leads_and_gives_the_register_back_to_the_next(tmp_path: Path) -> None:
    async def play() -> None:
        one, noting = await leading(tmp_path)
        assert one.may_decide
        one.hand_in(["at once", Record(103, b"job"), "after"])
        assert noting.released == ["at once"]
        assert not one.may_decide
        await noting.until(lambda: "after" in noting.released)
        assert (one.writes, one.write_s > 0) == (1, True)
        await one.stop()
        two, other = await leading(tmp_path)
        assert other.value is not None
        assert (other.value.epoch, other.value.journal) == (104, b"job")
        await two.stop()
        await two.stop()  # a second time changes nothing

    asyncio.run(play())


def test_the_silence_of_a_process_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    name = subprocess.run(
        [sys.executable, "-c", "from ftrun.lighthouse.register import contender as c;"
         "print(c.process_name())"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip

    async def play() -> None:
        value = Value(7, name, "b:1", LONG_S, 1)
        await DirectoryStore(tmp_path).swap(0, replace(value, journal=b"kept"))
        one, noting = await leading(tmp_path)
        assert noting.value is not None
        assert (noting.value.epoch, noting.value.journal) == (8, b"kept")
        await one.stop()

    asyncio.run(play())
    assert has_ended(name)


def test_a_process_of_which_nothing_is_known_has_not_ended() -> None:
    mine = process_name()
    assert not has_ended(mine)
    assert f"pid {os.getpid()} [" in mine
    life, _, rest = mine.partition("[")[2].partition(".")
    assert not has_ended(mine.replace(life, "another0"))  # of another machine
    assert not has_ended("anything")
    ended = f"h pid {os.getpid()} [{life}.{rest.split('.')[0]}.1.0]"
    assert has_ended(ended)  # its pid is another process's now


class Broken(DirectoryStore):
    """A store with a bug, or that never answers."""

    error: Exception | None = None

    async def read(self, *, with_journal: bool) -> Answered:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        raise AssertionError

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        raise NotImplementedError


def test_a_bug_of_a_store_ends_the_service(tmp_path: Path) -> None:
    async def play() -> None:
        store = Broken(tmp_path)
        store.error = ZeroDivisionError()
        one = Contender(store, "a:1", LONG_S, 1, Noting())
        one.start()
        await asyncio.wait([one.failed], timeout=DEADLINE_S)
        assert isinstance(one.failed.exception(), ZeroDivisionError)
        await one.stop()

    asyncio.run(play())


def test_a_bug_of_the_leader_ends_the_service(tmp_path: Path) -> None:
    async def play() -> None:
        noting = Noting()
        one = Contender(DirectoryStore(tmp_path), "a:1", LONG_S, 1, noting)
        noting.leads = lambda value: 1 // 0  # type: ignore[method-assign,assignment]
        one.start()
        await asyncio.wait([one.failed], timeout=DEADLINE_S)
        assert isinstance(one.failed.exception(), ZeroDivisionError)
        await one.stop()

    asyncio.run(play())


def test_the_end_does_not_wait_for_a_store_that_gives_no_answer(tmp_path: Path) -> None:
    async def play() -> None:
        one = Contender(Broken(tmp_path), "a:1", LONG_S, 1, Noting())
        one.start()
        await asyncio.sleep(0)
        await asyncio.wait_for(one.stop(), contender.STOP_S + DEADLINE_S)

    asyncio.run(play())


def test_a_store_that_is_away_is_asked_again(tmp_path: Path) -> None:
    async def play() -> None:
        noting, store = Noting(), DirectoryStore(tmp_path / "later")
        one = Contender(store, "a:1", 1.0, 1, noting)
        one.start()
        assert one._request is not None
        await asyncio.wait([one._request], timeout=DEADLINE_S)
        (tmp_path / "later").mkdir()
        await noting.until(lambda: noting.value)
        await one.stop()

    asyncio.run(play())
