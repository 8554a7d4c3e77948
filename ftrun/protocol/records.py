"""Records (dataclasses) ↔ the protobuf messages of the same name and fields.

Classes and fields have the same names on both sides (ftrun.proto), so no table is needed: the plan
of a class is made once, from its type hints. A plan has small functions for each field:

    encode(wire, value)   writes the field into a protobuf message
    decode(wire)          reads the field from one
    validate(value)       returns a value that the protocol allows, raises ProtocolError for others

Each value is validated before its receiver sees it (X3): sizes, counts, ids, durations; required
fields must be there. Malformed bytes raise ``ProtocolError`` and never another error.

Not here: the Envelope and the Batch (codec.py), the limits (limits.py), the caches for records that
many messages share (shared_records.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as Wire

from ftrun.base.errors import ProtocolError
from ftrun.protocol import limits
from ftrun.protocol.shared_records import SHARED, SharedRecords, shallow_class

T = TypeVar("T")
EncodeField = Callable[[Any, Any], None]
DecodeField = Callable[[Any], Any]
Validate = Callable[[Any], Any]


class RecordCodec(Generic[T]):
    """One dataclass ↔ the protobuf message of the same fields."""

    def __init__(self, cls: type[T], name: str = "") -> None:
        self._wire = shallow_class(name or cls.__name__)
        plans = _plans(cls)
        _check_names(cls, self._wire, [name for name, _ in plans])
        self._cls = cls
        self._encoders = [(name, plan.blank, plan.encode, plan.validate) for name, plan in plans]
        self._decoders = [(plan.decode, plan.validate) for _, plan in plans]
        self.encode_part: Callable[[T], bytes] = self._encode
        """As ``encode``, for a part of a message: without a length limit, to be called by
        ``guarded``."""
        self.decode_part: Callable[[bytes], T] = self._decode
        """As ``decode``, for a part of a message: without a length limit, to be called by
        ``guarded``."""

    def encode(self, record: T) -> bytes:
        """Serialise one record by itself.

        Raises:
            ProtocolError: a value is over its limit or of the wrong type.
        """
        data = guarded(self.encode_part, record)
        if len(data) > limits.MESSAGE_BYTES_MAX:
            raise ProtocolError(f"{type(record).__name__} is over {limits.MESSAGE_BYTES_MAX} bytes")
        return data

    def decode(self, data: bytes) -> T:
        """The record in ``data``.

        Raises:
            ProtocolError: the bytes are no such record, or over a limit.
        """
        if len(data) > limits.MESSAGE_BYTES_MAX:
            raise ProtocolError(
                f"a message of {len(data)} bytes is over {limits.MESSAGE_BYTES_MAX}"
            )
        return guarded(self.decode_part, data)

    def _encode(self, record: T) -> bytes:
        wire: Any = self._wire()
        self.encode_into(wire, record)
        data: bytes = wire.SerializeToString()
        return data

    def _decode(self, data: bytes) -> T:
        return self.decode_from(self._wire.FromString(data))

    def encode_into(self, wire: Any, record: T) -> None:
        """Write ``record`` into an empty protobuf message."""
        for name, blank, encode, validate in self._encoders:
            value = getattr(record, name)
            if value is blank:
                continue
            if encode is not None:
                encode(wire, value)
            else:
                setattr(wire, name, value if validate is None else validate(value))

    def decode_from(self, wire: Any) -> T:
        """The record in a protobuf message, validated."""
        return self._cls(
            *[
                decode(wire) if validate is None else validate(decode(wire))
                for decode, validate in self._decoders
            ]
        )


def guarded(function: Callable[..., T], *args: Any) -> T:
    """Call ``function``, and convert protobuf's errors on bad values to a ProtocolError."""
    try:
        return function(*args)
    except ProtocolError:
        raise
    except DecodeError as error:
        raise ProtocolError(f"bytes that are no message: {error}") from error
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError, EncodeError) as error:
        raise ProtocolError(f"not a message of the protocol: {error}") from error


_SHARED_RECORDS = SharedRecords()


