"""Sets values in the script's frames to those of peers or of a predecessor.

A path is as in walk.py: a variable's name, ``.attribute`` for objects, ``[key]`` for collections.
An existing container is set in place, because the script may hold it under other names. An object
that a dict or a list lacks is made by the defaultdict's factory, or from the name of its class.

Not here: reading values (walk.py), which values are set (counters.py).
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from functools import partial
from inspect import CO_OPTIMIZED
from itertools import count, islice
from types import FrameType
from typing import Any, cast

import torch

from ftrun.inject.zero_edit.frames import OF_MODULE, Values, names_of
from ftrun.inject.zero_edit.values import histories
from ftrun.inject.zero_edit.values.holders import Held, attributes_of
from ftrun.inject.zero_edit.values.kinds import (
    CONTAINERS,
    DICTS,
    GONE,
    KINDS,
    PACKAGES,
    Kind,
    base_of,
    holds_values,
    is_computed,
    is_own,
    is_parameter,
    is_small,
    is_value,
    named,
    numbers_of,
    packed,
    short,
    unpacked,
)
from ftrun.inject.zero_edit.values.units import memory, part
from ftrun.inject.zero_edit.values.walk import CLASS

_PATH = re.compile(r"(\w+)((?:(?:\[[^\[\]]*\])*\.\w+)*)(?:\[(.*)\])?", re.DOTALL)
_STEP = re.compile(r"\[([^\[\]]*)\]|\.(\w+)")
_KEY = re.compile(r"\[([^\[\]]*)\]")
_ABSENT = object()
COUNTED_MAX = 1_000_000
"""Items of an ``itertools.count`` that are drawn to come to a place."""


Steps = list[tuple[str, bool]]
"""The elements of a path, each with whether it is a key of a collection; else an attribute."""


def _steps_of(path: str) -> tuple[str, Steps] | None:
    """A path's variable and its further elements; None: it cannot be set."""
    parts = _PATH.fullmatch(path)
    if parts is None or is_own(path):
        return None
    name, way, keys = parts.groups()
    steps = [(x[2] or x[1], x[2] is None) for x in _STEP.finditer(way)]
    return name, [*steps, *((x, True) for x in (() if keys is None else keys.split("][")))]


class FrameVariables:
    """One frame's variables, and the objects and collections below them."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self.known = names_of(frame)  # once, because before Python 3.13 each access makes a copy
        self._is_changed = False

    def find(self, path: str) -> tuple[dict[Any, Any], str] | None:
        """The dict that has, or can get, the value at ``path``, and its key; None: none can."""
        found = _steps_of(path)
        if found is None:
            return None
        name, steps = found
        if not steps:
            return self.known, name
        key, is_key = steps[-1]
        inner = _inside(self._walk(name, steps[:-1]), is_key)
        return None if inner is None else (inner, key)

    def _walk(self, name: str, steps: Steps) -> Any:
        value = self.known.get(name, _ABSENT)
        for step, is_key in steps:
            inner = None if is_key else _inside(value, False)
            value = _item(value, step) if is_key else (inner or {}).get(step, _ABSENT)
        return value

    def value(self, path: str) -> Any:
        """The value at ``path``; None: there is none."""
        found = self.find(path)
        return None if found is None else found[0].get(found[1])

    def make(self, path: str, class_name: str) -> bool:
        """Make an object without attributes at ``path``.

        False: there is one already, or it cannot be made.
        """
        found = _steps_of(path)
        kind = _class_named(class_name)
        if found is None or kind is None:
            return False
        name, steps = found
        is_item = bool(steps) and steps[-1][1]
        if is_item:
            holder, key = self._walk(name, steps[:-1]), steps[-1][0]
            is_next = type(holder) is list and key == str(len(holder))
            may_be = is_next or type(holder) in DICTS
            if not may_be or _item(holder, key) is not _ABSENT:
                return False
        elif (known := self.find(path)) is None or known[0].get(known[1]) is not None:
            return False
        try:
            made: Any = object.__new__(kind)
        except TypeError:
            return False
        if not is_item and known is not None:
            self.put(*known, made)
        elif is_next:
            holder.append(made)
        else:
            holder[_key(key)] = made
        return True

    def put(self, holder: dict[Any, Any], key: str, value: Any) -> None:
        holder[key] = value
        self._is_changed |= holder is self.known

    def close(self) -> None:
        """Write changed variables into the frame of a function, if ``f_locals`` is a copy (before
        Python 3.13). For a module's frame this would write the local variables of comprehensions,
        which would hide global names."""
        real = getattr(self._frame, "frame", self._frame)  # a generator's frame is wrapped
        is_copy = self._frame.f_code.co_flags & CO_OPTIMIZED and sys.version_info < (3, 13)
        if self._is_changed and isinstance(real, FrameType) and is_copy:
            frame, clear = ctypes.py_object(real), ctypes.c_int(0)
            ctypes.pythonapi.PyFrame_LocalsToFast(frame, clear)


def _item(value: Any, key: str) -> Any:
    """The item of a collection. A defaultdict makes a missing item, if its factory is a class of
    the script."""
    if isinstance(value, (list, tuple, deque)):
        return value[int(key)] if key.isdecimal() and int(key) < len(value) else _ABSENT
    if base_of(type(value)) not in DICTS:
        return _ABSENT
    inner = _key(key)
    if inner not in value and type(value) is defaultdict:
        factory = value.default_factory
        if isinstance(factory, type) and holds_values(factory):
            return value[inner]
    return value.get(inner, _ABSENT)


def _key(text: str) -> str | int:
    """A dict's key from its text in a path (walk.py)."""
    is_number = text.startswith("#") and text[1:].removeprefix("-").isdecimal()
    return int(text[1:]) if is_number else text


