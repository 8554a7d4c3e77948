"""The rooms of a lighthouse for torchft's clients: events in, instructions out.

A record must be on disk before the quorum that it names is sent. So an id is never used twice, even
over a kill -9. (torchft's own lighthouse begins at 1 again, and a survivor then keeps a group that
its new peer does not know.) The number of rooms, replica groups and calls is bounded. Not here: one
room (room.py), sockets and the disk (compat/torchft_wire/, lighthouse/).
"""

from __future__ import annotations

from ftrun.core.torchft_quorum import records as r
from ftrun.core.torchft_quorum.room import Room


class TorchftRooms:
    """All rooms. ``record``: of the lighthouse before this one."""

    def __init__(
        self, settings: r.QuorumSettings, record: r.RoomsRecord | None = None, now: float = 0.0
    ) -> None:
        self.settings = settings
        record = record or r.RoomsRecord()
        self._floor = record.floor
        self._rooms = {name: Room(settings, kept, now) for name, kept in record.rooms.items()}
        self._room_of: dict[int, Room] = {}
        self._saved = record

    @property
    def rooms(self) -> dict[str, Room]:
        return self._rooms

    def handle(self, event: r.QuorumEvent, now: float) -> list[r.QuorumInstruction]:
        """The instructions that follow from the event, in the order in which to carry them out."""
        if isinstance(event, r.CallEnded):
            room = self._room_of.pop(event.call, None)
            return [] if room is None else self._sent(room.leave(event.call, now))
        if isinstance(event, r.HeartbeatReceived):
            return self._heartbeat(event, now)
        if isinstance(event, r.Joined):
            return self._join(event, now)
        return self._sent([answer for room in self._rooms.values() for answer in room.form(now)])

    def next_deadline(self) -> float | None:
        """When ``TimerFired`` is due."""
        found = (room.next_deadline() for room in self._rooms.values())
        return min((at for at in found if at is not None), default=None)

    def record(self) -> r.RoomsRecord:
        """The record to keep on disk."""
        rooms = {name: room.record for name, room in self._rooms.items() if room.last}
        return r.RoomsRecord(rooms, self._floor)

    def _heartbeat(self, event: r.HeartbeatReceived, now: float) -> list[r.QuorumInstruction]:
        room = self._room(event.room, now)
        if room is None or not room.has_place(event.replica_id, now):
            return [r.Refuse(None, _full(room))]
        return self._sent(room.heartbeat(event.replica_id, now))

    def _join(self, event: r.Joined, now: float) -> list[r.QuorumInstruction]:
        room = self._room(event.room, now)
        if room is None or not room.has_place(event.member.replica_id, now):
            return [r.Refuse(event.call, _full(room))]
        if len(self._room_of) >= r.CALLS_MAX:
            return [r.Refuse(event.call, f"{r.CALLS_MAX} calls wait for a quorum: try again later")]
        self._room_of[event.call] = room
        return self._sent(room.join(event.call, event.member, now))

    def _sent(self, answers: list[r.Answer]) -> list[r.QuorumInstruction]:
        """The answers, after the record that they need."""
        for answer in answers:
            self._room_of.pop(answer.call, None)
        if not answers or self.record() == self._saved:
            return [*answers]
        self._saved = self.record()
        return [r.SaveRooms(self._saved), *answers]

    def _room(self, name: str, now: float) -> Room | None:
        """The room with that name, created at first use; None: there are too many."""
        if name not in self._rooms:
            if len(self._rooms) >= r.ROOMS_MAX and not self._forget_one(now):
                return None
            self._rooms[name] = Room(self.settings, r.RoomRecord(self._floor, ()), now)
        return self._rooms[name]

    def _forget_one(self, now: float) -> bool:
        """Drop the least recently used idle room. Returns False if none is idle."""
        idle = [name for name, room in self._rooms.items() if room.is_idle(now)]
        if not idle:
            return False
        oldest = min(idle, key=lambda name: self._rooms[name].touched_at)
        self._floor = max(self._floor, self._rooms.pop(oldest).quorum_id)
        return True


def _full(room: Room | None) -> str:
    if room is None:
        return f"this lighthouse has {r.ROOMS_MAX} rooms in use, and no place for another"
    return f"this room has {r.REPLICAS_MAX} replicas, and no place for another"
