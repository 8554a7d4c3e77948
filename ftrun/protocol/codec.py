"""Messages of core/messages.py ↔ protobuf bytes.

Classes and fields have the same names on both sides (ftrun.proto), so a class's plan is made once
from its type hints and there is no table to keep. A plan is a list of small functions, one per
field: the codec is on the recovery path and takes some 10 to 50 µs for a small message.

What comes in is checked before anyone sees it (X3): sizes, counts, ids, durations, and that
everything required is there. The answer to anything else is ``ProtocolError``, never another error.

Not here: framing (frames.py, rpc.py), and whether a message makes sense now (core/).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as Wire

from ftrun.core import messages
from ftrun.core.messages import Quorum
from ftrun.errors import ProtocolError
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.limits import (
    BATCH_OVERHEAD_BYTES,
    MESSAGE_BYTES_MAX,
    PROSE_FIELDS,
    check_count,
    checker,
    clip,
    id_checker,
)

QUORUMS_KEPT = 8

T = TypeVar("T")
Put = Callable[[Any, Any], None]
"""Writes one field of a record into its wire message: ``put(wire, value)``."""
Get = Callable[[Any], Any]
"""Reads one field from a wire message."""
Check = Callable[[Any], Any]
"""Returns a value that the protocol allows; raises ProtocolError for others."""


class RecordCodec(Generic[T]):
    """One dataclass ↔ the protobuf message of the same fields."""

    def __init__(self, cls: type[T], wire: type[Wire]) -> None:
        plans = _plans(cls)
        _check_names(cls, wire, [name for name, _ in plans])
        self._cls = cls
        self._wire = wire
        self._puts = [(name, plan.put, plan.clean) for name, plan in plans]
        self._gets = [(plan.get, plan.check) for _, plan in plans]

    def fill(self, wire: Any, record: T) -> None:
        """Write ``record`` into an empty wire message."""
        for name, put, clean in self._puts:
            value = getattr(record, name)
            if put is not None:
                put(wire, value)
            else:
                setattr(wire, name, value if clean is None else clean(value))

    def read(self, wire: Any) -> T:
        """The record in ``wire``, checked."""
        return self._cls(
            *[get(wire) if check is None else check(get(wire)) for get, check in self._gets]
        )

    def encode(self, record: T) -> bytes:
        """Serialise one record by itself.

        Raises:
            ProtocolError: a value is over its limit or of the wrong type.
        """
        wire = self._wire()
        _guarded(self.fill, wire, record)
        return _serialise(wire, record)

    def decode(self, data: bytes) -> T:
        """The record in ``data``.

        Raises:
            ProtocolError: the bytes are no such record, or over a limit.
        """
        return _guarded(self.read, _parse(self._wire, data))


def encode(message: object) -> bytes:
    """Serialise a message as an Envelope.

    Raises:
        ProtocolError: it is not a message, or over a limit; nothing was sent.
    """
    wire = ftrun_pb2.Envelope()
    assert _ENVELOPE.put is not None
    _guarded(_ENVELOPE.put, wire, message)
    return _serialise(wire, message)


def decode(data: bytes) -> Any:
    """The message in an Envelope.

    Raises:
        ProtocolError: the bytes are not one message that the protocol allows.
    """
    return _guarded(_ENVELOPE.get, _parse(ftrun_pb2.Envelope, data))


def decode_batch(data: bytes) -> list[Any]:
    """The messages in a Batch, in order.

    Raises:
        ProtocolError: the bytes are not messages that the protocol allows.
    """
    batch: Any = _parse(ftrun_pb2.Batch, data, MESSAGE_BYTES_MAX + BATCH_OVERHEAD_BYTES)
    check_count("Batch.envelopes", len(batch.envelopes))
    return [_guarded(_ENVELOPE.get, envelope) for envelope in batch.envelopes]


# ---------------------------------------------------------------- guards


def _guarded(function: Callable[..., T], *args: Any) -> T:
    """Call ``function``; what protobuf raises on bad values becomes a ProtocolError."""
    try:
        return function(*args)
    except ProtocolError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        raise ProtocolError(f"not a message of the protocol: {error}") from error


def _serialise(wire: Any, record: object) -> bytes:
    try:
        data: bytes = wire.SerializeToString()
    except EncodeError as error:
        raise ProtocolError(f"{type(record).__name__} cannot be encoded: {error}") from error
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"{type(record).__name__} is over {MESSAGE_BYTES_MAX} bytes")
    return data


def _parse(wire: type[Wire], data: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> Wire:
    if len(data) > bytes_max:
        raise ProtocolError(f"a message of {len(data)} bytes is over {bytes_max}")
    try:
        return wire.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"bytes that are no message: {error}") from error


def _check_names(cls: type, wire: type[Wire], names: list[str]) -> None:
    descriptor = wire.DESCRIPTOR
    have = {field.name for field in descriptor.fields if field.containing_oneof is None}
    have |= {f.name for f in descriptor.fields if _is_optional(f)}
    have |= {oneof.name for oneof in descriptor.oneofs if not oneof.name.startswith("_")}
    if have != set(names):
        raise TypeError(f"ftrun.proto and {cls.__name__} differ in {sorted(have ^ set(names))}")


def _is_optional(field: Any) -> bool:
    """True for a proto3 ``optional``, which protobuf keeps in a oneof of its own."""
    oneof = field.containing_oneof
    return oneof is not None and bool(oneof.name.startswith("_"))


# ---------------------------------------------------------------- plans, one per field


class _Plan(NamedTuple):
    """How one field is written and read.

    ``put`` None: the value is set as it is, after ``clean``. What ``get`` returns passes ``check``.
    Python's calls are what the codec's time goes to: so a scalar is got without one.
    """

    put: Put | None
    get: Get
    clean: Check | None = None
    check: Check | None = None


def _plans(cls: type) -> list[tuple[str, _Plan]]:
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is no dataclass")
    hints = get_type_hints(cls)
    return [(f.name, _plan(f"{cls.__name__}.{f.name}", hints[f.name])) for f in fields(cls)]


def _plan(where: str, hint: Any) -> _Plan:
    """How one field is written and read, from its type."""
    args = get_args(hint)
    if get_origin(hint) in (UnionType, Union):
        kinds = [arg for arg in args if arg is not NoneType]
        if len(kinds) > 1:
            return _union(where, kinds)
        return _optional(where, kinds[0])
    if get_origin(hint) is tuple:
        return _repeated(where, args[0])
    if isinstance(hint, type) and is_dataclass(hint):
        return _nested(where, hint)
    return _scalar(where, hint)


def _scalar(where: str, kind: Any) -> _Plan:
    name = where.rpartition(".")[2]
    check = checker(where, kind)
    clean = clip if name in PROSE_FIELDS and check is not None else check
    return _Plan(None, attrgetter(name), clean, check)


def _nested(where: str, cls: type, *, is_optional: bool = False) -> _Plan:
    name = where.rpartition(".")[2]
    codec = _codec(cls)

    def put(wire: Any, value: Any) -> None:
        if value is None and is_optional:
            return
        if type(value) is not cls:
            raise _cannot_be(where, value)
        inner = getattr(wire, name)
        inner.SetInParent()
        codec.fill(inner, value)

    def get(wire: Any) -> Any:
        if wire.HasField(name):
            return codec.read(getattr(wire, name))
        if is_optional:
            return None
        raise ProtocolError(f"{where} is missing")

    return _Plan(put, get)


def _optional(where: str, kind: Any) -> _Plan:
    if isinstance(kind, type) and is_dataclass(kind):
        return _nested(where, kind, is_optional=True)
    name = where.rpartition(".")[2]
    check = checker(where, kind) or _as_it_is

    def put(wire: Any, value: Any) -> None:
        if value is not None:
            setattr(wire, name, check(value))

    def get(wire: Any) -> Any:
        return check(getattr(wire, name)) if wire.HasField(name) else None

    return _Plan(put, get)


def _repeated(where: str, kind: Any) -> _Plan:
    name = where.rpartition(".")[2]
    put_all, get_all = _items(where, kind)

    def put(wire: Any, value: Any) -> None:
        check_count(where, len(value))
        put_all(getattr(wire, name), value)

    def get(wire: Any) -> Any:
        found = getattr(wire, name)
        check_count(where, len(found))
        return tuple(get_all(found))

    return _Plan(put, get)


def _items(where: str, kind: Any) -> tuple[Put, Callable[[Any], Iterable[Any]]]:
    """How the items of a repeated field are written and read."""
    if get_origin(kind) is tuple:
        return _pairs(where)
    if isinstance(kind, type) and is_dataclass(kind):
        codec = _codec(kind)

        def put_records(items: Any, values: Any) -> None:
            for value in values:
                if type(value) is not kind:
                    raise _cannot_be(where, value)
                codec.fill(items.add(), value)

        return put_records, lambda items: [codec.read(item) for item in items]
    check = checker(where, kind) or _as_it_is
    return (
        lambda items, values: items.extend([check(value) for value in values]),
        lambda items: [check(item) for item in items],
    )


def _pairs(where: str) -> tuple[Put, Callable[[Any], Iterable[Any]]]:
    """``tuple[tuple[str, float], ...]`` as repeated Scalar: named numbers, NaN allowed."""
    check = id_checker(f"{where}.name")

    def put(items: Any, values: Any) -> None:
        for name, number in values:
            items.add(name=check(name), value=number)

    return put, lambda items: [(check(item.name), item.value) for item in items]


def _union(where: str, kinds: list[type]) -> _Plan:
    name = where.rpartition(".")[2]
    places = {kind: (snake(kind.__name__), _codec(kind)) for kind in kinds}
    codecs = dict(places.values())

    def put(wire: Any, value: Any) -> None:
        place = places.get(type(value))
        if place is None:
            raise _cannot_be(where, value)
        inner = getattr(wire, place[0])
        inner.SetInParent()
        place[1].fill(inner, value)

    def get(wire: Any) -> Any:
        which = wire.WhichOneof(name)
        if which is None:
            raise ProtocolError(f"{where} is missing or of a kind that this version does not know")
        return codecs[which].read(getattr(wire, which))

    return _Plan(put, get)


def _cannot_be(where: str, value: object) -> ProtocolError:
    return ProtocolError(f"{where} cannot be a {type(value).__name__}")


def _as_it_is(value: Any) -> Any:
    return value


# ---------------------------------------------------------------- the classes


def snake(name: str) -> str:
    """``NewQuorum`` → ``new_quorum``: the oneof field of a message class."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


