"""torchft's replica groups in ``ftrun status`` and on its screen."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import (
    HeartbeatReceived,
    Joined,
    QuorumMember,
    QuorumSettings,
    RoomRecord,
    RoomsRecord,
)
from ftrun.core.torchft_quorum.status import TorchftStatus, torchft_status
from ftrun.tools.status.screen.torchft import left_out, room_words
from ftrun.tools.status.view import render
from tests.unit.tools.status.documents import healthy
from tests.unit.tools.status.screen.driven import Driven, drive
from tests.unit.tools.status.status_sample import sample

HOSTILE = "x\x1b[2J[red]y"


def rooms() -> TorchftStatus:
    """A member, one that waits, one that is silent, and one with a hostile name."""
    record = RoomsRecord({"default": RoomRecord(6, ("gone",))})
    found = TorchftRooms(QuorumSettings(2, 60.0, 5.0), record, 0.0)
    found.handle(
        Joined(1, "default", QuorumMember("a", "http://h:1", step=1234, world_size=8)), 9.0
    )
    found.handle(Joined(2, "default", QuorumMember("b", step=1234, commit_failures=3)), 9.0)
    found.handle(HeartbeatReceived("default", HOSTILE), 9.5)
    found.handle(HeartbeatReceived("default", "later"), 9.5)
    found.handle(Joined(3, "default", QuorumMember("b")), 10.0)
    return torchft_status(["127.0.0.1:29520"], found.rooms, 10.0)


def test_the_table_has_each_replica() -> None:
    status = sample()
    status["torchft"] = rooms()
    out = io.StringIO()
    Console(file=out, width=110, markup=False).print(render(status))
    text = out.getvalue()
    assert "torchft, room default: quorum 7 of 2 replicas, asked for 1 s ago; the next" in text
    rows = {row.split()[0]: row.split() for row in text.splitlines() if row.strip()}
    assert rows["a"][1:] == ["member", "1,234", "8", "0", "1.0", "s", "http://h:1"]
    assert rows["b"][1:4] == ["joins", "0", "0"]
    assert rows["later"][1:5] == ["lives", "-", "-", "0"]
    assert "\x1b" not in text


def test_words_without_a_quorum_of_this_life() -> None:
    found = TorchftRooms(QuorumSettings(), RoomsRecord({"x": RoomRecord(6, ("a",))}), 0.0)
    (room,) = torchft_status([], found.rooms, 9.0)["rooms"]
    assert room_words(room) == "torchft, room x: quorum 6 of 1 replica, of an earlier lighthouse"
    assert [x["silent_s"] for x in room["replicas"]] == [None]
    found.handle(HeartbeatReceived("y", "a"), 9.0)
    room = torchft_status([], found.rooms, 9.0)["rooms"][1]
    assert room_words(room) == "torchft, room y: no quorum yet"
    room["replicas_left_out"] = 2
    assert left_out(room) == "and 2 replicas more"


def test_the_page_of_the_screen() -> None:
    async def test(screen: Driven) -> None:
        assert "T torchft" in screen.lines()[-1]
        await screen.press("T")
        assert "clients come to 127.0.0.1:29520, without a token" in screen.text()
        assert "quorum 7 of 2 replicas" in screen.text()
        assert "member" in screen.line(" a  ") and "1,234" in screen.line(" a  ")
        changed: Any = healthy(1)
        changed["torchft"] = {"addresses": ["127.0.0.1:29520"], "rooms": []}
        await screen.take(changed)
        assert "No replica has come yet." in screen.text()
        changed = healthy(1)
        await screen.take(changed)
        assert "--torchft-bind" in screen.text()
        await screen.press("escape")
        assert "T torchft" not in screen.text()

    status: Any = healthy(0)
    status["torchft"] = rooms()
    drive(status, test, size=(150, 36))


def test_without_a_job_of_ours_the_main_screen_names_the_page() -> None:
    async def test(screen: Driven) -> None:
        assert "no job of ftrun's; T: torchft's replicas" in screen.text()

    status: Any = healthy(0)
    status["torchft"], status["replicas"] = rooms(), []
    status["job"]["job_id"] = ""
    drive(status, test, size=(150, 36))
