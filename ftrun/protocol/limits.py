"""The limits of the protocol on single values: sizes, counts, ids, durations (X3).

Both sides validate, so that an error appears where the mistake is. Not here: how a message is
encoded (codec.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ftrun.base.errors import ProtocolError

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
BATCH_BYTES_MAX = 1024 * 1024
"""The maximum size of a batch. A longer message is sent alone."""
BATCH_OVERHEAD_BYTES = 1024
"""An upper bound of what a batch adds to a message that is sent alone."""
TEXT_BYTES_MAX = 64 * 1024
ID_BYTES_MAX = 128
COUNT_MAX = 65_536
INT_MAX = (1 << 63) - 1

ID_FIELDS = frozenset(
    {"replica_id", "incarnation", "agent_id", "job_id", "lineage", "phase", "kind", "signature"}
    | {"newcomers", "donors", "left", "finished", "withdrawn", "replica_ids", "heal_certificate"}
    | {"verdict", "incarnations", "pause", "early", "command", "node", "request_id", "device"}
    | {"follows"}
)
"""Fields that name something: at most ``ID_BYTES_MAX`` bytes, printable (they go into logs)."""

COUNT_FIELDS = frozenset({"replicas", "workers_per_replica", "min_replicas", "nodes", "capacity"})
"""Fields for which the receiver makes that number of objects: at most ``COUNT_MAX``."""

PROSE_FIELDS = frozenset(
    {"reason", "cause", "text", "message", "traceback", "error_type", "words"}
    | {"memory", "output", "stacks", "refused", "why"}
)
"""Texts for people, of any length at the sender: cut at encoding instead of refused."""


def validator(where: str, kind: Any) -> Callable[[Any], Any] | None:
    """The validation of this field's values; None if the wire type is sufficient."""
    name = where.rpartition(".")[2]
    if kind is str:
        return id_validator(where) if name in ID_FIELDS else _text_validator(where)
    if kind is int:
        return _int_validator(where, COUNT_MAX if name in COUNT_FIELDS else INT_MAX)
    if kind is float and name.endswith("_s"):
        return _duration_validator(where)
    if kind in (float, bool):
        return None
    raise TypeError(f"{where}: the codec knows no {kind!r}")


def _text_validator(where: str) -> Callable[[str], str]:
    def validate(value: str) -> str:
        # UTF-8 takes at most four bytes a character, so most texts need no second check.
        if len(value) * 4 > TEXT_BYTES_MAX and len(value.encode()) > TEXT_BYTES_MAX:
            raise ProtocolError(f"{where} is over {TEXT_BYTES_MAX} bytes")
        return value

    return validate


def id_validator(where: str) -> Callable[[str], str]:
    """The validation of names: short and printable."""

    def validate(value: str) -> str:
        if len(value) * 4 > ID_BYTES_MAX and len(value.encode()) > ID_BYTES_MAX:
            raise ProtocolError(f"{where} is over {ID_BYTES_MAX} bytes")
        if not value.isprintable():
            raise ProtocolError(f"{where} has characters that cannot be printed")
        return value

    return validate


def _int_validator(where: str, highest: int) -> Callable[[int], int]:
    def validate(value: int) -> int:
        if value > highest:
            raise ProtocolError(f"{where} is {value}, over {highest}")
        return value

    return validate


def _duration_validator(where: str) -> Callable[[float], float]:
    def validate(value: float) -> float:
        if not (math.isfinite(value) and value >= 0):
            raise ProtocolError(f"{where} must be finite and not negative, not {value}")
        return value

    return validate


def validate_count(where: str, count: int) -> None:
    """Refuse more items than a message may hold."""
    if count > COUNT_MAX:
        raise ProtocolError(f"{where} has {count} items, at most {COUNT_MAX} are allowed")


def clip(text: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """``text``, or its beginning and end if it is longer than ``bytes_max`` bytes of UTF-8.

    Characters that UTF-8 cannot encode (lone surrogates of odd file names) become "?".
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return raw.decode("utf-8")
    mark = f" ... [over {bytes_max} bytes: the middle is left out] ... "
    half = max(0, (bytes_max - len(mark.encode())) // 2)
    head = raw[:half].decode("utf-8", "ignore")
    tail = raw[len(raw) - half :].decode("utf-8", "ignore")
    return (head + mark + tail)[:bytes_max]
