"""One message for the workers of many agents, encoded once.

At a death every agent of a large job gets the same message, and a quorum of a thousand members
takes milliseconds to encode. Protobuf messages may be concatenated from encoded fields, so only the
targets, which differ, are encoded for each agent. Not here: which agents get it (core/).
"""

from __future__ import annotations

from ftrun.base.errors import ProtocolError
from ftrun.core.messages import RunningReplica, ToWorker, ToWorkers
from ftrun.core.quorum import Quorum
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.codec import encode
from ftrun.protocol.limits import COUNT_MAX, MESSAGE_BYTES_MAX
from ftrun.protocol.quorums import QuorumMemory, shorten, with_quorums
from ftrun.protocol.records import guarded, record_codec
from ftrun.protocol.streams import field_key, varint

ENVELOPE_BYTES_MAX = 16
"""An upper bound of what the envelope adds to a ToWorkers."""


class Broadcast:
    """Encodes messages and caches the last encoding, of the message or of its part for workers."""

    def __init__(self) -> None:
        self._to_workers = record_codec(ToWorkers)
        self._target = record_codec(RunningReplica)
        self._target_key = field_key(ftrun_pb2.ToWorkers, "targets")
        self._key = field_key(ftrun_pb2.Envelope, "to_workers")
        self._whole: tuple[object, bytes] = (None, b"")
        self._part: tuple[object, Quorum | None, bytes] = (None, None, b"")

    def encode(self, message: object, memory: QuorumMemory) -> bytes:
        """As ``StreamCodec.encode``, for the stream with this memory.

        Raises:
            ProtocolError: it is not a message, or over a limit.
        """
        if type(message) is not ToWorkers:
            return self._encode_once(message)
        quorum: Quorum | None = getattr(message.message, "quorum", None)
        base = memory.base_for(quorum) if quorum is not None else None
        part = self._encode_part(message.message, base)
        targets = self._encode_targets(message.targets)
        length = len(targets) + len(part)
        if length + ENVELOPE_BYTES_MAX > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"ToWorkers is over {MESSAGE_BYTES_MAX} bytes")
        if quorum is not None:
            memory.note_sent(quorum)
        return self._key + varint(length) + targets + part

    def _encode_once(self, message: object) -> bytes:
        """Encode a message that is the same for every agent."""
        if self._whole[0] is not message:
            self._whole = (message, encode(message))
        return self._whole[1]

    def _encode_part(self, message: ToWorker, base: Quorum | None) -> bytes:
        """Encode the part that is the same for all agents that have the same quorum."""
        if self._part[0] is not message or self._part[1] is not base:
            short = with_quorums(ToWorkers((), message), lambda quorum: shorten(quorum, base))
            self._part = (message, base, self._to_workers.encode(short))
        return self._part[2]

    def _encode_targets(self, targets: tuple[RunningReplica, ...]) -> bytes:
        if len(targets) > COUNT_MAX:
            raise ProtocolError(f"ToWorkers has {len(targets)} targets, at most {COUNT_MAX}")
        parts: list[bytes] = []
        for target in targets:
            data = guarded(self._target.encode_part, target)
            parts += (self._target_key, varint(len(data)), data)
        return b"".join(parts)
