"""The readers of torchft clients' bytes, and of the files kept for these clients, as functions.

Not here: ftrun's own readers (targets.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from google.protobuf.message import DecodeError

from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.compat.torchft_wire.records import member_of
from ftrun.compat.torchft_wire.service import FILE, MAGIC, RoomsFile
from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import (
    DEFAULT_ROOM,
    CallEnded,
    Joined,
    QuorumSettings,
    RoomRecord,
    RoomsRecord,
)
from ftrun.core.torchft_quorum.status import torchft_status


class NotAccepted(Exception):
    """The reader refused the bytes by its answer."""


def requests() -> list[bytes]:
    """Valid requests."""
    members = [
        wire.QuorumMember(replica_id="a:1"),
        wire.QuorumMember(
            replica_id="train_0:uuid", address="http://h:1", store_address="h:2", step=7,
            world_size=2, shrink_only=True, data='{"x": 1}', commit_failures=1,
            reconfigure_handles=["p", "q"],
        ),
    ]  # fmt: skip
    found = [wire.LighthouseQuorumRequest(requester=member) for member in members]
    return [request.SerializeToString() for request in found]


def read_request(data: bytes) -> None:
    """From the bytes to the rooms, their record and their status."""
    try:
        request = wire.LighthouseQuorumRequest.FromString(data)
    except DecodeError as error:
        raise NotAccepted from error
    if not request.HasField("requester"):
        raise NotAccepted
    rooms = TorchftRooms(QuorumSettings())
    rooms.handle(Joined(1, DEFAULT_ROOM, member_of(request.requester)), 1.0)
    assert RoomsRecord.of(json.loads(json.dumps(rooms.record().document()))) == rooms.record()
    json.dumps(torchft_status([], rooms.rooms, 2.0))
    rooms.handle(CallEnded(1), 3.0)


def files(place: Path) -> list[bytes]:
    """Valid files."""
    found = []
    for record in (RoomsRecord(), RoomsRecord({"x": RoomRecord(5, ("a", "b"))}, 3)):
        RoomsFile(place / FILE).write(record)
        found.append((place / FILE).read_bytes())
    return found


def sealed_file(rng: Random) -> bytes:
    """A file with a right digest, whose content may be anything."""
    from ftrun.lighthouse.sealed_file import sealed
    from tests.fuzz.mutations import mutate_json

    document = RoomsRecord({"x": RoomRecord(5, ("a",)), "y": RoomRecord(7, ())}, 3).document()
    payload = json.dumps(mutate_json(rng, document)).encode("utf-8", "replace")
    return sealed(MAGIC, payload)


def read_file(place: Path, data: bytes) -> None:
    """Load it like a lighthouse at its start."""
    (place / FILE).write_bytes(data)
    if RoomsFile(place / FILE).load() is None:
        raise NotAccepted
