"""All plain values that a script reaches, for ``ftrun check``: shows what a newcomer lacks.

The rules of walk.py decide what heals, but a script may also count elsewhere: in a package's
objects, in a large collection. A trial surveys all values at its end, and ``ftrun check`` compares
those of a run with deaths with those of the undisturbed run.

Not here: when a trial surveys (trial.py), the verdict's texts (tools/check/verdict.py).
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType, GeneratorType
from typing import Any

import torch

from ftrun.inject.zero_edit.frames import Values, is_loop_package, spot_of, variables_of
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.holders import attributes_of, is_holder
from ftrun.inject.zero_edit.values.kinds import (
    LEFT_OUT,
    holds_values,
    is_own,
    is_result,
    is_value,
    packed,
)
from ftrun.inject.zero_edit.values.units import hashed, is_left_out, leaves
from ftrun.inject.zero_edit.values.walk import Walk

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


def survey(frames: Sequence[FrameType], like: Walk | None = None, here: str = "") -> Values:
    """The plain values that these frames reach, by function and path.

    Args:
        like: the run's Walk; if given, digests of all tensors and arrays that heal are included.
        here: the run's directory, replaced by "." in texts, because it differs between runs.
    """
    found: Values = {}
    met: set[int] = set()
    for frame in frames:
        if is_loop_package(frame.f_code.co_filename):
            continue
        function = spot_of(frame).name
        for name, value in variables_of(frame).items():
            if not LEFT_OUT[name]:
                with contextlib.suppress(Exception):  # the script's objects run its own code
                    _look(found, met, f"{function} {name}", value, DEEP)
    if here:
        found |= {key: x.replace(here, ".") for key, x in found.items() if type(x) is str}
    return found if like is None else found | _units(frames, like)


def carried_by(like: Walk, frames: Sequence[FrameType]) -> set[str]:
    """The values that heal, and the lists and dicts, by function and path."""
    walk = Walk()
    walk.reaches_all, walk.trainer = like.reaches_all, like.trainer
    return {
        f"{reached.function} {path}"
        for reached in walk.walk(frames)
        for path in (*reached.values, *reached.containers)
    }


def _units(frames: Sequence[FrameType], like: Walk) -> Values:
    walk, found = Walk(), Values()
    walk.reaches_all, walk.trainer, walk.optimizers = True, like.trainer, like.optimizers
    for reached in walk.walk([*frames, *walk.kept()]):
        for path, unit in reached.units.items():
            tensors = [torch.as_tensor(leaf) for leaf in leaves(unit)]
            found[f"{reached.function} {path}"] = f"tensors {hashed(tensors, 1, whole=True)}"
    return found


def _look(found: Values, met: set[int], path: str, value: Any, deep: int) -> None:
    if len(found) >= limits.TRACKED:
        return
    value = value.detach() if is_result(value) else value  # a newcomer is given the number alone
    if is_value(value) and not isinstance(value, tuple):
        found[path] = packed(value)
        return
    if (state := _state_of(value)) is not None:
        found[path] = state
    if not deep or id(value) in met:
        return
    met.add(id(value))
    kind = type(value)
    if holds_values(kind):
        _look(found, met, f"{path.partition(' ')[0]} {kind.__name__}", kind, deep)
    for inner, item in _parts(value):
        if not is_own(inner):
            _look(found, met, f"{path}{inner}", item, deep - 1)


def _state_of(value: Any) -> Any:
    """Describes a value without parts that changes and never heals, as a result of autograd; None:
    any other value."""
    kind = type(value)
    if is_left_out(value):
        return {"kind": "result of autograd", "values": [hashed(value, 1, whole=True)]}
    if kind is GeneratorType:
        return f"generator at {value.gi_frame.f_lasti if value.gi_frame is not None else 'its end'}"
    if kind.__module__ == "builtins" and kind.__name__.endswith("_iterator"):
        return f"{kind.__name__} with {operator.length_hint(value)} left"
    if kind in (bytearray, array):
        return f"{kind.__name__} {zlib.crc32(value):x}"
    return f"frozenset {sorted(map(repr, value))}" if kind is frozenset else None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a collection or an object, each with the last element of its path."""
    if isinstance(value, dict):
        for key, item in itertools.islice(list(value.items()), limits.TABLE):
            if isinstance(key, str | int):
                yield f"[{key}]", item
    elif isinstance(value, list | tuple | deque):
        for index, item in enumerate(itertools.islice(value, limits.TABLE)):
            yield f"[{index}]", item
    elif is_holder(type(value)) or type(value).__module__.partition(".")[0] not in _LEFT_OUT:
        known = attributes_of(value)
        for name, item in list(known.items()) if isinstance(known, dict) else ():
            if not name.startswith("__"):
                yield f".{name}", item
