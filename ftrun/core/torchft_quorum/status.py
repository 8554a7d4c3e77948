"""The part of the status that shows torchft's replica groups: its types, and their values.

Not here: the rest of the status (core/lighthouse/status.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from ftrun.core.torchft_quorum.records import QuorumMember
from ftrun.core.torchft_quorum.room import Room

REPLICAS_SHOWN_MAX = 256


class TorchftReplicaStatus(TypedDict):
    """A replica group of torchft: a member of the last quorum, or one that lives.

    ``silent_s``: since its last heartbeat; None: it is given up. ``is_waiting``: it has joined the
    next quorum. ``step``, ``world_size``, ``address``: of its last call to join; None: it has not
    joined yet.
    """

    replica_id: str
    is_member: bool
    is_waiting: bool
    silent_s: float | None
    step: int | None
    world_size: int | None
    commit_failures: int
    address: str


class TorchftRoomStatus(TypedDict):
    """A job of torchft. ``age_s``: since its last quorum; None: none since this lighthouse began.

    ``waiting``: why those that have joined are no quorum yet; empty: none waits.
    ``replicas_left_out``: the number of further groups that are not shown.
    """

    room: str
    quorum_id: int
    age_s: float | None
    members: int
    waiting: str
    replicas: list[TorchftReplicaStatus]
    replicas_left_out: int


class TorchftStatus(TypedDict):
    """torchft's side of the lighthouse. ``addresses``: where it serves torchft's clients."""

    addresses: list[str]
    rooms: list[TorchftRoomStatus]


def torchft_status(addresses: list[str], rooms: Mapping[str, Room], now: float) -> TorchftStatus:
    found = [_room(name, rooms[name], now) for name in sorted(rooms)]
    return {"addresses": addresses, "rooms": found}


def _room(name: str, room: Room, now: float) -> TorchftRoomStatus:
    heartbeats, last = room.heartbeats(now), room.last or ()
    told = {x.replica_id: x for x in room.quorum.participants} if room.quorum is not None else {}
    told |= {replica_id: joiner.member for replica_id, joiner in room.joiners.items()}
    names = sorted({*last, *heartbeats})
    return {
        "room": name,
        "quorum_id": room.quorum_id,
        "age_s": None if room.quorum_at is None else round(now - room.quorum_at, 3),
        "members": len(last),
        "waiting": room.verdict.reason if room.joiners else "",
        "replicas": [
            _replica(replica_id, room, heartbeats.get(replica_id), told.get(replica_id), now)
            for replica_id in names[:REPLICAS_SHOWN_MAX]
        ],
        "replicas_left_out": max(0, len(names) - REPLICAS_SHOWN_MAX),
    }


def _replica(
    replica_id: str, room: Room, seen_at: float | None, told: QuorumMember | None, now: float
) -> TorchftReplicaStatus:
    return {
        "replica_id": replica_id,
        "is_member": replica_id in (room.last or ()),
        "is_waiting": replica_id in room.joiners,
        "silent_s": None if seen_at is None else round(now - seen_at, 3),
        "step": None if told is None else told.step,
        "world_size": None if told is None else told.world_size,
        "commit_failures": 0 if told is None else told.commit_failures,
        "address": "" if told is None else told.address,
    }
