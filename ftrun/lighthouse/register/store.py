"""A store holds one register: a version and a value, replaced by compare-and-set.

Another kind of store is a class with the methods of ``Store`` and a line in opening.py. Not here:
what is written when (core/register/).
"""

from __future__ import annotations

import json
import zlib
from typing import Protocol, TypeVar

from ftrun.base.errors import PeerError, ProtocolError
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.protocol.limits import MESSAGE_BYTES_MAX

T = TypeVar("T")


class StoreError(PeerError):
    """The store has given no answer. A write may have been carried out, or may be later."""


class Store(Protocol):
    """One register. One call at a time."""

    place: str
    """Where it is, for people."""

    async def read(self, *, with_journal: bool) -> Answered:
        """The content of the register now, at the latest of its versions.

        Raises:
            StoreError: there is no answer.
        """

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        """Write ``value``, durably, if the register has ``version``.

        Raises:
            StoreError: there is no answer.
        """

    async def close(self) -> None:
        """Give back what the store holds in this process."""


def encode_head(value: Value, **more: object) -> bytes:
    """All of a value but its journal, as a line of JSON."""
    head = {
        "epoch": value.epoch,
        "holder": value.holder,
        "address": value.address,
        "silence_s": float(value.silence_s),
        "serial": value.serial,
        "is_free": value.is_free,
    }
    return json.dumps({**head, **more}).encode()


def decode_head(data: bytes, journal: bytes | None = None) -> tuple[Value, dict[str, object]]:
    """The value, and all that is written beside it.

    Raises:
        ProtocolError: this is no value of a register.
    """
    try:
        head = json.loads(data)
        value = Value(
            epoch=_checked(head["epoch"], int),
            holder=_checked(head["holder"], str),
            address=_checked(head["address"], str),
            silence_s=_checked(head["silence_s"], float),
            serial=_checked(head["serial"], int),
            is_free=_checked(head["is_free"], bool),
            journal=journal,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"no value of a register: {error!r}") from error
    return value, head


def pack_journal(journal: bytes) -> bytes:
    return zlib.compress(journal, 1)


def unpack_journal(data: bytes) -> bytes:
    """The journal: at most so many bytes as one can have; empty if there is none.

    Raises:
        ProtocolError: this is no journal.
    """
    if not data:
        return b""
    unpacking = zlib.decompressobj()
    try:
        journal = unpacking.decompress(data, MESSAGE_BYTES_MAX)
    except zlib.error as error:
        raise ProtocolError(f"its journal cannot be unpacked: {error}") from error
    if not unpacking.eof:
        raise ProtocolError("its journal is not whole, or too large")
    return journal


def _checked(found: object, kind: type[T]) -> T:
    if not isinstance(found, kind):
        raise TypeError(f"{found!r} is no {kind.__name__}")
    return found
