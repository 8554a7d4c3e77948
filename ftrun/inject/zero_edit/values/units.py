"""Tensors and arrays that a script keeps outside its modules, as units that heal as one. Pure.

| unit | for example | kept if at the next draw there is |
|---|---|---|
| a tensor or an array | a confusion matrix | the same object |
| a dict of them | ``shadow[name]`` of an average | the same dict, also with other tensors (1) |
| a list or tuple of them | ``shadow_params`` | the same list, with the same tensors |

A batch is not among these: the next one is another object.

(1) A new dict counts at once, as long as the script holds its tensors: at the first draw after an
evaluation it may be the best state, which a newcomer that joins there needs.

Not here: which units have changed (tensors.py).
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import Any, cast

import torch

from ftrun.inject.zero_edit.frames import DICTS, TEXT_CHARS_MAX, TYPES_MAX, holds_values, is_own
from ftrun.inject.zero_edit.values import single
from ftrun.inject.zero_edit.values.held import OBJECTS_MAX, is_name

OBJECTS_DEEP, DICTS_DEEP = 3, 3
LEAVES_MAX = 10_000
UNITS_MAX = 1_024
READ_ANEW = 64
"""All containers are read at one draw in this many."""
ITEMS_MAX = 256
"""A dict or list with more entries that are no tensors is not searched."""
ARRAY_BYTES_MAX = 16 << 20
"""A larger array has no version, and is not read to find out whether it has changed."""
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
_LISTS = (list, tuple)

Mark = tuple[tuple["weakref.ref[Any]", int], ...]
"""The tensors and arrays of a unit at some time, and their versions."""


@dataclass(slots=True)
class Unit:
    """One unit where it was found. ``path``: as in writing.py."""

    path: str
    value: Any

    @property
    def identity(self) -> tuple[int, ...]:
        """The ids of its objects, which stay the same as long as the script keeps it."""
        if type(self.value) in _LISTS:
            return (id(self.value), *map(id, self.value))
        return (id(self.value),)

    @property
    def is_dict(self) -> bool:
        """Whether its tensors may be replaced by others."""
        return type(self.value) in DICTS

    def mark(self) -> Mark:
        """The mark of the unit as it is now."""
        return tuple((weakref.ref(leaf), _version(leaf)) for leaf in leaves(self.value))

    def is_as(self, mark: Mark) -> bool:
        """Whether nothing in it has changed since it had this mark.

        A new tensor may have the id of one that is gone: a mark refers to the tensors themselves.
        """
        now = list(leaves(self.value))
        if len(now) != len(mark):
            return False
        return all(
            ref() is leaf and version == _version(leaf)
            for leaf, (ref, version) in zip(now, mark, strict=True)
        )


@lru_cache(maxsize=4096)
def is_array(kind: Any) -> bool:
    """Whether this is numpy's type of arrays."""
    numpy = sys.modules.get("numpy") if kind.__module__ == "numpy" else None
    return numpy is not None and kind is numpy.ndarray


def is_leaf(value: Any) -> bool:
    """Whether a value is a tensor or an array that may heal."""
    if type(value) is torch.Tensor:
        is_dense = value.layout is torch.strided and not value.is_quantized
        is_fit = is_dense and not value.requires_grad and not value.is_inference()
        return is_fit and not single.is_single(value)
    is_known = is_array(cast(Hashable, type(value))) and value.dtype.kind in "biufc"
    return is_known and value.nbytes <= ARRAY_BYTES_MAX


def leaves(value: Any) -> Iterator[Any]:
    """The tensors and arrays of a unit."""
    if type(value) in DICTS:
        for item in list(value.values()):
            yield from leaves(item)
    elif type(value) in _LISTS:
        for item in value:
            yield from leaves(item)
    elif type(value) not in _PLAIN:
        yield value


def thinned(value: Any) -> Any:
    """A unit's value with weak references in place of its tensors and arrays."""
    if type(value) in DICTS:
        return {key: thinned(item) for key, item in list(value.items())}
    if type(value) in _LISTS:
        return type(value)(thinned(item) for item in value)
    return value if type(value) in _PLAIN else weakref.ref(value)


def restored(thin: Any) -> Any:
    """The value that was ``thinned``; None if the script has dropped a tensor of it."""
    try:
        return _restored(thin)
    except _Gone:
        return None


def has_left(thin: Any) -> bool:
    """Whether the script still holds a tensor of the value that was ``thinned``."""
    if type(thin) is dict:
        return any(has_left(item) for item in thin.values())
    if type(thin) in _LISTS:
        return any(has_left(item) for item in thin)
    return type(thin) is weakref.ref and thin() is not None


class _Gone(Exception):
    """A tensor lives no more."""


