"""A store holds one register: a version and a value, replaced by compare-and-set.

To add a kind of store, write a class with the methods of ``Store`` and add a line to opening.py.
Not here: what is written when (core/register/).
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Protocol

from ftrun.base.errors import PeerError, ProtocolError
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.protocol.limits import MESSAGE_BYTES_MAX

HEAD: dict[str, type[Any]] = {
    "epoch": int, "holder": str, "address": str, "silence_s": float, "serial": int, "is_free": bool,
}  # fmt: skip
"""A value's fields except its journal, and their types in JSON."""


class StoreError(PeerError):
    """The store has not answered. A write may have been carried out, or may be carried out
    later."""


class Store(Protocol):
    """One register. One call at a time."""

    place: str
    """Its name, for people."""

    async def read(self, *, with_journal: bool) -> Answered:
        """Read the current content of the register, with linearizable consistency.

        Raises:
            StoreError: there is no answer.
        """

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        """Write ``value``, durably, if the register is at ``version``.

        Raises:
            StoreError: there is no answer.
        """

    async def close(self) -> None:
        """Release the store's resources in this process."""


def encode_head(value: Value, **more: object) -> bytes:
    """A value without its journal, as a line of JSON."""
    head = {name: kind(getattr(value, name)) for name, kind in HEAD.items()}
    return json.dumps({**head, **more}).encode()


def decode_head(data: bytes, journal: bytes | None = None) -> tuple[Value, dict[str, object]]:
    """The value, and any other keys written beside it.

    Raises:
        ProtocolError: this is no value of a register.
    """
    try:
        head = json.loads(data)
        found = {name: _checked(head[name], kind) for name, kind in HEAD.items()}
        value = Value(**found, journal=journal)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"no value of a register: {error!r}") from error
    return value, head


def pack_journal(journal: bytes) -> bytes:
    return zlib.compress(journal, 1)


def unpack_journal(data: bytes) -> bytes:
    """Decompress the journal, up to its size limit; empty if there is none.

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


def _checked(found: object, kind: type[Any]) -> Any:
    if not isinstance(found, kind):
        raise TypeError(f"{found!r} is no {kind.__name__}")
    return found
