"""All plain values that a script reaches, for ``ftrun check``: what a newcomer lacks shows in them.

What heals is known by rules, and a script may count elsewhere: in class attributes, in objects with
slots or of a package, in a large collection. A trial surveys the values at its end, and those of a
run with deaths are compared with those of the undisturbed one.

Not here: when a trial surveys (trial.py), its words (check/verdict.py).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any, cast

from ftrun.inject.zero_edit.frames import Values, is_loop_package, spot_of, variables_of
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import LEFT_OUT, holds_values, is_own, is_plain, packed

DEEP = limits.DEEP + limits.DICTS_DEEP
_LEFT_OUT = (
    "torch",
    "numpy",
    "ftrun",
    "builtins",
    "threading",
    "logging",
    "collections",
    "weakref",
)


def survey(frames: Sequence[FrameType]) -> Values:
    """The plain values that these frames reach, by function and path."""
    found: Values = {}
    met: set[int] = set()
    for frame in frames:
        if is_loop_package(frame.f_code.co_filename):
            continue
        function = spot_of(frame).name
        for name, value in variables_of(frame).items():
            if not LEFT_OUT[name]:
                with contextlib.suppress(Exception):  # an object of the script's may do anything
                    _look(found, met, f"{function} {name}", value, DEEP)
    return found


def _look(found: Values, met: set[int], path: str, value: Any, deep: int) -> None:
    if len(found) >= limits.TRACKED:
        return
    if is_plain(value):
        found[path] = packed(value)
        return
    if not deep or id(value) in met or isinstance(value, ModuleType | FunctionType):
        return
    met.add(id(value))
    kind = type(value)
    if holds_values(cast(Hashable, kind)):
        _look(found, met, f"{path.partition(' ')[0]} {kind.__name__}", kind, deep)
    for inner, item in _parts(value):
        if not is_own(inner):
            _look(found, met, f"{path}{inner}", item, deep - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a collection or an object, each with the last step of its path."""
    if isinstance(value, dict):
        for key, item in itertools.islice(list(value.items()), limits.TABLE):
            if isinstance(key, str | int):
                yield f"[{key}]", item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value[: limits.TABLE]):
            yield f"[{index}]", item
    elif isinstance(value, type):
        if holds_values(cast(Hashable, value)):
            yield from _attributes(dict(vars(value)))
    elif type(value).__module__.partition(".")[0] not in _LEFT_OUT:
        known = getattr(value, "__dict__", {})
        yield from _attributes(known if isinstance(known, dict) else {})
        slots = [x for kind in type(value).__mro__ for x in _slots(kind)]
        yield from _attributes({x: getattr(value, x) for x in slots if hasattr(value, x)})


def _attributes(known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, item in list(known.items()):
        if not name.startswith("__"):
            yield f".{name}", item


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
