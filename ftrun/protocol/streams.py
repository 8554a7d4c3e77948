"""One end of a stream between agent and lighthouse: messages ↔ batches of Envelopes.

Envelopes that accumulate while a gRPC message is being sent go together in the next one: at a death
all workers of a node answer at once, and a gRPC message costs more than the Envelopes in it. Not
here: queues (send_queue.py), calls (rpc.py, lighthouse/), messages to many agents (broadcast.py).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ftrun.core.messages import Heartbeat, HeartbeatAck
from ftrun.core.quorum import Quorum
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.codec import decode_batch, encode
from ftrun.protocol.limits import BATCH_BYTES_MAX
from ftrun.protocol.quorums import QuorumMemory, with_quorums

_WIRE_BYTES = 2
"""Protobuf's wire type of a field that is length and bytes."""


class StreamCodec:
    """Encodes and decodes each message once, in the stream's order, because it tracks the
    quorums."""

    def __init__(self) -> None:
        self.memory = QuorumMemory()

    def encode(self, message: object) -> bytes:
        """An Envelope, for ``take_batch``. Send Envelopes in the order of encoding.

        Raises:
            ProtocolError: it is not a message, or over a limit; the codec is unchanged.
        """
        sent: list[Quorum] = []

        def shorten_noted(quorum: Quorum) -> Quorum:
            sent.append(quorum)
            return self.memory.shorten(quorum)

        data = encode(with_quorums(message, shorten_noted))
        for quorum in sent:
            self.memory.note_sent(quorum)
        return data

    def decode(self, data: bytes) -> list[Any]:
        """The messages of a batch.

        Raises:
            ProtocolError: the bytes are no batch of messages that the protocol allows.
        """
        idle = _IDLE.get(data)
        if idle is not None:
            return [idle]
        return [with_quorums(message, self.memory.receive) for message in decode_batch(data)]


def take_batch(envelopes: deque[bytes]) -> bytes:
    """Take Envelopes from the left, up to ``BATCH_BYTES_MAX``. There must be at least one."""
    parts: list[bytes] = []
    size = 0
    while envelopes and (not parts or size + len(envelopes[0]) <= BATCH_BYTES_MAX):
        data = envelopes.popleft()
        size += len(data)
        parts += (_ENVELOPES, varint(len(data)), data)
    return b"".join(parts)


def field_key(wire: Any, name: str) -> bytes:
    """The key that precedes the encoded message in this field."""
    return varint(wire.DESCRIPTOR.fields_by_name[name].number << 3 | _WIRE_BYTES)


def varint(value: int) -> bytes:
    """Protobuf's integer: seven bits a byte, lowest first, the high bit on all but the last."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ENVELOPES = field_key(ftrun_pb2.Batch, "envelopes")
_IDLE = {take_batch(deque([encode(m)])): m for m in (Heartbeat(quiet=True), HeartbeatAck())}
"""The batches of an idle stream, which are nearly all batches."""
