"""The script's frames on the stack: where it stands, and the plain values that it counts with.

A frame is the script's if its code is neither ftrun's, the standard library's nor an installed
package's. Some packages run the training loop for the script: their frames count too, without line
numbers, because one loop of theirs asks for batches at several lines.

Not here: which values heal (place.py), when they are read and set (loop.py).
"""

from __future__ import annotations

import ctypes
import re
import sys
import sysconfig
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

LOOP_PACKAGES = (
    "/transformers/",
    "/accelerate/",
    "/lightning/pytorch/loops/",
    "/pytorch_lightning/loops/",
)
INSTALLED = ("/site-packages/", "/dist-packages/")
"""Also of another environment than this interpreter's own."""
PLAIN = (int, float, bool, str, type(None))
DEPTH_MAX = 64
NAMES_MAX = 512
DICT_MAX = 64
TEXT_CHARS_MAX = 1024
OBJECTS_DEEP = 2
NESTED_MAX = 8

_OWN = re.compile(r"rank|process_zero|main_process|is_main|is_master|is_lead|hostname|^pid$|device")
_FTRUN = str(Path(__file__).resolve().parents[2])
_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
)


@lru_cache(maxsize=65_536)
def is_loop_package(file: str) -> bool:
    """Whether a package that runs training loops has this file."""
    return any(part in file for part in LOOP_PACKAGES)


