"""Records (dataclasses) ↔ the protobuf messages of the same name and fields.

Classes and fields have the same names on both sides (ftrun.proto), so a class's plan is made once
from its type hints and there is no table to keep. A plan is a list of small functions, one per
field. Records that thousands of messages have in common (``SHARED``) are encoded by themselves and
remembered, by their value and by their bytes (shallow.py).

What comes in is checked before anyone sees it (X3): sizes, counts, ids, durations, and that
everything required is there. The answer to anything else is ``ProtocolError``, never another error.

Not here: the Envelope and the Batch that travel (codec.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as Wire

from ftrun.core import ids, messages
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.errors import ProtocolError
from ftrun.protocol.limits import (
    MESSAGE_BYTES_MAX,
    PROSE_FIELDS,
    check_count,
    checker,
    clip,
    id_checker,
)
from ftrun.protocol.shallow import ShallowMessages

QUORUMS_KEPT = 8
WORKERS_KEPT = 16_384
"""What is kept of each worker at most: enough for a job of that many."""
GONE_KEPT = 512
GONE_PER_WORKER = 3
"""So many records of workers that are gone may be kept beside those of the quorum (Q8)."""
ATTEMPTS_KEPT = 256
"""What all workers say alike, each attempt or step anew."""

SHARED: dict[type, int] = {
    ids.Attempt: ATTEMPTS_KEPT,
    ids.Tag: ATTEMPTS_KEPT,
    ids.StateId: ATTEMPTS_KEPT,
    Quorum: QUORUMS_KEPT,
    messages.Built: ATTEMPTS_KEPT,
    messages.InForce: ATTEMPTS_KEPT,
    messages.Promised: ATTEMPTS_KEPT,
    ids.WorkerKey: WORKERS_KEPT,
    Endpoint: WORKERS_KEPT,
    Member: WORKERS_KEPT,
    messages.RunningReplica: WORKERS_KEPT,
}
"""Records that come again and again, and how many of each are remembered."""

_SHALLOW = ShallowMessages({cls.__name__ for cls in SHARED})

T = TypeVar("T")
Put = Callable[[Any, Any], None]
"""Writes one field of a record into its wire message: ``put(wire, value)``."""
Get = Callable[[Any], Any]
"""Reads one field from a wire message."""
Check = Callable[[Any], Any]
"""Returns a value that the protocol allows; raises ProtocolError for others."""


class RecordCodec(Generic[T]):
    """One dataclass ↔ the protobuf message of the same fields."""

    def __init__(self, cls: type[T], name: str = "") -> None:
        self._wire = shallow_class(name or cls.__name__)
        plans = _plans(cls)
        _check_names(cls, self._wire, [name for name, _ in plans])
        self._cls = cls
        self._puts = [(name, plan.blank, plan.put, plan.clean) for name, plan in plans]
        self._gets = [(plan.get, plan.check) for _, plan in plans]

    def encode(self, record: T) -> bytes:
        """Serialise one record by itself.

        Raises:
            ProtocolError: a value is over its limit or of the wrong type.
        """
        data = guarded(self.write, record)
        if len(data) > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"{type(record).__name__} is over {MESSAGE_BYTES_MAX} bytes")
        return data

    def decode(self, data: bytes) -> T:
        """The record in ``data``.

        Raises:
            ProtocolError: the bytes are no such record, or over a limit.
        """
        if len(data) > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"a message of {len(data)} bytes is over {MESSAGE_BYTES_MAX}")
        return guarded(self.read, data)

    def write(self, record: T) -> bytes:
        """As ``encode``, within ``guarded``; of any length."""
        wire: Any = self._wire()
        self.fill(wire, record)
        data: bytes = wire.SerializeToString()
        return data

    def read(self, data: bytes) -> T:
        """As ``decode``, within ``guarded``; of any length."""
        return self.take(self._wire.FromString(data))

    def fill(self, wire: Any, record: T) -> None:
        """Write ``record`` into an empty wire message."""
        for name, blank, put, clean in self._puts:
            value = getattr(record, name)
            if value is blank:
                continue
            if put is not None:
                put(wire, value)
            else:
                setattr(wire, name, value if clean is None else clean(value))

    def take(self, wire: Any) -> T:
        """The record in ``wire``, checked."""
        return self._cls(
            *[get(wire) if check is None else check(get(wire)) for get, check in self._gets]
        )


def guarded(function: Callable[..., T], *args: Any) -> T:
    """Call ``function``; what protobuf raises on bad values becomes a ProtocolError."""
    try:
        return function(*args)
    except ProtocolError:
        raise
    except DecodeError as error:
        raise ProtocolError(f"bytes that are no message: {error}") from error
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError, EncodeError) as error:
        raise ProtocolError(f"not a message of the protocol: {error}") from error


def shallow_class(name: str) -> Any:
    """The protobuf class of this name, as records are written into it."""
    return _SHALLOW.of(name)


@functools.cache
def record_codec(cls: Any) -> RecordCodec[Any]:
    """The codec of one message class, made on first use; fields refer to each other's."""
    if cls is Quorum:
        return _QuorumCodec()
    if cls in SHARED:
        return _SharedCodec(cls, SHARED[cls])
    return RecordCodec(cls)


