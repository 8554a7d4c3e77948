"""Plain values as JSON, and back: numbers that JSON cannot hold, and types of Python and torch.

Only exact types are supported, because a subclass may hold more than its base class shows. Not
here: values that contain values, and tensors (format.py).
"""

from __future__ import annotations

import math
import pathlib
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import torch

from ftrun.checkpoint.leaves import DTYPES, numpy_dtype

Json: TypeAlias = Any

INT_TEXT_MAX = 1 << 20
JSON_INT_BITS = 63
SCALAR_KINDS = "biufcmMSU"
_PATHS = (
    pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath,
)  # fmt: skip


def write_plain(value: Any) -> Json | None:
    """``value`` as JSON; None: it is of another kind."""
    write = _WRITE.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, np.generic) and value.dtype.kind in SCALAR_KINDS:
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}
    if type(value) in (datetime, time) and type(value.tzinfo) in (type(None), timezone):
        zone = None if value.tzinfo is None else write_plain(value.tzinfo)
        return {type(value).__name__: [*_clock_fields(value), value.fold, zone]}
    return None


def read_plain(kind: str, body: Json) -> Any:
    """The value that ``write_plain`` has written under ``kind``. It comes from a peer: not trusted.

    Raises:
        KeyError: there is no such kind.
        ValueError, TypeError, ArithmeticError, RuntimeError, struct.error: it is malformed.
    """
    return _READ[kind](body)


def _write_int(value: int) -> Json:
    # Python refuses to read decimal integers beyond 4300 digits, hexadecimal ones never.
    return value if value.bit_length() <= JSON_INT_BITS else {"int": hex(value)}


def _read_int(text: str) -> int:
    if len(text) > INT_TEXT_MAX:
        raise ValueError("an integer too long")
    return int(text, 16)


def _write_float(value: float) -> Json:
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _read_float(text: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def _read_complex(text: str) -> complex:
    return complex(*struct.unpack(">dd", bytes.fromhex(text)))


def _read_scalar(body: list[str]) -> np.generic:
    dtype, data = body
    value: np.generic = np.frombuffer(bytes.fromhex(data), dtype=numpy_dtype(dtype))[0]
    return value


def _clock_fields(value: datetime | time) -> list[int]:
    day = [value.year, value.month, value.day] if isinstance(value, datetime) else []
    return [*day, value.hour, value.minute, value.second, value.microsecond]


def _reads_clock(kind: Callable[..., Any], count: int) -> Callable[[Json], Any]:
    def read(body: Json) -> Any:
        *fields, fold, zone = body
        if len(fields) != count:
            raise ValueError(f"{len(fields)} parts instead of {count}")
        tzinfo = None if zone is None else _read_timezone(zone["timezone"])
        return kind(*fields, fold=fold, tzinfo=tzinfo)

    return read


def _write_timezone(value: timezone) -> Json:
    offset = value.utcoffset(None)
    name = value.tzname(None)
    own = [name] if name != timezone(offset).tzname(None) else []
    return {"timezone": [offset.days, offset.seconds, offset.microseconds, *own]}


def _read_timezone(body: Json) -> timezone:
    days, seconds, microseconds, *own = body
    return timezone(timedelta(days, seconds, microseconds), *own)


def _reads(
    kind: Callable[..., Any], count: int, part: Callable[[Any], Any] = lambda part: part
) -> Callable[[Json], Any]:
    def read(body: Json) -> Any:
        if len(body) != count:
            raise ValueError(f"{len(body)} parts instead of {count}")
        return kind(*[part(written) for written in body])

    return read


def _read_path(body: list[str]) -> pathlib.PurePath:
    kind, text = body
    return {path.__name__: path for path in _PATHS}[kind](text)


_WRITE: dict[type, Callable[[Any], Json]] = {
    int: _write_int,
    float: _write_float,
    torch.dtype: lambda value: {"dtype": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"device": str(value)},
    complex: lambda value: {"complex": struct.pack(">dd", value.real, value.imag).hex()},
    timedelta: lambda value: {"timedelta": [value.days, value.seconds, value.microseconds]},
    date: lambda value: {"date": [value.year, value.month, value.day]},
    timezone: _write_timezone,
    Decimal: lambda value: {"Decimal": str(value)},
    Fraction: lambda value: {"Fraction": [hex(value.numerator), hex(value.denominator)]},
    UUID: lambda value: {"UUID": value.hex},
    range: lambda value: {"range": [hex(x) for x in (value.start, value.stop, value.step)]},
    **{kind: lambda value: {"path": [type(value).__name__, str(value)]} for kind in _PATHS},
}

_READ: dict[str, Callable[[Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "dtype": lambda name: DTYPES[name],
    "device": torch.device,
    "scalar": _read_scalar,
    "complex": _read_complex,
    "timedelta": _reads(timedelta, 3),
    "date": _reads(date, 3),
    "datetime": _reads_clock(datetime, 7),
    "time": _reads_clock(time, 4),
    "timezone": _read_timezone,
    "Decimal": Decimal,
    "Fraction": _reads(Fraction, 2, _read_int),
    "UUID": UUID,
    "range": _reads(range, 3, _read_int),
    "path": _read_path,
}
