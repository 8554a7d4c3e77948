"""Replays a transcript of torchft's quorums: the events of the rooms, and the exact instructions.

A line at the margin is an event; the indented lines below it are the instructions that follow.
``#`` begins a comment. Replica ids are single words; a call has the name that follows ``as``.

    settings min_replicas=2 join_timeout_s=10 heartbeat_timeout_s=5     (first line)
    start | restart [lost]        an empty record | kill -9, and one with the last record or none
    +0.5                          time passes; the timer fires when it is due, and replicas that
                                  heartbeat do so each tenth of a second
    beats a b | quiet a b         from here on these replicas heartbeat, or do not
    a joins [as a2] [step=5 failures=1 shrink room=job]
    a gives up | a2 gives up      the call ends

``python -m tests.transcripts.torchft_replay FILE…`` writes the present instructions into the files:
read the difference before you commit it. Not here: any expectation of its own.
"""

from __future__ import annotations

import sys

from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import (
    DEFAULT_ROOM,
    Answer,
    CallEnded,
    HeartbeatReceived,
    Joined,
    QuorumEvent,
    QuorumInstruction,
    QuorumMember,
    QuorumSettings,
    RoomsRecord,
    SaveRooms,
    TimerFired,
)
from tests.transcripts.replay import main

BEAT_S = 0.1


class Replay:
    """One transcript's rooms, and the names of its calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.settings = QuorumSettings()
        self.record = RoomsRecord()
        self.rooms = TorchftRooms(self.settings)
        self.beating: dict[str, str] = {}  # replica → room
        self.calls: list[str] = []
        self._out: list[str] = []

    def line(self, text: str) -> list[str]:
        """Play one event line; returns the lines of its instructions."""
        self._out = []
        words = text.split()
        options = dict(word.split("=") for word in words if "=" in word)
        if words[0] == "settings":
            values = {
                key: int(value) if key == "min_replicas" else float(value)
                for key, value in options.items()
            }
            self.settings = QuorumSettings(**values)  # type: ignore[arg-type]
        elif words[0] in ("start", "restart"):
            kept = self.record if words == ["restart"] else RoomsRecord(floor=100)
            self._start(RoomsRecord() if words[0] == "start" else kept)
        elif words[0].startswith("+"):
            self._pass(float(words[0]))
        elif words[0] == "beats":
            room = options.get("room", DEFAULT_ROOM)
            self.beating |= {name: room for name in words[1:] if "=" not in name}
        elif words[0] == "quiet":
            for name in words[1:]:
                del self.beating[name]
        elif words[1] == "joins":
            self._join(words, options)
        else:
            self._feed(CallEnded(self.calls.index(words[0])))
        return self._out

    def _start(self, record: RoomsRecord) -> None:
        self.record = record
        self.rooms = TorchftRooms(self.settings, record, self.now)
        self._feed(TimerFired())

    def _join(self, words: list[str], options: dict[str, str]) -> None:
        self.calls.append(words[3] if "as" in words else words[0])
        member = QuorumMember(
            words[0],
            step=int(options.get("step", 0)),
            shrink_only="shrink" in words,
            commit_failures=int(options.get("failures", 0)),
        )
        number = len(self.calls) - 1
        self._feed(Joined(number, options.get("room", DEFAULT_ROOM), member))

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        beat = self.now
        while True:
            beat += BEAT_S
            due = self.rooms.next_deadline()
            if due is not None and due <= min(beat, end):
                self.now, beat = max(self.now, due), beat - BEAT_S
                self._feed(TimerFired())
                after = self.rooms.next_deadline()
                assert after is None or after > self.now, "the timer fires for ever"
                continue
            if beat > end:
                break
            self.now = beat
            for name, room in self.beating.items():
                self._feed(HeartbeatReceived(room, name))
        self.now = end

    def _feed(self, event: QuorumEvent) -> None:
        for instruction in self.rooms.handle(event, self.now):
            self._out.append(self._words(instruction))

    def _words(self, instruction: QuorumInstruction) -> str:
        if isinstance(instruction, SaveRooms):
            self.record = RoomsRecord.of(instruction.record.document())
            rooms = [
                f"{name}={room.quorum_id}[{' '.join(room.replica_ids)}]"
                for name, room in self.record.rooms.items()
            ]
            return f"save {' '.join(rooms)}"
        call = instruction.call
        name = "heartbeat" if call is None else self.calls[call]
        if isinstance(instruction, Answer):
            names = " ".join(instruction.quorum.replica_ids)
            return f"{name} <- {instruction.quorum.quorum_id} [{names}]"
        return f"{name} refused: {instruction.reason}"


if __name__ == "__main__":
    main(sys.argv[1:], Replay)
