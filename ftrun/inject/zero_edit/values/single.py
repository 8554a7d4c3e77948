"""Single values that JSON lacks: numpy's numbers, tensors without a dimension, tuples, enums.

A best score or a running loss is often one of these. One of numpy's travels as Python's own number;
a tensor as its type and its number, and a newcomer's variable gets a new tensor, because the one
that it holds may be a part of another one. A tensor on another device is left out: to read it would
make the training thread wait for that device in each step. A tuple is one value, because nobody
can change a part of it: ``best = (score, epoch)``.

Not here: where they are found (frames.py), lists of them (histories.py).
"""

from __future__ import annotations

import sys
from enum import Enum
from functools import lru_cache
from typing import Any

TENSOR, TUPLE, ENUM = "ftrun.tensor", "ftrun.tuple", "ftrun.enum"
TUPLE_MAX = 16


@lru_cache(maxsize=4096)
def is_number(kind: Any) -> bool:
    """Whether this is a type of numpy's whose objects are single numbers: as a mean is."""
    numpy = sys.modules.get("numpy") if kind.__module__ == "numpy" else None
    lacking = (numpy.complexfloating, numpy.timedelta64, numpy.longdouble) if numpy else ()
    if numpy is None or issubclass(kind, lacking):  # JSON has none of these
        return False
    return issubclass(kind, (numpy.number, numpy.bool_))


@lru_cache(maxsize=4096)
def is_tensor(kind: Any) -> bool:
    """Whether this is torch's own type of tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and kind is torch.Tensor


def is_single(value: Any) -> bool:
    """Whether a tensor is a single number that may be a counter."""
    if value.dim() or value.requires_grad or value.is_complex():
        return False
    return value.device.type == "cpu" and not value.is_quantized


def packed(value: Any) -> dict[str, Any]:
    """Such a tensor, as JSON has it."""
    return {TENSOR: [str(value.dtype).removeprefix("torch."), value.item()]}


def packed_tuple(values: list[Any]) -> dict[str, Any]:
    """A tuple of such values, as JSON has it."""
    return {TUPLE: values}


def packed_enum(value: Enum) -> dict[str, Any]:
    """A member of an enumeration, as JSON has it."""
    kind = type(value)
    return {ENUM: [kind.__module__, kind.__qualname__, value.name]}


def _enum(module: str, path: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    is_enum = isinstance(found, type) and issubclass(found, Enum)
    return found[name] if is_enum and name in found.__members__ else None


def is_packed(value: Any) -> bool:
    """Whether this is a tensor, a tuple or a member of an enumeration as JSON has it."""
    return type(value) is dict and list(value) in ([TENSOR], [TUPLE], [ENUM])


def unpacked(value: Any) -> Any:
    """The tensor or the tuple that was packed as ``value``; anything else as it is."""
    if not is_packed(value):
        return value
    if TUPLE in value:
        return tuple(unpacked(item) for item in value[TUPLE])
    if ENUM in value:
        return _enum(*value[ENUM])
    torch = sys.modules["torch"]
    kind, number = value[TENSOR]
    return torch.tensor(number, dtype=getattr(torch, kind))
