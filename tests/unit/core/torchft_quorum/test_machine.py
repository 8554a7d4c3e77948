"""Rooms: bounds, records, the status. Their quorums are in tests/transcripts/torchft."""

from __future__ import annotations

import pytest

from ftrun.core.torchft_quorum import records
from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import (
    Answer,
    CallEnded,
    HeartbeatReceived,
    Joined,
    QuorumMember,
    QuorumSettings,
    Refuse,
    RoomRecord,
    RoomsRecord,
    SaveRooms,
    TimerFired,
)
from ftrun.core.torchft_quorum.status import REPLICAS_SHOWN_MAX, torchft_status

SETTINGS = QuorumSettings(1, 1.0, 5.0)


def joined(call: int, room: str, name: str) -> Joined:
    return Joined(call, room, QuorumMember(name))


def test_the_table_of_rooms_is_bounded_and_ids_stay_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "ROOMS_MAX", 2)
    rooms = TorchftRooms(SETTINGS, RoomsRecord(floor=7))
    answer = rooms.handle(joined(1, "one", "a"), 0.0)[-1]
    assert isinstance(answer, Answer)
    assert (answer.call, answer.quorum) == (1, rooms.rooms["one"].quorum)
    rooms.handle(HeartbeatReceived("two", "b"), 1.0)
    (refused,) = rooms.handle(joined(2, "three", "c"), 2.0)
    assert isinstance(refused, Refuse) and refused.call == 2 and "2 rooms" in refused.reason
    (refused,) = rooms.handle(HeartbeatReceived("three", "c"), 2.0)
    assert isinstance(refused, Refuse) and refused.call is None
    # Both are idle; the one that was used less lately goes, and its ids are not used again.
    answers = rooms.handle(joined(3, "three", "c"), 20.0)
    assert set(rooms.rooms) == {"two", "three"}
    assert [x.quorum.quorum_id for x in answers if isinstance(x, Answer)] == [9]
    assert rooms.record() == RoomsRecord({"three": RoomRecord(9, ("c",))}, 8)


def test_replicas_and_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "REPLICAS_MAX", 2)
    monkeypatch.setattr(records, "CALLS_MAX", 2)
    rooms = TorchftRooms(QuorumSettings(3, 1.0, 5.0))
    for name in "ab":
        assert rooms.handle(HeartbeatReceived("x", name), 0.0) == []
    (refused,) = rooms.handle(HeartbeatReceived("x", "c"), 0.0)
    assert isinstance(refused, Refuse) and "replicas" in refused.reason
    assert isinstance(rooms.handle(joined(1, "x", "c"), 0.0)[0], Refuse)
    assert rooms.handle(joined(2, "x", "a"), 0.0) == []
    assert rooms.handle(joined(3, "x", "b"), 0.0) == []
    (refused,) = rooms.handle(joined(4, "x", "a"), 0.0)
    assert isinstance(refused, Refuse) and "2 calls" in refused.reason
    assert rooms.handle(CallEnded(3), 0.0) == []
    assert rooms.handle(joined(5, "x", "b"), 0.0) == []
    # The silent ones make room again.
    assert rooms.handle(HeartbeatReceived("x", "c"), 6.0) == []


def test_a_quorum_that_is_the_last_one_again_is_not_saved_again() -> None:
    rooms = TorchftRooms(SETTINGS)
    first = rooms.handle(joined(1, "x", "a"), 0.0)
    assert [type(x) for x in first] == [SaveRooms, Answer]
    assert [type(x) for x in rooms.handle(joined(2, "x", "a"), 1.0)] == [Answer]


def test_a_record_is_the_same_after_the_disk() -> None:
    record = RoomsRecord({"x": RoomRecord(5, ("a", "b"))}, 3)
    assert RoomsRecord.of(record.document()) == record


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"rooms": {}, "floor": None},
        {"rooms": {}, "floor": float("inf")},
        {"rooms": [], "floor": 1},
        {"rooms": {"x": {"quorum_id": 1}}, "floor": 1},
        {"rooms": {"x": {"quorum_id": -1, "replica_ids": []}}, "floor": 1},
        {"rooms": {}, "floor": records.QUORUM_ID_MAX},
        {
            "rooms": {str(n): {"quorum_id": 1, "replica_ids": []} for n in range(65)},
            "floor": 1,
        },
    ],
    ids=lambda found: str(found)[:30],
)
def test_what_is_no_record_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="record of torchft"):
        RoomsRecord.of(document)


def test_the_status_tells_members_joiners_and_silent_ones() -> None:
    rooms = TorchftRooms(QuorumSettings(2, 1.0, 5.0), RoomsRecord({"x": RoomRecord(4, ("a", "b"))}))
    rooms.handle(TimerFired(), 0.0)
    found = torchft_status(["h:1"], rooms.rooms, 1.0)["rooms"][0]
    assert (found["quorum_id"], found["age_s"], found["members"], found["waiting"]) == (
        4,
        None,
        2,
        "",
    )
    member = QuorumMember("a", "http://h:2", step=7, world_size=2, commit_failures=1)
    rooms.handle(Joined(1, "x", member), 5.5)
    rooms.handle(HeartbeatReceived("x", "c"), 5.5)
    found = torchft_status(["h:1"], rooms.rooms, 6.0)["rooms"][0]
    assert found["waiting"] == "1 of min_replicas 2 have joined"
    by_name = {x["replica_id"]: x for x in found["replicas"]}
    assert by_name["a"]["is_waiting"] and by_name["a"]["is_member"]
    assert (by_name["a"]["step"], by_name["a"]["world_size"], by_name["a"]["silent_s"]) == (
        7,
        2,
        0.5,
    )
    assert by_name["b"]["silent_s"] is None and by_name["b"]["step"] is None
    assert not by_name["c"]["is_member"]
    rooms.handle(joined(2, "x", "b"), 6.0)
    found = torchft_status(["h:1"], rooms.rooms, 8.0)["rooms"][0]
    assert (found["quorum_id"], found["age_s"], found["waiting"]) == (5, 2.0, "")
    assert found["replicas"][0]["commit_failures"] == 1


def test_the_status_is_bounded() -> None:
    rooms = TorchftRooms(SETTINGS)
    for number in range(REPLICAS_SHOWN_MAX + 3):
        rooms.handle(HeartbeatReceived("x", f"{number:04}"), 0.0)
    (found,) = torchft_status([], rooms.rooms, 0.0)["rooms"]
    assert len(found["replicas"]) == REPLICAS_SHOWN_MAX and found["replicas_left_out"] == 3