def _restored(thin: Any) -> Any:
    if type(thin) is dict:
        return {key: _restored(item) for key, item in thin.items()}
    if type(thin) in _LISTS:
        return type(thin)(_restored(item) for item in thin)
    if type(thin) is not weakref.ref:
        return thin
    value = thin()
    if value is None:
        raise _Gone
    return value


class _Searched(dict[type, bool]):
    """Whether variables of each type that was met may have units."""

    def __missing__(self, kind: type) -> bool:
        key = cast(Hashable, kind)
        is_unit = kind is torch.Tensor or kind in DICTS or kind in _LISTS or is_array(key)
        found = is_unit or _is_holder(key)
        if len(self) < TYPES_MAX:
            self[kind] = found
        return found


_SEARCHED = _Searched()


class Search:
    """Looks for units, at every draw. A container of the last draw that is as long is not read."""

    def __init__(self) -> None:
        self._looks = 0
        self._before: dict[int, tuple[int, bool]] = {}
        self._now: dict[int, tuple[int, bool]] = {}

    def begin(self) -> None:
        """The next draw."""
        self._looks += 1
        self._before = self._now if self._looks % READ_ANEW else {}
        self._now = {}

    def units_of(self, variables: Mapping[str, Any]) -> list[Unit]:
        """The units that variables reach, also in dicts and in objects of the script's."""
        found: list[Unit] = []
        is_searched = map(_SEARCHED.__getitem__, map(type, variables.values()))
        for name, value in compress(variables.items(), is_searched):
            if not name.startswith("__"):
                self._add(found, name, value, OBJECTS_DEEP, DICTS_DEEP)
        return found

    def _add(self, to: list[Unit], path: str, value: Any, objects: int, dicts: int) -> None:
        kind = type(value)
        if is_own(path):
            return
        if kind in DICTS:
            if self._is_whole(value):
                to.append(Unit(path, value))
            elif dicts and len(value) <= ITEMS_MAX:
                for key, item in list(value.items()):
                    if type(key) is str and _SEARCHED[type(item)]:
                        self._add(
                            to, f"{path}[{key}]", item, min(objects, 1) * is_name(key), dicts - 1
                        )
        elif kind in _LISTS:
            if value and self._is_whole(value):
                to.append(Unit(path, value))
            elif dicts and objects and len(value) <= OBJECTS_MAX:
                for index, item in enumerate(value):
                    if _is_holder(cast(Hashable, type(item))):
                        self._add(to, f"{path}[{index}]", item, 1, dicts - 1)
        elif objects and _is_holder(cast(Hashable, kind)) and hasattr(value, "__dict__"):
            for key, item in list(vars(value).items()):
                if item is not value and _SEARCHED[type(item)]:
                    self._add(to, f"{path}.{key}", item, objects - 1, dicts)
        elif is_leaf(value):
            to.append(Unit(path, value))

    def _is_whole(self, value: Any) -> bool:
        length = len(value)
        before = self._before.get(id(value))
        is_whole = before[1] if before and before[0] == length else is_of_tensors(value)
        if len(self._now) < UNITS_MAX:
            self._now[id(value)] = length, is_whole
        return is_whole


@lru_cache(maxsize=4096)
def _is_holder(kind: Any) -> bool:
    data = (torch.utils.data.Dataset, torch.utils.data.Sampler)
    return holds_values(kind) and not issubclass(kind, data)


def is_of_tensors(value: Any) -> bool:
    """Whether a dict or a list has tensors or arrays, and apart from these only plain values."""
    first = next(iter(value.values() if type(value) in DICTS else value), None)
    if type(first) in _PLAIN and (type(value) in _LISTS or len(value) > ITEMS_MAX):
        return False  # a history, which grows at every draw
    return _count(value, DICTS_DEEP) > 0


def _count(value: Any, deep: int) -> int:
    """How many tensors and arrays; negative: it has something else, or too many."""
    kind = type(value)
    if kind in _PLAIN:
        return 0 if kind is not str or len(value) <= TEXT_CHARS_MAX else -1
    if kind not in DICTS and kind not in _LISTS:
        is_single = kind is torch.Tensor and single.is_single(value)
        return 1 if is_single or is_leaf(value) else -1
    if not deep or len(value) > LEAVES_MAX:
        return -1
    total = 0
    for key, item in list(value.items()) if kind in DICTS else enumerate(value):
        found = _count(item, deep - 1) if type(key) in (str, int) else -1
        if found < 0:
            return -1
        total += found
    return total if total <= LEAVES_MAX else -1


def _version(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return 0 if leaf.is_inference() else leaf._version
    return zlib.crc32(leaf if leaf.flags.c_contiguous else leaf.tobytes())
