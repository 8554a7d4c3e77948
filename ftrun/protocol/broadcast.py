"""One message for the workers of many agents, encoded once.

At a death every agent of a large job is told the same, and a quorum of a thousand members takes
milliseconds to encode. Protobuf lets a message be put together from encoded fields, so only the
targets, which differ, are encoded for each agent. Not here: who is told (core/).
"""

from __future__ import annotations

from typing import Any

from ftrun.core.messages import RunningReplica, ToWorkers
from ftrun.errors import ProtocolError
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.codec import RecordCodec, encode
from ftrun.protocol.limits import COUNT_MAX, MESSAGE_BYTES_MAX

_WIRE_BYTES = 2
"""Protobuf's wire type of a field that is length and bytes."""


class Broadcast:
    """``encode`` with a memory of the last message: of all of it, or of what is for workers."""

    def __init__(self) -> None:
        self._to_workers = RecordCodec(ToWorkers, ftrun_pb2.ToWorkers)
        self._target = RecordCodec(RunningReplica, ftrun_pb2.RunningReplica)
        number = ftrun_pb2.Envelope.DESCRIPTOR.fields_by_name["to_workers"].number
        self._key = varint(number << 3 | _WIRE_BYTES)
        self._whole: tuple[object, bytes] = (None, b"")
        self._part: tuple[object, bytes] = (None, b"")

    def encode(self, message: object) -> bytes:
        """As ``codec.encode``.

        Raises:
            ProtocolError: it is not a message, or over a limit.
        """
        if type(message) is not ToWorkers:
            return self._encode_once(message)
        if self._part[0] is not message.message:
            part = self._to_workers.encode(ToWorkers((), message.message))
            self._part = (message.message, part)
        targets = self._encode_targets(message.targets)
        length = len(targets) + len(self._part[1])
        if length + 16 > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"ToWorkers is over {MESSAGE_BYTES_MAX} bytes")
        return self._key + varint(length) + targets + self._part[1]

    def _encode_once(self, message: object) -> bytes:
        """For what goes to every agent as it is."""
        if self._whole[0] is not message:
            self._whole = (message, encode(message))
        return self._whole[1]

    def _encode_targets(self, targets: tuple[RunningReplica, ...]) -> bytes:
        if len(targets) > COUNT_MAX:
            raise ProtocolError(f"ToWorkers has {len(targets)} targets, at most {COUNT_MAX}")
        wire: Any = ftrun_pb2.ToWorkers()
        for target in targets:
            self._target.fill(wire.targets.add(), target)
        data: bytes = wire.SerializeToString()
        return data


def varint(value: int) -> bytes:
    """Protobuf's integer: seven bits a byte, lowest first, the high bit on all but the last."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
