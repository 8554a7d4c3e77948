"""The rooms of a lighthouse for torchft's clients: events in, instructions out.

A record is to be on the disk before the quorum that it names is sent. So an id is never used twice,
also over a kill -9: torchft's own lighthouse begins at 1 again, and a survivor then keeps a group
that its new peer does not know. The number of rooms, replica groups and calls is bounded.
Not here: one room (room.py), sockets and the disk (compat/torchft_wire/, lighthouse/).
"""

from __future__ import annotations

from ftrun.core.torchft_quorum.records import (
    CALLS_MAX,
    REPLICAS_MAX,
    ROOMS_MAX,
    Answer,
    CallEnded,
    HeartbeatReceived,
    Joined,
    QuorumEvent,
    QuorumInstruction,
    QuorumSettings,
    Refuse,
    RoomRecord,
    RoomsRecord,
    SaveRooms,
)
from ftrun.core.torchft_quorum.room import Room


class TorchftRooms:
    """All rooms. ``record``: of the lighthouse before this one."""

    def __init__(
        self, settings: QuorumSettings, record: RoomsRecord | None = None, now: float = 0.0
    ) -> None:
        self.settings = settings
        record = record or RoomsRecord()
        self._floor = record.floor
        self._rooms = {name: Room(settings, kept, now) for name, kept in record.rooms.items()}
        self._room_of: dict[int, Room] = {}
        self._saved = record

    @property
    def rooms(self) -> dict[str, Room]:
        return self._rooms

    def handle(self, event: QuorumEvent, now: float) -> list[QuorumInstruction]:
        """The instructions that follow from the event, in the order in which they are to be carried
        out.
        """
        if isinstance(event, CallEnded):
            room = self._room_of.pop(event.call, None)
            return [] if room is None else self._sent(room.leave(event.call, now))
        if isinstance(event, HeartbeatReceived):
            return self._heartbeat(event, now)
        if isinstance(event, Joined):
            return self._join(event, now)
        return self._sent([answer for room in self._rooms.values() for answer in room.form(now)])

    def next_deadline(self) -> float | None:
        """When ``TimerFired`` is to come."""
        found = (room.next_deadline() for room in self._rooms.values())
        return min((at for at in found if at is not None), default=None)

    def record(self) -> RoomsRecord:
        """The record to be kept on disk."""
        rooms = {name: room.record for name, room in self._rooms.items() if room.last}
        return RoomsRecord(rooms, self._floor)

    def _heartbeat(self, event: HeartbeatReceived, now: float) -> list[QuorumInstruction]:
        room = self._room(event.room, now)
        if room is None or not room.has_place(event.replica_id, now):
            return [Refuse(None, _full(room))]
        return self._sent(room.heartbeat(event.replica_id, now))

    def _join(self, event: Joined, now: float) -> list[QuorumInstruction]:
        room = self._room(event.room, now)
        if room is None or not room.has_place(event.member.replica_id, now):
            return [Refuse(event.call, _full(room))]
        if len(self._room_of) >= CALLS_MAX:
            return [Refuse(event.call, f"{CALLS_MAX} calls wait for a quorum: try again later")]
        self._room_of[event.call] = room
        return self._sent(room.join(event.call, event.member, now))

    def _sent(self, answers: list[Answer]) -> list[QuorumInstruction]:
        """The answers, behind the record that they need."""
        for answer in answers:
            self._room_of.pop(answer.call, None)
        if not answers or self.record() == self._saved:
            return [*answers]
        self._saved = self.record()
        return [SaveRooms(self._saved), *answers]

    def _room(self, name: str, now: float) -> Room | None:
        """The room of that name, made when it is first named; None: there are too many."""
        if name not in self._rooms:
            if len(self._rooms) >= ROOMS_MAX and not self._forget_one(now):
                return None
            self._rooms[name] = Room(self.settings, RoomRecord(self._floor, ()), now)
        return self._rooms[name]

    def _forget_one(self, now: float) -> bool:
        """Forget the idle room that was used least lately; False: none is idle."""
        idle = [name for name, room in self._rooms.items() if room.is_idle(now)]
        if not idle:
            return False
        oldest = min(idle, key=lambda name: self._rooms[name].touched_at)
        self._floor = max(self._floor, self._rooms.pop(oldest).quorum_id)
        return True


def _full(room: Room | None) -> str:
    if room is None:
        return f"this lighthouse has {ROOMS_MAX} rooms in use, and no place for another"
    return f"this room has {REPLICAS_MAX} replicas, and no place for another"