def _inside(value: Any, is_key: bool) -> dict[Any, Any] | None:
    """A dict of a value's items, or of its attributes; None: it has none that heal."""
    if is_key:
        base = base_of(type(value))
        if type(value) is base or base not in DICTS:
            return value if base in DICTS else None
        return Held(value, partial(base.__setitem__, value), partial(base.__delitem__, value))
    is_torchs = isinstance(value, torch.nn.Module | torch.optim.Optimizer)
    is_one = KINDS[type(value)] >= Kind.RECORD or is_torchs
    is_one = is_one or PACKAGES[type(value)]
    return attributes_of(value) if is_one else None


def _class_named(name: str) -> type | None:
    """The script's class with this name (``walk.class_name``); None: there is none."""
    module, _, path = name.partition(":")
    found = named(module, path)
    return found if isinstance(found, type) and holds_values(found) else None


def write_values(frame: FrameType, values: Values) -> list[str]:
    """Set values of a frame; returns the changes, as ``name a→b``."""
    return list(written(frame, values).values())


def written(frame: FrameType, values: Values) -> dict[str, str]:
    """The same; returns the changes by path."""
    here = FrameVariables(frame)
    each = without_gone(values).items()
    changed = {path: words for path, new in each if (words := _written(here, path, new))}
    here.close()
    return changed


def settable(frame: FrameType, values: Values) -> Values:
    """The values without those of objects in a package's collections that this replica lacks."""
    here, end = FrameVariables(frame), f".{CLASS}"
    packages = {path for path, x in values.items() if x == "" and path.endswith(end)}
    lacking = tuple(path.removesuffix(CLASS) for path in packages if not here.find(path))
    return {
        path: x
        for path, x in values.items()
        if path not in packages and not path.startswith(lacking)
    }


def is_removed(path: str, dicts: Mapping[str, Any]) -> bool:
    """Whether the script has removed a key on the way to ``path``. ``dicts``: by path."""
    keys = ((path[: x.start()], x[1]) for x in _KEY.finditer(path))
    return any(way in dicts and _key(key) not in dicts[way] for way, key in keys)


def without_gone(values: Values) -> Values:
    """The values without what objects under a removed key had. An object that a newcomer has under
    that key is another one."""
    return {path: x for path, x in values.items() if path[-1] == "]" or x != GONE}


def lacks(frame: FrameType, paths: Iterable[str]) -> list[str]:
    """The paths of objects that this replica lacks, so their values are not set: in collections,
    and what classes and modules have made since the first step."""
    here, found = FrameVariables(frame), set[str]()
    for path in paths:
        name, _, way = path.partition(".")
        is_kept = OF_MODULE in frame.f_code.co_name and isinstance(here.known.get(name), type)
        is_kept |= not isinstance(frame, FrameType) and name in here.known and bool(way)
        if ("]." in path or is_kept) and not here.find(path):
            found.add(path.rpartition("].")[0] + "]" if "]." in path else path.rpartition(".")[0])
    return sorted(found)


