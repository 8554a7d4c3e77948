"""Removes objects from a state that cannot be sent to peers, such as code, and leaves marks.

Not here: the states (carried.py, tensors.py), their bytes (checkpoint/).
"""

from __future__ import annotations

from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from ftrun.base.errors import UserError
from ftrun.checkpoint import script_classes
from ftrun.checkpoint.format import validate

_PLAIN = (int, float, bool, str, bytes, type(None))
DEPTH_MAX = 32
LEFT_OUT = "ftrun.left_out"
_ABSENT = object()


def travelling(value: Any, depth: int = 0) -> Any:
    """A state in which a mark replaces each value that cannot be sent.

    A mark has the type of the value, and a name if it is code that is equal at all replicas.
    """
    kind = type(value)
    if kind in _PLAIN or (isinstance(value, torch.Tensor) and value.layout is torch.strided):
        return value
    if kind is dict and depth < DEPTH_MAX and set(map(type, value)) <= {str, int}:
        return {key: travelling(item, depth + 1) for key, item in value.items()}
    if kind in (list, tuple) and depth < DEPTH_MAX:
        return kind(travelling(item, depth + 1) for item in value)
    try:
        validate(value)
    except UserError:
        return {LEFT_OUT: [kind.__name__, _name_of(value)]}
    return value


def _name_of(value: Any) -> str:
    """The name of code without a closure, defaults or attributes; "": anything else."""
    if isinstance(value, FunctionType):
        code, has_values = value.__code__, value.__closure__ or value.__defaults__ or vars(value)
        line = f"{Path(code.co_filename).name}:{code.co_firstlineno} {value.__qualname__}"
        return "" if has_values else line
    is_named = isinstance(value, (type, BuiltinFunctionType))
    return f"{value.__module__}.{value.__qualname__}" if is_named else ""


def completed(given: Any, own: Any, path: str, part: str, lacking: list[str]) -> Any:
    """A peer's state of ``part``, with this replica's own values in place of the marks.

    The names of those that may differ from the peer's are appended to ``lacking``.
    """
    if type(given) is dict and LEFT_OUT in given:
        name = _name_of(own)
        if not name or name != given[LEFT_OUT][1]:
            lacking.append(f"{path} (a {given[LEFT_OUT][0]})")
        return own
    if type(given) is dict:
        known: Any = own if isinstance(own, dict) else {}
        found = {
            key: completed(item, known.get(key, _ABSENT), f"{key} of {part}", part, lacking)
            for key, item in given.items()
        }
        return {key: item for key, item in found.items() if item is not _ABSENT}
    if type(given) in (list, tuple):
        known = own if type(own) is type(given) else ()
        padded = [*known, *[_ABSENT] * (len(given) - len(known))]
        items = [completed(x, y, path, part, lacking) for x, y in zip(given, padded, strict=False)]
        return type(given)(None if item is _ABSENT else item for item in items)
    if type(own) is type(given) and script_classes.kind_of(type(given)) == script_classes.OBJECT:
        held = vars(own)  # in place, because the script may hold it under other names
        held.clear()
        held.update(vars(given))
        return own
    return given
