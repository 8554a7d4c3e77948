"""Messages of core/messages/ ↔ the bytes on the wire: an Envelope each, or a Batch of them.

The codec is on the recovery path: a small message takes some 3 to 15 µs. Not here: framing
(frames.py, rpc.py), whether a message is valid now (core/), how a record is encoded, decoded and
validated (records.py).
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any

from ftrun.base.errors import ProtocolError
from ftrun.core import messages
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.limits import BATCH_OVERHEAD_BYTES, MESSAGE_BYTES_MAX, validate_count
from ftrun.protocol.records import guarded, snake, union
from ftrun.protocol.shared_records import shallow_class


def encode(message: object) -> bytes:
    """Serialise a message as an Envelope.

    Raises:
        ProtocolError: it is not a message, or over a limit; nothing was sent.
    """
    data = guarded(_encode, message)
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"{type(message).__name__} is over {MESSAGE_BYTES_MAX} bytes")
    return data


def decode(data: bytes) -> Any:
    """The message in an Envelope.

    Raises:
        ProtocolError: the bytes are not one message that the protocol allows.
    """
    _validate_size(data, MESSAGE_BYTES_MAX)
    return guarded(_decode, data)


def decode_batch(data: bytes) -> list[Any]:
    """The messages in a Batch, in order.

    Raises:
        ProtocolError: the bytes are not messages that the protocol allows.
    """
    _validate_size(data, MESSAGE_BYTES_MAX + BATCH_OVERHEAD_BYTES)
    return guarded(_decode_batch, data)


def _validate_size(data: bytes, bytes_max: int) -> None:
    if len(data) > bytes_max:
        raise ProtocolError(f"a message of {len(data)} bytes is over {bytes_max}")


def _encode(message: object) -> bytes:
    wire: Any = _Envelope()
    assert _MESSAGE.encode is not None
    _MESSAGE.encode(wire, message)
    data: bytes = wire.SerializeToString()
    return data


def _decode(data: bytes) -> Any:
    return _MESSAGE.decode(_Envelope.FromString(data))


def _decode_batch(data: bytes) -> list[Any]:
    envelopes = _Batch.FromString(data).envelopes
    validate_count("Batch.envelopes", len(envelopes))
    return [_MESSAGE.decode(envelope) for envelope in envelopes]


def _message_classes() -> list[type]:
    """The dataclasses that are messages by themselves: those with a field in the Envelope."""
    known = ftrun_pb2.Envelope.DESCRIPTOR.fields_by_name
    found = inspect.getmembers(messages, inspect.isclass)
    return [cls for name, cls in found if is_dataclass(cls) and snake(name) in known]


_Envelope: Any = shallow_class("Envelope")
_Batch: Any = shallow_class("Batch")
MESSAGE_CLASSES = tuple(_message_classes())
_MESSAGE = union("Envelope.message", list(MESSAGE_CLASSES))
