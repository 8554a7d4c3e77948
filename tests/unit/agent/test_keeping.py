"""A node reads the states of another node's ranks, and keeps none that is torn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import xxhash

from ftrun.agent.fleet import Fleet
from ftrun.agent.team.keeping import Keeping
from ftrun.base.errors import PeerError
from ftrun.checkpoint.line import DonorRefused
from ftrun.config.settings import RunSettings
from ftrun.core.messages import KeepRanks, RanksKept, RankSource
from ftrun.protocol.auth import new_token
from ftrun.protocol.tls import TlsFiles
from ftrun.snapshots.area import Torn
from ftrun.snapshots.group_memory import GroupMemory
from tests.unit.run_settings import resolved

TOKEN = new_token()
HOST = "127.0.0.1"
MEMORY_BYTES = 64 << 20


class Memories:
    """Of one incarnation, in place of a fleet's."""

    def __init__(self, ranks: range, of: int) -> None:
        self.memory = GroupMemory.make(of, MEMORY_BYTES, ranks)
        self.is_over = False

    def of(self, incarnation: str) -> GroupMemory | None:
        return self.memory if incarnation == "a" and not self.is_over else None


class Node:
    """One node, with its ranks' states."""

    def __init__(
        self, ranks: range, notes: Path, settings: RunSettings, token: str = TOKEN
    ) -> None:
        self.told: list[RanksKept] = []
        self.memory = Memories(ranks, 3)
        fleet = cast(Fleet, self)
        self.keeping = Keeping(fleet, settings, token, HOST, notes, self.told.append)

    def take(self, *steps: int) -> None:
        """Its workers have their states of these steps."""
        for step in steps:
            for rank in self.memory.memory.here:
                own = self.memory.memory.area(rank)
                own.divide()
                own.write(step, f"rank {rank} at {step}".encode(), [], step, {}, {})

    def has(self, rank: int) -> tuple[int, ...]:
        """The steps of a rank, as it has told last."""
        self.keeping.report("a")
        return next((x.steps for x in self.told[-1].ranks if x.group_rank == rank), ())

    def source(self, rank: int) -> RankSource:
        self.keeping.report("a")
        return RankSource(rank, "n1", self.told[-1].address, self.told[-1].certificate)


Play = Callable[[Node, Node, Node], Coroutine[Any, Any, None]]


def play(tmp_path: Path, work: Play, *, token: str = TOKEN, tls: bool = False) -> None:
    """Two nodes and one that comes for the first, whose states the second keeps copies of."""
    files = TlsFiles(tmp_path / "c", tmp_path / "k", tmp_path / "a") if tls else TlsFiles()
    settings = replace(resolved(workers_per_replica=3), tls=files)

    async def run() -> None:
        notes = tmp_path / "0", tmp_path / "1", tmp_path / "2"
        for path in notes:
            path.mkdir(exist_ok=True)
        one = Node(range(2), notes[0], settings)
        other = Node(range(2, 3), notes[1], settings)
        new = Node(range(2), notes[2], settings, token)
        try:
            await work(one, other, new)
        finally:
            for node in (one, other, new):
                node.keeping.close()
                if not node.memory.is_over:
                    node.memory.memory.close()

    asyncio.run(run())


@pytest.mark.parametrize("tls", [False, True])
def test_states_go_to_another_node_and_to_one_that_comes(tmp_path: Path, *, tls: bool) -> None:
    async def work(one: Node, other: Node, new: Node) -> None:
        (tmp_path / "0/set-up-1").write_bytes(b"notes")
        for node in (one, other):
            node.take(3, 5)
        sources = (one.source(0), one.source(1))
        await other.keeping.keep(KeepRanks("a", 5, None, sources))
        assert other.told[-1].copied == 5
        assert other.has(0) == other.has(1) == (5,)
        await one.keeping.keep(KeepRanks("a", 5, None, ()))
        one.take(7, 9, 11)
        assert one.has(0)[0] == 5, "what is kept is not overwritten"
        await one.keeping.keep(KeepRanks("a", 11, None, ()))
        one.take(13, 15)
        assert 5 not in one.has(0), "what nobody keeps is"
        await new.keeping.rewind("a", 5, (other.source(0), other.source(1)))
        assert new.has(0) == new.has(1) == (5,)
        assert (tmp_path / "2/set-up-1").read_bytes() == b"notes"
        held = new.memory.memory.area(1).hold(5)
        assert held is not None and held.head == b"rank 1 at 5"
        held.release()

    play(tmp_path, work, tls=tls)


def test_what_is_later_than_the_step_from_which_all_go_on_is_dropped(tmp_path: Path) -> None:
    async def work(one: Node, other: Node, new: Node) -> None:
        for step in (3, 5):
            one.take(step)
            other.take(step)
            await other.keeping.keep(KeepRanks("a", step, 3, (one.source(0),)))
        assert other.has(0) == (3, 5)
        other.keeping.drop_later("a", 3)
        assert other.has(0) == (3,)
        other.keeping.drop_later("a", 2)
        assert other.has(0) == ()

    play(tmp_path, work)


def test_a_round_whose_incarnation_ends_is_over(tmp_path: Path) -> None:
    """Seen: "Task exception was never retrieved", from a map of memory that had been freed."""

    async def work(one: Node, other: Node, new: Node) -> None:
        keeping = asyncio.ensure_future(other.keeping.keep(KeepRanks("a", 5, None, ())))
        await asyncio.sleep(0)
        other.memory.is_over = True
        other.memory.memory.close()
        await asyncio.wait_for(keeping, 60.0)
        assert not other.told

    play(tmp_path, work)


def test_a_torn_state_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(one: Node, other: Node, new: Node) -> None:
        one.take(5)
        other.take(5)
        monkeypatch.setattr("ftrun.snapshots.area.xxhash.xxh3_128_hexdigest", other_hash)
        await other.keeping.keep(KeepRanks("a", 5, None, (one.source(0),)))
        assert other.told[-1].copied is None
        assert "not what was sent" in other.told[-1].reason
        assert other.has(0) == ()
        with pytest.raises(Torn):
            await new.keeping.rewind("a", 5, (one.source(1),))

    seen: list[int] = []
    plain = xxhash.xxh3_128_hexdigest

    def other_hash(data: Any) -> str:
        seen.append(len(data))
        return plain(bytes(data) + bytes([len(seen)]))

    play(tmp_path, work)


def test_who_has_not_the_token_and_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async def stranger(one: Node, other: Node, new: Node) -> None:
        one.take(5)
        with pytest.raises(DonorRefused, match="401"):
            await new.keeping.rewind("a", 5, (one.source(0),))

    async def friend(one: Node, other: Node, new: Node) -> None:
        one.take(5)
        other.take(7)
        with pytest.raises(PeerError, match="410"):
            await new.keeping.rewind("a", 7, (one.source(0),))
        await other.keeping.keep(KeepRanks("a", 5, None, ()))
        assert "not in its memory" in other.told[-1].reason
        await other.keeping.keep(KeepRanks("b", 5, None, ()))  # of an incarnation that is over

    play(tmp_path, stranger, token=new_token())
    play(tmp_path, friend)
