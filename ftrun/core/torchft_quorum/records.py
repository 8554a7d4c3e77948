"""The data of torchft's quorums: settings, members, events, instructions, records on disk.

Field names are those of torchft's messages. Not here: the rules (rules.py), the wire
(compat/torchft_wire/).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

ROOMS_MAX = 64
REPLICAS_MAX = 4096
CALLS_MAX = 4 * REPLICAS_MAX
QUORUM_ID_MAX = 1 << 62
DEFAULT_ROOM = "default"
"""The room of a client that names none."""


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    """torchft's settings of a lighthouse. ``min_replicas`` >= 1."""

    min_replicas: int = 1
    join_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """One replica group as its manager describes it.

    ``data``: JSON of the user's own. ``reconfigure_handles``: by rank in the group.
    """

    replica_id: str
    address: str = ""
    store_address: str = ""
    step: int = 0
    world_size: int = 0
    shrink_only: bool = False
    data: str = ""
    commit_failures: int = 0
    reconfigure_handles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TorchftQuorum:
    """A quorum as torchft's clients get it; the members are in the order of their replica ids."""

    quorum_id: int
    participants: tuple[QuorumMember, ...]

    @property
    def replica_ids(self) -> tuple[str, ...]:
        """The members' names, in order."""
        return tuple(member.replica_id for member in self.participants)


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Joined:
    """A client asks for the next quorum and waits. ``call``: a number that no other call has."""

    call: int
    room: str
    member: QuorumMember


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The client of a call has given up or is gone, or has its answer."""

    call: int


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A replica group is alive."""

    room: str
    replica_id: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of ``next_deadline`` has come."""


QuorumEvent: TypeAlias = Joined | CallEnded | HeartbeatReceived | TimerFired


# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Answer:
    """Send the quorum to the client of this call."""

    call: int
    quorum: TorchftQuorum


@dataclass(frozen=True, slots=True)
class Refuse:
    """End this call with an error; ``call`` None: the heartbeat that was the event."""

    call: int | None
    reason: str


# ---------------------------------------------------------------- on disk


@dataclass(frozen=True, slots=True)
class RoomRecord:
    """One room's last quorum."""

    quorum_id: int
    replica_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoomsRecord:
    """All rooms' last quorums. ``floor``: the highest id of any room that is forgotten."""

    rooms: dict[str, RoomRecord] = field(default_factory=dict)
    floor: int = 0

    def document(self) -> dict[str, Any]:
        rooms = {
            name: {"quorum_id": room.quorum_id, "replica_ids": list(room.replica_ids)}
            for name, room in self.rooms.items()
        }
        return {"floor": self.floor, "rooms": rooms}

    @classmethod
    def of(cls, document: Any) -> RoomsRecord:
        """The record in a JSON document.

        Raises:
            ValueError: it is no such document.
        """
        try:
            rooms = {
                str(name): RoomRecord(int(room["quorum_id"]), tuple(map(str, room["replica_ids"])))
                for name, room in document["rooms"].items()
            }
            record = cls(rooms, int(document["floor"]))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no record of torchft's rooms: {error!r}") from error
        ids = [record.floor, *(room.quorum_id for room in rooms.values())]
        if len(rooms) > ROOMS_MAX or not all(0 <= number < QUORUM_ID_MAX for number in ids):
            raise ValueError("a record of torchft's rooms with too many rooms, or an id too high")
        return record


@dataclass(frozen=True, slots=True)
class SaveRooms:
    """Write the record to the disk before anything that follows is sent."""

    record: RoomsRecord


QuorumInstruction: TypeAlias = Answer | Refuse | SaveRooms
