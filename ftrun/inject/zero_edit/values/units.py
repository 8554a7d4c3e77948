"""Tensors and arrays that a script keeps outside its modules, as units that heal as one. Pure.

| unit | for example | kept if at the next draw there is |
|---|---|---|
| a tensor or an array | a confusion matrix | the same object |
| a dict of them | ``shadow[name]`` of an average | the same dict, also with other tensors (1) |
| a list or tuple of them | ``shadow_params`` | the same list, with the same tensors |

A batch is not among these: the next one is another object.

(1) A new dict counts at once, as long as the script holds its tensors: at the first draw after an
evaluation it may be the best state, which a newcomer that joins there needs.

Not here: where they are found (walk.py), which of them have changed (tensors.py).
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import torch

from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import DICTS, KINDS, PLAIN, Kind, is_single

_PLAIN = frozenset({*PLAIN, bytes})
_LISTS = (list, tuple)

Mark = tuple[tuple["weakref.ref[Any]", int], ...]
"""The tensors and arrays of a unit at some time, and their versions."""


def identity_of(value: Any) -> tuple[int, ...]:
    """The ids of a unit's objects, which stay the same as long as the script keeps it."""
    return (id(value), *map(id, value)) if type(value) in _LISTS else (id(value),)


def mark_of(value: Any) -> Mark:
    """The mark of a unit as it is now."""
    return tuple((weakref.ref(leaf), _version(leaf)) for leaf in leaves(value))


def is_as(value: Any, mark: Mark) -> bool:
    """Whether nothing in a unit has changed since it had this mark.

    A new tensor may have the id of one that is gone: a mark refers to the tensors themselves.
    """
    now = leaves(value)
    return len(now) == len(mark) and all(
        ref() is leaf and version == _version(leaf)
        for leaf, (ref, version) in zip(now, mark, strict=True)
    )


def is_leaf(value: Any) -> bool:
    """Whether a value is a tensor or an array that may heal."""
    if type(value) is torch.Tensor:
        is_dense = value.layout is torch.strided and not value.is_quantized
        is_fit = is_dense and not value.requires_grad and not value.is_inference()
        return is_fit and not is_single(value)
    is_known = KINDS[type(value)] is Kind.ARRAY and value.dtype.kind in "biufc"
    return is_known and value.nbytes <= limits.ARRAY_BYTES


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A unit's value with others in place of its tensors and arrays."""
    if type(value) in DICTS:
        return {key: mapped(item, change) for key, item in list(value.items())}
    if type(value) in _LISTS:
        return type(value)([mapped(item, change) for item in value])
    return value if type(value) in _PLAIN else change(value)


def leaves(value: Any) -> list[Any]:
    """The tensors and arrays of a unit."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


class Thin:
    """A unit's value, which is not kept alive by this."""

    def __init__(self, value: Any) -> None:
        self._value = mapped(value, weakref.ref)

    @property
    def is_there(self) -> bool:
        """Whether the script still holds a tensor of it."""
        return any(ref() is not None for ref in leaves(self._value))

    def restored(self) -> Any:
        """The value; None if the script has dropped a tensor of it."""
        is_whole = all(ref() is not None for ref in leaves(self._value))
        return mapped(self._value, lambda ref: ref()) if is_whole else None


def is_of_tensors(value: Any) -> bool:
    """Whether a dict or a list has tensors or arrays, and apart from these only plain values."""
    first = next(iter(value.values() if type(value) in DICTS else value), None)
    is_plain = type(first) in _PLAIN or (type(first) is torch.Tensor and is_single(first))
    if is_plain and (type(value) in _LISTS or len(value) > limits.ITEMS):
        return False  # a history, which grows at every draw
    return _count(value, limits.DEEP) > 0


def _count(value: Any, deep: int) -> int:
    """How many tensors and arrays; negative: it has something else, or too many."""
    kind = type(value)
    if kind in _PLAIN:
        return 0 if kind is not str or len(value) <= limits.TEXT_CHARS else -1
    if kind not in DICTS and kind not in _LISTS:
        PARTS.is_met |= deep < limits.DEEP and _is_part(value)
        return 1 if (kind is torch.Tensor and is_single(value)) or is_leaf(value) else -1
    if not deep or len(value) > limits.TENSORS:
        return -1
    total = 0
    for key, item in list(value.items()) if kind in DICTS else enumerate(value):
        found = _count(item, deep - 1) if type(key) in (str, int) else -1
        if found < 0:
            return -1
        total += found
    return total if total <= limits.TENSORS else -1


class _Parts:
    """``is_met``: the script keeps parts of tensors over a mesh beside its model: no unit has them,
    so a replacement would go on with its own."""

    is_met = False


PARTS = _Parts()


def _is_part(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and type(value) is module.DTensor and not value.requires_grad


def _version(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return 0 if leaf.is_inference() else leaf._version
    return zlib.crc32(leaf if leaf.flags.c_contiguous else leaf.tobytes())


def memory(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory; 0: it has none yet."""
    local = getattr(tensor, "_local_tensor", tensor)
    try:
        return int(local.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError, ValueError):  # it has no memory yet
        return 0