@lru_cache(maxsize=65_536)
def is_script(file: str) -> bool:
    """Whether code of this file is the script's, or runs the loop for it."""
    if file.startswith("<") or file.startswith(_FTRUN):
        return False
    path = str(Path(file).resolve())
    is_library = path.startswith(_LIBRARIES) or any(part in path for part in INSTALLED)
    return not is_library or is_loop_package(path)


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A frame's place: ``file:function``, and the line (0 in a loop's package)."""

    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.name.partition(':')[0]}:{self.line}" if self.line else self.name


@lru_cache(maxsize=65_536)
def _name(code: CodeType) -> tuple[str, bool]:
    name = f"{Path(code.co_filename).name}:{code.co_name}"
    return name, is_loop_package(code.co_filename)


def spot_of(frame: FrameType) -> Spot:
    """The place of one frame."""
    name, is_package = _name(frame.f_code)
    return Spot(name, 0 if is_package else frame.f_lineno)


def script_frames() -> list[FrameType]:
    """The script's frames on this thread's stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    found: list[FrameType] = []
    while frame is not None and len(found) < DEPTH_MAX:
        if is_script(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def stack() -> tuple[Spot, ...]:
    """Where the script stands, innermost first."""
    return tuple(spot_of(frame) for frame in script_frames())


def call_site() -> str:
    """``file:line`` of the script's innermost frame; for messages."""
    for frame in script_frames():
        if not is_loop_package(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return "the script"


# ---------------------------------------------------------------- plain values

Values = dict[str, Any]


@lru_cache(maxsize=4096)
def _holds_values(kind: Any) -> bool:
    """Whether objects of this class are the script's own, and may hold counters."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not is_script(file):
        return False
    torch = sys.modules.get("torch")
    return torch is None or not issubclass(kind, torch.nn.Module)


class _Kind(Enum):
    """What may be found in a variable of one type."""

    PLAIN = "plain"
    INSIDE = "inside"
    NOTHING = "nothing"


@lru_cache(maxsize=4096)
def _kind_of(kind: Any) -> _Kind:
    if kind in PLAIN:
        return _Kind.PLAIN
    is_holder = kind is dict or _holds_values(cast(Hashable, kind))
    return _Kind.INSIDE if is_holder else _Kind.NOTHING


@lru_cache(maxsize=65_536)
def is_own(name: str) -> bool:
    """Whether a variable of this name belongs to one rank, as ``is_world_process_zero`` does."""
    return _OWN.search(name) is not None


def is_plain(value: Any) -> bool:
    """Whether a value may be a counter."""
    kind = type(value)
    return kind in PLAIN and (kind is not str or len(value) <= TEXT_CHARS_MAX)


def plain_values(values: dict[str, Any]) -> Values:
    """The plain values among an object's attributes that do not belong to one rank."""
    return {name: value for name, value in values.items() if is_plain(value) and not is_own(name)}


def heals(values: dict[Any, Any]) -> bool:
    """Whether a dict of the script has nothing but counters, so that it heals."""
    return len(values) <= DICT_MAX and all(
        type(key) is str and is_plain(item) for key, item in values.items()
    )


def _places(frame: FrameType) -> Iterator[tuple[str, dict[Any, Any] | None, Any, Any]]:
    """Path, container (None: a local variable), key and value of all plain values of a frame.

    Also values in its dicts, and in the attributes of objects of the script's classes, two deep
    (records in records are one object: Lightning keeps its counters so).
    """
    for name, value in list(frame.f_locals.items()):
        if name.startswith("__"):
            continue
        if is_plain(value):
            yield name, None, name, value
        else:
            yield from _inside(name, value)


def _inside(name: str, value: Any) -> Iterator[tuple[str, dict[Any, Any], Any, Any]]:
    """The plain values in a dict, or in an object of the script's."""
    if type(value) is dict:
        if len(value) <= DICT_MAX:
            for key, item in value.items():
                if type(key) is str and is_plain(item):
                    yield f"{name}[{key}]", value, key, item
    elif _holds_values(cast(Hashable, type(value))) and hasattr(value, "__dict__"):
        yield from _attributes(name, value)


def _attributes(
    name: str, holder: Any, objects: int = OBJECTS_DEEP, nested: int = NESTED_MAX
) -> Iterator[tuple[str, dict[Any, Any], Any, Any]]:
    """The plain values of an object, and of those in it. Records in records are one object."""
    for key, item in list(vars(holder).items()):
        if is_plain(item):
            yield f"{name}.{key}", vars(holder), key, item
        elif (
            item is not holder
            and _holds_values(cast(Hashable, type(item)))
            and hasattr(item, "__dict__")
        ):
            left = objects - (not is_dataclass(item))
            if left and nested:
                yield from _attributes(f"{name}.{key}", item, left, nested - 1)


def read_values(frame: FrameType) -> Values:
    """The plain values that a frame reaches, by path. It runs at every draw."""
    found: Values = {}
    for name, value in frame.f_locals.items():
        kind = _kind_of(cast(Hashable, type(value)))
        if kind is _Kind.NOTHING or name.startswith("__"):
            continue
        if kind is _Kind.PLAIN:
            if not is_own(name) and is_plain(value):
                found[name] = value
        else:
            found.update(
                (path, item) for path, _, _, item in _inside(name, value) if not is_own(path)
            )
        if len(found) >= NAMES_MAX:
            break
    return found


def write_values(frame: FrameType, values: Values) -> list[str]:
    """Set plain values of a frame; returns what was changed, as ``name a→b``."""
    places = list(_places(frame))
    known = frame.f_locals  # once: before Python 3.13 each access reads the frame again
    changed, is_local = [], False
    for path, container, key, value in places:
        if path not in values or (value == values[path] and type(value) is type(values[path])):
            continue
        new = values[path]
        if container is None:
            known[key] = new
            is_local = True
        else:
            container[key] = new
        changed.append(f"{path} {short(value)}→{short(new)}")
    for path in values:  # a variable that this replica has not set yet
        if path.isidentifier() and path not in known:
            known[path] = values[path]
            is_local = True
            changed.append(f"{path} →{short(values[path])}")
    if is_local:
        _write_back(frame)
    return changed


def short(value: Any) -> str:
    """A value, for people."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _write_back(frame: FrameType) -> None:
    """Before Python 3.13 ``f_locals`` of a function is a copy, which this writes into its frame."""
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
