"""What an agent orders of the process that writes, and what people are told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.agent.group_disk import GroupDisk
from ftrun.base.errors import PeerError, UserError
from ftrun.core.forms import MEMORY
from ftrun.core.replay.falls import Fall
from ftrun.snapshots.area import NONE
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.manifest import Manifest, Origin
from ftrun.snapshots.process import FILL, WHOLE
from ftrun.snapshots.serving import NAME
from tests.unit.run_settings import resolved

DEADLINE_S = 60.0


class Disk:
    """A disk of two workers' group, whose process answers as ``answer`` says, once it may."""

    def __init__(self, here: Path, answer: dict[str, Any], **given: Any) -> None:
        self.told: list[str] = []
        self.whole: list[int] = []
        self.orders: list[tuple[str, dict[str, Any]]] = []
        self.answer, self.may = answer, asyncio.Event()
        self.memory = GroupMemory.make(2, 4 << 20)
        self.at(-1)
        self._here = here
        self._served: list[asyncio.Task[Any]] = []
        settings = resolved(
            workers_per_replica=2, snapshot=here / "s", snapshot_every="1s", **given
        )
        self.disk = GroupDisk(settings, here, self.told.append)
        self.disk.on_whole = self.whole.append

    async def __aenter__(self) -> Disk:
        self._server = await asyncio.start_unix_server(self._serve, str(self._here / NAME))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may.set()
        await self.disk.close()
        self._server.close()
        await asyncio.wait_for(asyncio.gather(*self._served), DEADLINE_S)
        self.memory.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.append(task)
        await reader.readline()
        writer.write(b'{"ready": true}\n')
        while line := await reader.readline():
            kind, fields = json.loads(line)
            self.orders.append((kind, fields))
            await self.may.wait()
            if not self.answer:
                break
            writer.write(json.dumps(self.answer).encode() + b"\n")
        writer.transport.abort()

    def at(self, step: int) -> None:
        for rank in range(2):
            self.memory.board.set(rank, Word.NEWEST, step)

    async def fill(self) -> int:
        return await self.disk.fill(self.memory, "0", "incarnation")

    async def until(self, condition: Callable[[], object]) -> None:
        """Look again and again, as the agent does."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while not condition():
            assert loop.time() < deadline, self.told
            self.disk.look(self.memory, "incarnation")
            await asyncio.sleep(0.01)


def play(here: Path, work: Callable[[Disk], Awaitable[None]], answer: Any, **given: Any) -> Disk:
    async def run() -> Disk:
        async with Disk(here, answer, **given) as disk:
            await asyncio.wait_for(work(disk), DEADLINE_S)
            return disk

    return asyncio.run(run())


def written(step: int) -> dict[str, Any]:
    return {"step": step, "path": "p", "nbytes": 7000, "duration_s": 1.0, "given_up": [3]}


def test_a_slow_disk_skips_and_is_told_when_it_begins_and_ends(tmp_path: Path) -> None:
    async def work(disk: Disk) -> None:
        disk.disk.look(disk.memory, "incarnation")  # nothing is in memory yet
        disk.at(5)
        await disk.until(lambda: disk.orders)
        disk.at(9)
        await disk.until(lambda: disk.told)
        disk.may.set()
        await disk.until(lambda: disk.whole)
        disk.answer = written(9)
        await disk.until(lambda: len(disk.whole) == 2)

    disk = play(tmp_path, work, written(5))
    assert disk.whole == [5, 9]
    assert [kind for kind, _ in disk.orders] == [WHOLE, WHOLE]
    assert disk.orders[0][1]["writer"] == "incarnation"
    assert disk.told[0].startswith("snapshots are skipped from step 9 on, because the one before")
    assert disk.told[1].startswith("the snapshot of step 3 is incomplete, because the job")
    assert disk.told[2] == "wrote the snapshot of step 5 to p: 7 kB in 1.0 s; no worker waited"


def test_a_process_that_has_ended_and_a_failure_are_told(tmp_path: Path) -> None:
    async def work(disk: Disk) -> None:
        disk.at(5)
        disk.may.set()
        await disk.until(lambda: disk.told)
        disk.answer = {"error": "No space left on device"}
        await disk.until(lambda: len(disk.told) == 2)
        disk.answer = written(5)
        await disk.until(lambda: disk.whole)

    disk = play(tmp_path, work, {})
    how = "Training continues; the next one is due in 1 s or less"
    assert (
        disk.told[0] == f"a snapshot was not written: the process that writes it has ended. {how}"
    )
    assert disk.told[1] == f"a snapshot was not written: No space left on device. {how}"


@pytest.mark.parametrize("fall", [Fall.SCRIPT, Fall.LOG_FULL])
def test_what_may_be_incomplete_is_not_written(tmp_path: Path, fall: Fall) -> None:
    async def work(disk: Disk) -> None:
        disk.at(5)
        disk.may.set()
        disk.memory.board.set(1, Word.FALL, fall)
        await disk.disk.last(disk.memory, "a", 5.0)

    disk = play(tmp_path, work, written(5))
    assert disk.whole == ([5] if fall is Fall.LOG_FULL else [])


def test_a_last_one_that_takes_too_long_is_told_and_none_follows_a_script_s_own_end(
    tmp_path: Path,
) -> None:
    async def work(disk: Disk) -> None:
        disk.at(5)
        await disk.disk.last(disk.memory, "a", 0.05)
        for rank in range(2):
            disk.memory.board.set(rank, Word.OVER, 1)
        await disk.disk.last(disk.memory, "a", 0.05)

    disk = play(tmp_path, work, written(5))
    assert len(disk.told) == 1
    assert disk.told[0].startswith("the last snapshot, of step 5, was not written within half of")


def whole(where: Path, step: int, script: str = "", inject: str = MEMORY) -> Path:
    """A snapshot of which only the manifest counts here."""
    origin = Origin(script or resolved().script.name, inject, 2, 1)
    path = where / f"step-{step:012}"
    path.mkdir(parents=True)
    known = Manifest(step, "l", origin, "", "2026-01-01T00:00:00+00:00", {}, ())
    (path / "ftrun.json").write_bytes(known.encode())
    return path


def test_a_group_goes_on_from_what_is_there_or_is_not_started(tmp_path: Path) -> None:
    where = tmp_path / "s"

    async def work(disk: Disk) -> None:
        disk.may.set()
        assert await disk.fill() == NONE and not disk.orders
        whole(where, 7)
        with pytest.raises(PeerError, match="there is too little memory to resume from"):
            await disk.disk.fill(None, "0", "a")
        assert await disk.fill() == 7
        kind, order = disk.orders[0]
        assert kind == FILL and order["place"] == disk.memory.place
        assert order["path"] == str(where / "step-000000000007")
        disk.answer = {"error": "No such device"}
        with pytest.raises(PeerError, match="No such device"):
            await disk.fill()
        disk.answer = {"error": "it is not shared", "is_final": True}
        with pytest.raises(UserError, match="it is not shared"):
            await disk.fill()
        whole(where, 8, script="other.py")
        with pytest.raises(UserError, match=r"a snapshot of other\.py with .* this is "):
            await disk.fill()
        whole(where, 9, inject="explicit")
        assert await disk.fill() == NONE, "its script takes that itself"

    disk = play(tmp_path, work, {"damaged": ""})
    assert disk.told == [
        f"All workers resume from step 7, the newest snapshot in {where / 'step-000000000007'}."
    ]
    assert disk.whole == [7]
    assert ("snapshot_step", 7.0) in disk.disk.scalars


def test_a_damaged_one_is_passed_over_and_nothing_starts_if_none_is_left(tmp_path: Path) -> None:
    async def work(disk: Disk) -> None:
        disk.may.set()
        for step in (7, 8):
            whole(tmp_path / "s", step)
        (tmp_path / "s/step-000000000009").mkdir()
        with pytest.raises(UserError, match=r"no complete snapshot is left in .* --resume none"):
            await disk.fill()

    disk = play(tmp_path, work, {"damaged": "torn"})
    assert [x.partition(" is damaged")[0] for x in disk.told] == [
        f"the snapshot step-00000000000{step}" for step in (9, 8, 7)
    ]


def test_what_is_written_is_counted(tmp_path: Path) -> None:
    async def work(disk: Disk) -> None:
        assert disk.disk.scalars[0] == ("snapshots_written", 0.0)
        disk.at(5)
        disk.may.set()
        await disk.until(lambda: disk.whole)

    disk = play(tmp_path, work, written(5))
    assert dict(disk.disk.scalars) == {
        "snapshots_written": 1, "snapshots_skipped": 0, "snapshots_failed": 0, "snapshot_step": 5,
    }  # fmt: skip