@functools.cache
def record_codec(cls: Any) -> RecordCodec[Any]:
    """The codec of one message class, made on first use. It refers to those of its fields."""
    codec = RecordCodec(cls)
    if cls in SHARED:
        codec.encode_part, codec.decode_part = _SHARED_RECORDS.cached(
            cls, codec.encode_part, codec.decode_part
        )
    return codec


def _check_names(cls: type, wire: type[Wire], names: list[str]) -> None:
    descriptor = wire.DESCRIPTOR
    have = {field.name for field in descriptor.fields if field.containing_oneof is None}
    have |= {f.name for f in descriptor.fields if _is_optional(f)}
    have |= {oneof.name for oneof in descriptor.oneofs if not oneof.name.startswith("_")}
    if have != set(names):
        raise TypeError(f"ftrun.proto and {cls.__name__} differ in {sorted(have ^ set(names))}")


def _is_optional(field: Any) -> bool:
    """Whether a field is proto3 ``optional``, which protobuf stores as a synthetic oneof."""
    oneof = field.containing_oneof
    return oneof is not None and bool(oneof.name.startswith("_"))


# ---------------------------------------------------------------- plans, one per field


_NEVER = object()


class _Plan(NamedTuple):
    """How one field is encoded, decoded and validated.

    ``encode`` None: the value is set after ``validate``. What ``decode`` returns passes
    ``validate``, unless that is None. Python calls dominate the codec's time. So a scalar needs
    none, and a ``blank`` value, as in most fields of most messages, is not encoded at all.
    """

    encode: EncodeField | None
    decode: DecodeField
    validate: Validate | None = None
    blank: Any = _NEVER


def _plans(cls: type) -> list[tuple[str, _Plan]]:
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is no dataclass")
    hints = get_type_hints(cls)
    return [(f.name, _plan(f"{cls.__name__}.{f.name}", hints[f.name])) for f in fields(cls)]


def _plan(where: str, hint: Any) -> _Plan:
    """The plan of one field, from its type. ``where``: class and field, for error texts."""
    args = get_args(hint)
    if get_origin(hint) in (UnionType, Union):
        kinds = [arg for arg in args if arg is not NoneType]
        if len(kinds) > 1:
            return union(where, kinds)
        return _optional(where, kinds[0])
    if get_origin(hint) is tuple:
        return _repeated(where, args[0])
    if isinstance(hint, type) and is_dataclass(hint):
        return _nested(where, hint)
    return _scalar(where, hint)


def _scalar(where: str, kind: Any) -> _Plan:
    name = where.rpartition(".")[2]
    if issubclass(kind, Enum):
        return _enum(where, kind)
    validate = limits.validator(where, kind)

    def encode_clipped(wire: Any, value: Any) -> None:
        setattr(wire, name, limits.clip(value))

    is_prose = name in limits.PROSE_FIELDS and validate is not None
    return _Plan(encode_clipped if is_prose else None, attrgetter(name), validate, blank=kind())


def _enum(where: str, kind: type[Enum]) -> _Plan:
    """An enum is sent as its value, a string."""
    name = where.rpartition(".")[2]
    known: dict[str, Enum] = {member.value: member for member in kind}

    def encode(wire: Any, value: Any) -> None:
        if type(value) is not kind:
            raise _cannot_be(where, value)
        setattr(wire, name, value.value)

    def decode(wire: Any) -> Enum:
        found = known.get(getattr(wire, name))
        if found is None:
            raise ProtocolError(f"{where} is missing or of a kind that this version does not know")
        return found

    return _Plan(encode, decode, blank=_NEVER)


def _nested(where: str, cls: type, *, is_optional: bool = False) -> _Plan:
    name = where.rpartition(".")[2]
    encode_record, decode_record = _inner(name, cls)

    def encode(wire: Any, value: Any) -> None:
        if type(value) is not cls:
            raise _cannot_be(where, value)
        encode_record(wire, value)

    def decode(wire: Any) -> Any:
        if wire.HasField(name):
            return decode_record(getattr(wire, name))
        if is_optional:
            return None
        raise ProtocolError(f"{where} is missing")

    return _Plan(encode, decode, blank=None if is_optional else _NEVER)


