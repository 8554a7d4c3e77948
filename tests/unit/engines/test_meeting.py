"""Where a job's nodes meet: addresses, which of them count, and the end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from ftrun.engines.meeting import Meeting, answers

HERE = "127.0.0.1"


def test_a_reserved_address_is_for_a_lighthouse_and_for_nobody_else(tmp_path: Path) -> None:
    one = Meeting(tmp_path, 0, HERE)
    one.reserve()
    port = int(one.address.rpartition(":")[2])
    for _ in range(2):  # it may be started again
        socket.create_server((HERE, port)).close()
    with socket.socket() as another:
        another.bind((HERE, 0))
        assert another.getsockname()[1] != port
    asyncio.run(one.leave())


def test_what_counts_is_what_the_first_node_has_settled(tmp_path: Path) -> None:
    meetings = [Meeting(tmp_path, node, HERE) for node in (0, 1)]
    assert meetings[1].settled() == ()
    for one in meetings:
        one.reserve()
    (tmp_path / "lighthouse.pem").touch()
    found = {node: one.address for node, one in enumerate(meetings)}
    assert meetings[0].reserved() == found
    meetings[0].settle(tuple(found.values()))
    assert meetings[1].settled() == tuple(found.values())
    assert {path.stat().st_mode & 0o77 for path in tmp_path.glob("lighthouse*[0-9s]")} == {0}
    for one in meetings:
        asyncio.run(one.leave())
    assert not any(one.first_is_lost for one in meetings)


def test_the_last_one_takes_the_directory_away(tmp_path: Path) -> None:
    """Those that have a lighthouse listen; one that was lost does not, and has left its file."""
    there = tmp_path / "there"
    there.mkdir()
    meetings = [Meeting(there, node, HERE) for node in range(4)]
    for one in meetings[:3]:
        one.reserve()
    meetings[0].settle(tuple(one.address for one in meetings[:3]))

    async def leave() -> None:
        port = int(meetings[1].address.rpartition(":")[2])
        with socket.create_server((HERE, port)):
            for one in (meetings[3], meetings[2]):  # the former has reserved nothing
                assert not await one.leave() and not one.first_is_lost
                assert there.exists()
        assert await meetings[1].leave() and meetings[1].first_is_lost
        assert list(tmp_path.iterdir()) == []
        assert not await meetings[0].leave()

    asyncio.run(leave())


def test_who_waits_for_the_first_node_finds_the_directory(tmp_path: Path) -> None:
    meetings = [Meeting(tmp_path, node, HERE) for node in range(2)]
    for one in meetings:
        one.reserve()
    assert not asyncio.run(meetings[0].leave())
    assert meetings[1].settled() == ()
    asyncio.run(meetings[1].leave())


def test_a_machine_that_refuses_is_not_lost(tmp_path: Path) -> None:
    one = Meeting(tmp_path, 0, HERE)
    one.reserve()
    assert asyncio.run(answers(one.address)) is False
    assert asyncio.run(answers("nowhere.invalid:9")) is None
    asyncio.run(one.leave())