class _SharedCodec(RecordCodec[T]):
    """Remembers the last so many: who has seen these bytes before gets the very same object."""

    def __init__(self, cls: type[T], kept: int) -> None:
        super().__init__(cls)
        self._caches = (functools.lru_cache(kept)(self.write), functools.lru_cache(kept)(self.read))
        self.write, self.read = self._caches  # type: ignore[method-assign]

    def forget_above(self, count: int) -> None:
        """Begin anew with what holds more than ``count`` records: what is in use is soon back."""
        for cache in self._caches:
            if cache.cache_info().currsize > count:
                cache.cache_clear()


def _forget_the_gone(quorum: Quorum) -> None:
    """Every incarnation leaves records that nobody uses any more; a new quorum comes of each."""
    workers = sum(max(1, len(member.endpoints)) for member in quorum.members)
    for cls, kept in SHARED.items():
        if kept == WORKERS_KEPT:
            codec = record_codec(cls)
            assert isinstance(codec, _SharedCodec)
            codec.forget_above(GONE_KEPT + (1 + GONE_PER_WORKER) * workers)


class _QuorumCodec(RecordCodec[Quorum]):
    """A quorum is by far the largest record, and the same one goes to and comes from everybody.

    To compare or hash two of them would take as long as to encode one: so the last one written is
    known by its identity, and the last few read by their bytes.
    """

    def __init__(self) -> None:
        super().__init__(Quorum)
        self._written: tuple[Quorum | None, bytes] = (None, b"")
        self.read = functools.lru_cache(QUORUMS_KEPT)(self._read_new)  # type: ignore[method-assign]

    def _read_new(self, data: bytes) -> Quorum:
        quorum = super().read(data)
        _forget_the_gone(quorum)
        return quorum

    def write(self, record: Quorum) -> bytes:
        """As ``encode``, within ``guarded``; of any length."""
        written, data = self._written
        if written is not record:
            data = super().write(record)
            _forget_the_gone(record)
            self._written = (record, data)  # one assignment: other threads see both or neither
        return data


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


_NEVER = object()


class _Plan(NamedTuple):
    """How one field is written and read.

    ``put`` None: the value is set as it is, after ``clean``. What ``get`` returns passes ``check``.
    Python's calls are what the codec's time goes to: so a scalar is got without one,
    and what is ``blank``, as most fields of most messages are, is not written at all.
    """

    put: Put | None
    get: Get
    clean: Check | None = None
    check: Check | None = None
    blank: Any = _NEVER


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
            return union(where, kinds)
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
    return _Plan(None, attrgetter(name), clean, check, blank=kind())