def _written(here: FrameVariables, path: str, given: Any) -> str:
    """Set one value; returns the change as a text, "" if there was none."""
    made, _, attribute = path.rpartition(".")
    if attribute == CLASS:
        return f"{made} made" if here.make(made, given) else ""
    found = here.find(path)
    if found is None:
        return ""
    holder, key = found
    value, new = holder.get(key, _ABSENT), unpacked(given)
    if given == GONE:
        if value is _ABSENT or not is_value(value):
            return ""
        del holder[key]
        return f"{path} removed"
    if value is _ABSENT:  # the script has not set it yet
        here.put(holder, key, new)
        return f"{path} →{_short(new)}"
    is_container = type(new) in CONTAINERS
    if is_container:
        is_fit = base_of(type(value)) and histories.are_alike(value, new)
        is_due = is_fit and not histories.are_equal(value, new)
    else:
        value = value.detach() if is_computed(value) else value
        is_due = (is_value(value) or is_small(value)) and not _are_equal(value, given)
    if not is_due:
        return ""
    before = _short(value)
    if is_container:
        histories.put_into(value, new)
    elif is_computed(holder[key]) and (value.shape, value.dtype) == (new.shape, new.dtype):
        holder[key].data.copy_(new)  # a later pass of this turn may need its gradients
    elif not (type(value) is count and _comes_to(value, new)):
        here.put(holder, key, new)
    return f"{path} {before}→{_short(new)}"


def _comes_to(counter: Any, there: Any) -> bool:
    """Let a counter, which several may hold, count as far as another one has."""
    (own, step), (wanted, by) = map(numbers_of, (repr(counter), repr(there)))
    turns = (wanted - own) / step if step == by else -1
    is_near = 0 <= turns <= COUNTED_MAX and own + turns * step == wanted
    deque(islice(counter, int(turns) if is_near else 0), maxlen=0)
    return is_near


def _short(value: Any) -> str:
    is_container = base_of(type(value)) is not None
    return histories.words(value) if is_container else short(value)


def _are_equal(value: Any, new: Any) -> bool:
    plain = packed(value)
    return type(plain) is type(new) and bool(plain == new)


def set_to(before: Any, value: Any, device: str, own: set[int]) -> Any:
    """Set a tensor, an array or a collection of these to ``value``, in place if possible.

    Args:
        before: the present object.
        device: for new tensors.
        own: addresses of modules' memory, which is not written to because modules heal separately.

    Returns:
        ``before`` with the value; or another object, if ``before`` cannot take the value.
    """
    if type(value) is dict:
        if type(before) not in DICTS:
            before = {}
        for key, item in value.items():
            before[key] = set_to(before.get(key), item, device, own)
        return before
    if type(value) in (list, tuple):
        olds = before if type(before) is type(value) and len(before) == len(value) else ()
        news = [
            set_to(olds[index] if olds else None, item, device, own)
            for index, item in enumerate(value)
        ]
        if type(before) is list:
            before[:] = news
            return before
        is_same = bool(olds) and all(old is new for old, new in zip(olds, news, strict=True))
        return before if is_same else type(value)(news)
    if isinstance(value, torch.Tensor):
        return _set_tensor(before, value, device, own)
    if hasattr(value, "dtype") and hasattr(value, "__setitem__"):  # no number of numpy's
        is_alike = type(before) is type(value) and before.shape == value.shape
        if is_alike and before.dtype == value.dtype and before.base is None:
            before[...] = value
            return before
    return value


def _set_tensor(before: Any, value: torch.Tensor, device: str, own: set[int]) -> torch.Tensor:
    is_alike = type(before) is type(value) or is_parameter(type(before))
    if is_alike and before.shape == value.shape:
        into, (here, there) = part(before), (getattr(x, "_spec", None) for x in (before, value))
        is_whole = here == there and into.untyped_storage().nbytes() == into.nbytes
        if before.dtype == value.dtype and is_whole and memory(before) not in own:
            if not _is_equal(into, part(value)):
                with torch.no_grad():
                    into.copy_(part(value))
            return cast(torch.Tensor, before)
        return value.to(before.device)
    return value.clone() if device == "cpu" else value.to(device)


def _is_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether nothing has to be written: autograd may have kept the tensor, such as a window of an
    FFT, for a backward pass, and would refuse that once it was written to."""
    try:
        return torch.equal(tensor, other.to(tensor.device))
    except (RuntimeError, NotImplementedError):  # of a type that nobody compares
        return False