class _QuorumCodec(RecordCodec[Quorum]):
    """A quorum is by far the largest record, and the same one goes to and comes from everybody.

    So its bytes are kept for the last one written, and the record for the last few read: who has
    seen these bytes before gets the very same object.
    """

    def __init__(self) -> None:
        super().__init__(Quorum, ftrun_pb2.Quorum)
        self._written: tuple[Quorum | None, bytes] = (None, b"")
        self._remembered = functools.lru_cache(QUORUMS_KEPT)(self._read_bytes)

    def fill(self, wire: Any, record: Quorum) -> None:
        written, data = self._written
        if written is not record:
            data = self._write_bytes(record)
            self._written = (record, data)  # one assignment: other threads see both or neither
        wire.MergeFromString(data)

    def read(self, wire: Any) -> Quorum:
        return self._remembered(wire.SerializeToString(deterministic=True))

    def _write_bytes(self, record: Quorum) -> bytes:
        wire = ftrun_pb2.Quorum()
        super().fill(wire, record)
        return wire.SerializeToString()

    def _read_bytes(self, data: bytes) -> Quorum:
        return super().read(ftrun_pb2.Quorum.FromString(data))


@functools.cache
def _codec(cls: Any) -> RecordCodec[Any]:
    """The codec of one message class, made on first use; fields refer to each other's."""
    if cls is Quorum:
        return _QuorumCodec()
    return RecordCodec(cls, getattr(ftrun_pb2, cls.__name__))


def _message_classes() -> list[type]:
    """The dataclasses that travel by themselves: those with a place in the Envelope."""
    known = ftrun_pb2.Envelope.DESCRIPTOR.fields_by_name
    found = inspect.getmembers(messages, inspect.isclass)
    return [cls for name, cls in found if is_dataclass(cls) and snake(name) in known]


MESSAGE_CLASSES = tuple(_message_classes())
_ENVELOPE = _union("Envelope.message", list(MESSAGE_CLASSES))