def _inner(name: str, cls: type) -> tuple[EncodeField, DecodeField]:
    """Encodes a record into the field ``name``; decodes one from the field's value."""
    codec = record_codec(cls)

    def encode_as_bytes(wire: Any, value: Any) -> None:
        setattr(wire, name, codec.encode_part(value))

    def encode_inside(wire: Any, value: Any) -> None:
        inner = getattr(wire, name)
        inner.SetInParent()
        codec.encode_into(inner, value)

    if cls in SHARED:
        return encode_as_bytes, codec.decode_part
    return encode_inside, codec.decode_from


def _optional(where: str, kind: Any) -> _Plan:
    if isinstance(kind, type) and is_dataclass(kind):
        return _nested(where, kind, is_optional=True)
    name = where.rpartition(".")[2]
    validate = limits.validator(where, kind) or _unchanged

    def encode(wire: Any, value: Any) -> None:
        setattr(wire, name, validate(value))

    def decode(wire: Any) -> Any:
        return validate(getattr(wire, name)) if wire.HasField(name) else None

    return _Plan(encode, decode, blank=None)


def _repeated(where: str, kind: Any) -> _Plan:
    name = where.rpartition(".")[2]
    encode_items, decode_items = _items(where, kind)

    def encode(wire: Any, value: Any) -> None:
        limits.validate_count(where, len(value))
        encode_items(getattr(wire, name), value)

    def decode(wire: Any) -> Any:
        found = getattr(wire, name)
        limits.validate_count(where, len(found))
        return tuple(decode_items(found)) if found else ()

    return _Plan(encode, decode, blank=())


def _items(where: str, kind: Any) -> tuple[EncodeField, Callable[[Any], Iterable[Any]]]:
    """Encodes values into the items of a repeated field; decodes the items."""
    if get_origin(kind) is tuple:
        return _pairs(where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record_items(where, kind)
    validate = limits.validator(where, kind) or _unchanged
    return (
        lambda items, values: items.extend([validate(value) for value in values]),
        lambda items: [validate(item) for item in items],
    )


def _record_items(where: str, cls: type) -> tuple[EncodeField, Callable[[Any], Iterable[Any]]]:
    codec, is_shared = record_codec(cls), cls in SHARED

    def encode(items: Any, values: Any) -> None:
        for value in values:
            if type(value) is not cls:
                raise _cannot_be(where, value)
            if is_shared:
                items.append(codec.encode_part(value))
            else:
                codec.encode_into(items.add(), value)

    decode = codec.decode_part if is_shared else codec.decode_from
    return encode, lambda items: [decode(item) for item in items]


def _pairs(where: str) -> tuple[EncodeField, Callable[[Any], Iterable[Any]]]:
    """``tuple[tuple[str, float], ...]`` as repeated Scalar: named numbers, NaN allowed."""
    validate = limits.id_validator(f"{where}.name")

    def encode(items: Any, values: Any) -> None:
        for name, number in values:
            items.add(name=validate(name), value=number)

    return encode, lambda items: [(validate(item.name), item.value) for item in items]


def union(where: str, kinds: list[type]) -> _Plan:
    """One of several messages. Each has its own field, named after its class."""
    name = where.rpartition(".")[2]
    names = {kind: snake(kind.__name__) for kind in kinds}
    inner = {kind: _inner(field, kind) for kind, field in names.items()}
    encoders = {kind: encode for kind, (encode, _) in inner.items()}
    decoders = {names[kind]: decode for kind, (_, decode) in inner.items()}

    def encode(wire: Any, value: Any) -> None:
        encode_record = encoders.get(type(value))
        if encode_record is None:
            raise _cannot_be(where, value)
        encode_record(wire, value)

    def decode(wire: Any) -> Any:
        which = wire.WhichOneof(name)
        if which is None:
            raise ProtocolError(f"{where} is missing or of a kind that this version does not know")
        return decoders[which](getattr(wire, which))

    return _Plan(encode, decode)


def _cannot_be(where: str, value: object) -> ProtocolError:
    return ProtocolError(f"{where} cannot be a {type(value).__name__}")


def _unchanged(value: Any) -> Any:
    return value


def snake(name: str) -> str:
    """``NewQuorum`` → ``new_quorum``: the oneof field of a message class."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
