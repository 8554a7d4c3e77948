"""Plain values and containers of the script's frames, set to what peers or a predecessor had.

A path is ``name``, with ``.attribute`` for objects of the script's and then ``[key]`` for dicts.
A container that is there is set in place, because the script may hold it under other names.

Not here: reading them (frames.py), what they are set to (counters.py).
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Hashable, Iterator, Mapping
from types import FrameType
from typing import Any, cast

from ftrun.inject.zero_edit import histories, single
from ftrun.inject.zero_edit.frames import (
    CONTAINERS,
    DICTS,
    Values,
    as_plain,
    holds_values,
    is_own,
    is_value,
    short,
)

_PATH = re.compile(r"(\w+)((?:\.\w+)*)(?:\[(.*)\])?", re.DOTALL)
_ABSENT = object()


class FrameVariables:
    """One frame's variables, and what is in them."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self.known = frame.f_locals  # once: before Python 3.13 each access reads the frame again
        self._is_changed = False

    def find(self, path: str) -> tuple[dict[Any, Any], str] | None:
        """The variables or the dict that has, or may get, the value at ``path``, and its key."""
        parts = _PATH.fullmatch(path)
        if parts is None or is_own(path):
            return None
        name, attributes, keys = parts.groups()
        steps = [*attributes.split(".")[1:], *(() if keys is None else keys.split("]["))]
        holder: Any = self.known
        key = name
        for index, step in enumerate(steps):
            value = holder.get(key, _ABSENT)
            is_key = index >= len(steps) - (0 if keys is None else keys.count("][") + 1)
            inner = _inside(value, is_key)
            if inner is None:
                return None
            holder, key = inner, step
        return holder, key

    def put(self, holder: dict[Any, Any], key: str, value: Any) -> None:
        """Set a value."""
        holder[key] = value
        self._is_changed |= holder is self.known

    def close(self) -> None:
        """Before Python 3.13 ``f_locals`` of a function is a copy: write it into its frame."""
        if self._is_changed and sys.version_info < (3, 13):
            frame, clear = ctypes.py_object(self._frame), ctypes.c_int(0)
            ctypes.pythonapi.PyFrame_LocalsToFast(frame, clear)


def _inside(value: Any, is_key: bool) -> dict[Any, Any] | None:
    """The dict of a value's keys, or of its attributes; None: it has none that heal."""
    if is_key:
        return value if type(value) in DICTS else None
    is_holder = holds_values(cast(Hashable, type(value))) and hasattr(value, "__dict__")
    return vars(value) if is_holder else None


def write_values(
    frame: FrameType, values: Values, lists: Mapping[str, histories.Packed] | None = None
) -> list[str]:
    """Set plain values and containers of a frame; returns what was changed, as ``name a→b``."""
    here = FrameVariables(frame)
    changed = [*_write_plain(here, values), *_write_containers(here, lists or {})]
    here.close()
    return changed


def _write_plain(here: FrameVariables, values: Values) -> Iterator[str]:
    for path, new in values.items():
        found = here.find(path)
        if found is None:
            continue
        holder, key = found
        value = holder.get(key, _ABSENT)
        if value is _ABSENT:  # the script has not set it yet
            here.put(holder, key, single.unpacked(new))
            yield f"{path} →{short(new)}"
        elif is_value(value) and not _are_equal(value, new):
            here.put(holder, key, single.unpacked(new))
            yield f"{path} {short(value)}→{short(new)}"


def _are_equal(value: Any, new: Any) -> bool:
    plain = as_plain(value)
    return type(plain) is type(new) and bool(plain == new)


def _write_containers(here: FrameVariables, lists: Mapping[str, histories.Packed]) -> Iterator[str]:
    for path, packed in lists.items():
        found = here.find(path)
        if found is None:
            continue
        holder, key = found
        value, new = holder.get(key, _ABSENT), histories.unpacked(packed)
        if value is _ABSENT:
            here.put(holder, key, new)
            yield f"{path} →{histories.words(new)}"
        elif type(value) in CONTAINERS and histories.are_alike(value, new):
            if histories.are_equal(value, new):
                continue
            before = histories.words(value)
            histories.put_into(value, new)
            yield f"{path} {before}→{histories.words(value)}"
