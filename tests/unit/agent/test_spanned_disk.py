"""Two nodes write one snapshot and go on from it: the lead's orders, a hand's answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.agent import group_memory
from ftrun.agent.fleet import Fleet
from ftrun.agent.team import copies
from ftrun.agent.team.disk import SpannedDisk
from ftrun.agent.team.keeping import Keeping
from ftrun.agent.team.storing import Storing, make_mark, take_mark
from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.config.rendezvous import Span
from ftrun.core.messages import FillRanks, RanksStored, WriteRanks
from ftrun.core.replay.copying import Copying, Had
from ftrun.protocol.auth import new_token
from ftrun.snapshots import serving
from ftrun.snapshots.area import NONE
from ftrun.snapshots.board import Word
from ftrun.snapshots.directory import snapshots
from ftrun.snapshots.group_memory import GroupMemory
from tests.unit.run_settings import resolved
from tests.unit.snapshots.test_groups import ROOM, take

DEADLINE_S = 60.0
PLACES = {"n0": range(1), "n1": range(1, 2)}
Sent = WriteRanks | FillRanks


class Node:
    """One node with one worker, its process that writes, and a memory for each incarnation."""

    def __init__(self, number: int, here: Path, where: Path) -> None:
        here.mkdir()
        span = Span(number, 2, number, 1, "127.0.0.1")
        self.settings = replace(resolved(workers_per_replica=2, snapshot=where), span=span)
        self.here = here
        self.memory = self
        self.began: list[tuple[str, int]] = []
        self.known: dict[str, GroupMemory] = {}
        self.listening = serving.listen(here / serving.NAME)
        threading.Thread(target=serving.serve, args=(self.listening,), daemon=True).start()

    def storing(self, tell: Callable[[RanksStored], None]) -> Storing:
        return Storing(cast(Fleet, self), self.settings, self.here, tell)

    def make(self, replica_id: str, incarnation: str) -> None:
        ranks = self.settings.ranks_here
        self.known.setdefault(incarnation, GroupMemory.make(2, ROOM, ranks))

    def of(self, incarnation: str) -> GroupMemory | None:
        return self.known.get(incarnation)

    last_of = of

    def begins_from(self, incarnation: str, step: int) -> None:
        self.began.append((incarnation, step))

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for memory in self.known.values():
            memory.close()


class Team:
    """The lead n0 and the hand n1, in place of the streams between them."""

    def __init__(self, here: Path, *, shares: bool = True) -> None:
        self.nodes = [
            Node(number, here / f"n{number}", here / ("s" if shares or not number else "other"))
            for number in range(2)
        ]
        self.own_id, self.is_complete = "n0", True
        self.told: list[str] = []
        self.sent: list[Sent] = []
        self.before: Callable[[Sent], None] = lambda message: None
        self.copying = Copying("n0", dict(PLACES))
        self.tasks: set[asyncio.Task[None]] = set()
        lead, hand = self.nodes
        self.disk = SpannedDisk(
            lead.settings, lead.here, self.told.append, self, lambda: self.copying
        )
        self.disk.storing = lead.storing(partial(self.disk.stored, "n0"))
        self.hand = hand.storing(partial(self.disk.stored, "n1"))

    def ranks_of_nodes(self) -> dict[str, range]:
        return PLACES

    def name_of(self, node_id: str) -> str:
        return f"{node_id} (10.0.0.2)"

    def order(self, message: Any) -> None:
        raise AssertionError(message)

    def order_at(self, node_id: str, message: Any) -> None:
        self.sent.append(message)
        self.before(message)
        work = self.hand.write if isinstance(message, WriteRanks) else self.hand.fill
        task = asyncio.get_running_loop().create_task(work(message))
        self.tasks.add(task)

    def trains(self, *steps: int) -> GroupMemory:
        """Each worker has its states of these steps; the lead's memory."""
        for node, (name, ranks) in zip(self.nodes, PLACES.items(), strict=True):
            node.make("0", "a")
            for step in steps:
                take(node.known["a"], step, step)
            self.copying.has(name, Had(dict.fromkeys(ranks, steps)), 0.0)
        return self.nodes[0].known["a"]


def play(here: Path, work: Callable[[Team], Awaitable[None]], *, shares: bool = True) -> Team:
    async def run() -> Team:
        team = Team(here, shares=shares)
        try:
            await asyncio.wait_for(work(team), DEADLINE_S)
            return team
        finally:
            await team.disk.close()
            team.disk.storing.close()
            team.hand.close()
            await asyncio.gather(*team.tasks)
            for node in team.nodes:
                node.close()

    return asyncio.run(run())


async def fill(team: Team, incarnation: str) -> int:
    lead = team.nodes[0]
    lead.make("0", incarnation)
    return await team.disk.fill(lead.known[incarnation], "0", incarnation)