def _nested(where: str, cls: type, *, is_optional: bool = False) -> _Plan:
    name = where.rpartition(".")[2]
    put_record, take = _place(name, cls)

    def put(wire: Any, value: Any) -> None:
        if type(value) is not cls:
            raise _cannot_be(where, value)
        put_record(wire, value)

    def get(wire: Any) -> Any:
        if wire.HasField(name):
            return take(getattr(wire, name))
        if is_optional:
            return None
        raise ProtocolError(f"{where} is missing")

    return _Plan(put, get, blank=None if is_optional else _NEVER)


def _place(name: str, cls: type) -> tuple[Put, Get]:
    """How a record is put into the field ``name``, and had from the field's value."""
    codec = record_codec(cls)

    def put_bytes(wire: Any, value: Any) -> None:
        setattr(wire, name, codec.write(value))

    def put_inside(wire: Any, value: Any) -> None:
        inner = getattr(wire, name)
        inner.SetInParent()
        codec.fill(inner, value)

    return (put_bytes, codec.read) if cls in SHARED else (put_inside, codec.take)


def _optional(where: str, kind: Any) -> _Plan:
    if isinstance(kind, type) and is_dataclass(kind):
        return _nested(where, kind, is_optional=True)
    name = where.rpartition(".")[2]
    check = checker(where, kind) or _as_it_is

    def put(wire: Any, value: Any) -> None:
        setattr(wire, name, check(value))

    def get(wire: Any) -> Any:
        return check(getattr(wire, name)) if wire.HasField(name) else None

    return _Plan(put, get, blank=None)


def _repeated(where: str, kind: Any) -> _Plan:
    name = where.rpartition(".")[2]
    put_all, get_all = _items(where, kind)

    def put(wire: Any, value: Any) -> None:
        check_count(where, len(value))
        put_all(getattr(wire, name), value)

    def get(wire: Any) -> Any:
        found = getattr(wire, name)
        check_count(where, len(found))
        return tuple(get_all(found)) if found else ()

    return _Plan(put, get, blank=())


def _items(where: str, kind: Any) -> tuple[Put, Callable[[Any], Iterable[Any]]]:
    """How the items of a repeated field are written and read."""
    if get_origin(kind) is tuple:
        return _pairs(where)
    if isinstance(kind, type) and is_dataclass(kind):
        codec, is_shared = record_codec(kind), kind in SHARED

        def put_records(items: Any, values: Any) -> None:
            for value in values:
                if type(value) is not kind:
                    raise _cannot_be(where, value)
                if is_shared:
                    items.append(codec.write(value))
                else:
                    codec.fill(items.add(), value)

        take = codec.read if is_shared else codec.take
        return put_records, lambda items: [take(item) for item in items]
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


def union(where: str, kinds: list[type]) -> _Plan:
    """One of several messages: each has a field of its own, named as its class."""
    name = where.rpartition(".")[2]
    names = {kind: snake(kind.__name__) for kind in kinds}
    places = {kind: _place(field, kind) for kind, field in names.items()}
    takes = {names[kind]: take for kind, (_, take) in places.items()}

    def put(wire: Any, value: Any) -> None:
        place = places.get(type(value))
        if place is None:
            raise _cannot_be(where, value)
        place[0](wire, value)

    def get(wire: Any) -> Any:
        which = wire.WhichOneof(name)
        if which is None:
            raise ProtocolError(f"{where} is missing or of a kind that this version does not know")
        return takes[which](getattr(wire, which))

    return _Plan(put, get)


def _cannot_be(where: str, value: object) -> ProtocolError:
    return ProtocolError(f"{where} cannot be a {type(value).__name__}")


def _as_it_is(value: Any) -> Any:
    return value


def snake(name: str) -> str:
    """``NewQuorum`` → ``new_quorum``: the oneof field of a message class."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