def test_what_two_nodes_have_written_two_others_begin_from(tmp_path: Path) -> None:
    async def work(team: Team) -> None:
        assert await fill(team, "b") == NONE and team.sent == []
        memory = team.trains(30, 31)
        await team.disk.last(memory, "a", DEADLINE_S)
        assert await fill(team, "c") == 31
        assert team.disk.readers == {"n0", "n1"}

    team = play(tmp_path, work)
    assert [x.name for x in snapshots(tmp_path / "s")] == ["step-000000000031"]
    assert [type(x) for x in team.sent] == [WriteRanks, FillRanks]
    assert team.told[0] == ("The last snapshot is of step 31. The same command resumes from there.")
    assert [node.began for node in team.nodes] == [[("c", 31)]] * 2
    assert not team.copying.is_taken


def test_a_node_that_does_not_share_the_directory_is_named(tmp_path: Path) -> None:
    async def work(team: Team) -> None:
        await team.disk.last(team.trains(30), "a", DEADLINE_S)

    team = play(tmp_path, work, shares=False)
    assert team.told[0].startswith("a snapshot was not written: n1 (10.0.0.2): ")
    assert "which the first node has made. All nodes must share --snapshot" in team.told[0]
    assert list((tmp_path / "s").iterdir()) == []


def test_no_draft_is_left_of_what_a_lost_node_should_have_written(tmp_path: Path) -> None:
    async def work(team: Team) -> None:
        team.before = lambda message: team.disk.gone("n1")
        await team.disk.last(team.trains(30), "a", DEADLINE_S)

    team = play(tmp_path, work)
    why = "a snapshot was not written: n1 (10.0.0.2): it is lost. Training continues"
    assert team.told[0].startswith(why)
    assert list((tmp_path / "s").iterdir()) == []


def test_a_part_that_is_damaged_makes_all_take_the_one_before(tmp_path: Path) -> None:
    async def work(team: Team) -> None:
        await team.disk.last(team.trains(30), "a", DEADLINE_S)
        await team.disk.last(team.trains(30, 40), "a", DEADLINE_S)
        file = tmp_path / "s/step-000000000040/__1_0.distcp"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        assert await fill(team, "b") == 30

    team = play(tmp_path, work)
    assert team.told[-1] == (
        "the snapshot step-000000000040 is damaged and is skipped: on n1 (10.0.0.2): "
        "__1_0.distcp is not what was written: its hash differs"
    )
    assert [node.began[-1] for node in team.nodes] == [("b", 30)] * 2


def test_a_node_that_has_too_little_memory_is_named(tmp_path: Path) -> None:
    async def work(team: Team) -> None:
        await team.disk.last(team.trains(30), "a", DEADLINE_S)
        team.nodes[1].make = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(PeerError, match=r"n1 \(10\.0\.0\.2\): there is too little memory"):
            await fill(team, "b")

    play(tmp_path, work)


def test_a_start_that_is_taken_back_while_a_node_reads_ends_the_wait(tmp_path: Path) -> None:
    async def work(team: Team) -> None:
        await team.disk.last(team.trains(30), "a", DEADLINE_S)
        plain, hand = team.hand.link.ask, team.nodes[1]

        async def ask(kind: str, order: dict[str, Any], limit_s: float) -> dict[str, Any]:
            answer = await plain(kind, order, limit_s)
            hand.known.pop("b").close()
            return answer

        team.hand.link.ask = ask  # type: ignore[method-assign]
        with pytest.raises(PeerError, match=r"n1 .*: its start was given up meanwhile"):
            await fill(team, "b")
        team.hand.link.ask = plain  # type: ignore[method-assign]
        assert await fill(team, "c") == 30

    play(tmp_path, work)


def test_a_node_that_keeps_nothing_in_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that has taken a lost node's place just now."""
    monkeypatch.setattr(group_memory, "free_bytes", lambda **_: 1 << 30)

    async def work(team: Team) -> None:
        lead = team.nodes[0]
        team.order = lambda message: None  # type: ignore[method-assign]
        memory = copies.SpannedMemory(lead.settings, lead.here, team.told.append, team)
        own = cast(Fleet, SimpleNamespace(memory=memory))
        tell = partial(memory.has, "n0")
        memory.keeping = Keeping(own, lead.settings, new_token(), "127.0.0.1", lead.here, tell)
        memory.make("0", "a")
        known = memory.of("a")
        assert known is not None
        memory._copying.places = team.ranks_of_nodes()
        memory.keeping.report("a")
        memory._tell_who_lacks(clock.now() + 1e6)
        assert team.told == []
        monkeypatch.setattr(copies, "LACKS_S", -1e6)
        known.board.set(0, Word.DUE, 7 << 8)
        while not team.told:
            await asyncio.sleep(0.01)
        await memory.end()

    team = play(tmp_path, work)
    assert team.told == [
        "Memory snapshots: n1 (10.0.0.2) keeps none, as too little memory is free there. So none "
        "are copied from node to node, and no snapshot is written to a disk."
    ]


def test_the_lead_sees_a_mark_in_a_directory_that_is_shared(tmp_path: Path) -> None:
    name = make_mark(tmp_path)
    assert take_mark(tmp_path, name)
    assert not take_mark(tmp_path, name), "it is gone"
    assert not take_mark(tmp_path, "../a")
    assert not take_mark(tmp_path, make_mark(tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []
