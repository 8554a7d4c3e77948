"""The script's frames on the stack: where it stands, and the plain values that it counts with.

A frame is the script's if its code is neither ftrun's, the standard library's nor an installed
package's. Some packages run the training loop for the script: their frames count too, without line
numbers, because one loop of theirs asks for batches at several lines.

Not here: which values heal (changes.py), containers (histories.py), setting them (writing.py).
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import lru_cache
from inspect import CO_OPTIMIZED
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

from ftrun.inject.zero_edit import single
from ftrun.inject.zero_edit.single import is_number, is_tensor

LOOP_PACKAGES = (
    "/transformers/",
    "/accelerate/",
    "/lightning/pytorch/loops/",
    "/pytorch_lightning/loops/",
    "/lightning/fabric/wrappers.py",
    "/lightning_fabric/wrappers.py",
)
INSTALLED = ("/site-packages/", "/dist-packages/")
"""Also of another environment than this interpreter's own."""
PLAIN = (int, float, bool, str, type(None))
DICTS = (dict, defaultdict, OrderedDict, Counter)
CONTAINERS = frozenset({list, deque, set, *DICTS})
"""What a script collects values in."""
DEPTH_MAX = 64
NAMES_MAX = 512
DICT_MAX = 64
TEXT_CHARS_MAX = 1024
OBJECTS_DEEP = 2
TYPES_MAX = 4096
NESTED_MAX = 8

_TEXT = {str}
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
    """A frame's place: ``file:function``, and the line (0 in a loop's package).

    ``column``: of the call from there, of frames that are not the innermost one: a function may be
    called twice in one line.
    """

    name: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.name.partition(':')[0]}:{self.line}" if self.line else self.name


NOWHERE = Spot("?", 0)
"""A place that no frame of the script's has."""


@lru_cache(maxsize=65_536)
def _name(code: CodeType) -> tuple[str, bool]:
    name = f"{Path(code.co_filename).name}:{code.co_name}"
    return name, is_loop_package(code.co_filename)


def spot_of(frame: FrameType) -> Spot:
    """The place of one frame."""
    return spot_at(frame.f_code, frame.f_lineno)


def spot_at(code: CodeType, line: int) -> Spot:
    """The place of a line of a function."""
    name, is_package = _name(code)
    return Spot(name, 0 if is_package else line)


@lru_cache(maxsize=65_536)
def _column(code: CodeType, instruction: int) -> int:
    if not hasattr(code, "co_positions"):  # before Python 3.11
        return 0
    _, _, column, _ = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    return column or 0


def spots_of(frames: Sequence[FrameType]) -> tuple[Spot, ...]:
    """The places of the frames on a stack, innermost first."""
    found = []
    for index, frame in enumerate(frames):
        name, is_package = _name(frame.f_code)
        column = _column(frame.f_code, frame.f_lasti) if index and not is_package else 0
        found.append(Spot(name, 0 if is_package else frame.f_lineno, column))
    return tuple(found)


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
    return spots_of(script_frames())


def call_site() -> str:
    """``file:line`` of the script's innermost frame; for messages."""
    for frame in script_frames():
        if not is_loop_package(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return "the script"


@lru_cache(maxsize=65_536)
def _script_file(code: CodeType) -> str:
    """The name of the script's file that has this code; "": no file of the script's has it."""
    file = code.co_filename
    is_own = is_script(file) and not is_loop_package(file)
    return Path(file).name if is_own else ""


def near_site() -> str:
    """As ``call_site``, in a microsecond: "" if none of the innermost frames is the script's."""
    frame = near_frame()
    return "" if frame is None else f"{_script_file(frame.f_code)}:{frame.f_lineno}"


def near_frame() -> FrameType | None:
    """The innermost frame of the script's own files."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEPTH_MAX):
        if frame is None or _script_file(frame.f_code):
            return frame
        frame = frame.f_back
    return None


# ---------------------------------------------------------------- plain values

Values = dict[str, Any]


@lru_cache(maxsize=4096)
def holds_values(kind: Any) -> bool:
    """Whether objects of this class are the script's own, and may hold counters.

    An installed class is so too if its base runs the loop: a package's own Trainer.
    """
    if not _script_file_of(kind):
        return False
    torch = sys.modules.get("torch")
    has_own_rules = issubclass(kind, Enum | type) or (torch and issubclass(kind, torch.nn.Module))
    return not has_own_rules


@lru_cache(maxsize=4096)
def _is_of_loop_package(kind: Any) -> bool:
    """Whether a package that runs training loops has this class: its containers are its own."""
    return is_loop_package(_script_file_of(kind))


def _script_file_of(kind: type) -> str:
    """The file of a class, or of its nearest base, that is the script's or runs the loop for it."""
    for one in kind.__mro__:
        file = getattr(sys.modules.get(one.__module__), "__file__", None)
        if isinstance(file, str) and is_script(file):
            return file
    return ""


class _Kind(Enum):
    """The kinds of variables by the type of their values, as a search for counters needs them."""

    PLAIN = "plain"
    NUMBER = "number"
    TENSOR = "tensor"
    INSIDE = "inside"
    CONTAINER = "container"
    TUPLE = "tuple"
    ENUM = "enum"
    NOTHING = "nothing"


class _Kinds(dict[type, _Kind]):
    """The kind of each type that was met."""

    def __missing__(self, kind: type) -> _Kind:
        if kind in PLAIN:
            found = _Kind.PLAIN
        elif is_number(cast(Hashable, kind)):
            found = _Kind.NUMBER
        elif is_tensor(cast(Hashable, kind)):
            found = _Kind.TENSOR
        elif kind is tuple:
            found = _Kind.TUPLE
        elif issubclass(kind, Enum):
            found = _Kind.ENUM
        elif kind in CONTAINERS and kind not in DICTS:
            found = _Kind.CONTAINER
        else:
            is_holder = kind in DICTS or holds_values(cast(Hashable, kind))
            found = _Kind.INSIDE if is_holder else _Kind.NOTHING
        if len(self) < TYPES_MAX:
            self[kind] = found
        return found


_KINDS = _Kinds()
_PLAIN, _NUMBER, _CONTAINER = _Kind.PLAIN, _Kind.NUMBER, _Kind.CONTAINER
_TENSOR, _TUPLE, _ENUM, _NOTHING = _Kind.TENSOR, _Kind.TUPLE, _Kind.ENUM, _Kind.NOTHING
_VALUES = (_PLAIN, _NUMBER, _TENSOR, _TUPLE, _ENUM)


@lru_cache(maxsize=65_536)
def is_own(name: str) -> bool:
    """Whether a variable of this name belongs to one rank, as ``is_world_process_zero`` does."""
    return _OWN.search(name) is not None


class _Names(dict[str, bool]):
    """Whether a variable of each name is left out: Python's own, and those of one rank."""

    def __missing__(self, name: str) -> bool:
        is_left_out = name.startswith("__") or is_own(name)
        if len(self) < TYPES_MAX:
            self[name] = is_left_out
        return is_left_out


_LEFT_OUT = _Names()


def is_plain(value: Any) -> bool:
    """Whether a value may be a counter."""
    kind = type(value)
    if kind is str:
        return len(value) <= TEXT_CHARS_MAX
    return kind in PLAIN or is_number(cast(Hashable, kind))


def plain_values(values: dict[str, Any]) -> Values:
    """The plain values among an object's attributes that do not belong to one rank."""
    return {
        name: as_plain(value)
        for name, value in values.items()
        if is_plain(value) and not is_own(name)
    }


def is_value(value: Any) -> bool:
    """Whether a variable's value may be a counter: also a tensor that is a single number, and a
    short tuple of such values."""
    kind = _KINDS[type(value)]
    if kind is _TUPLE:
        return 0 < len(value) <= single.TUPLE_MAX and all(_is_part(x) for x in value)
    return is_plain(value) or kind is _ENUM or (kind is _TENSOR and single.is_single(value))


def _is_part(value: Any) -> bool:
    return type(value) is not tuple and is_value(value)


def as_plain(value: Any) -> Any:
    """A counter's value, as JSON has it."""
    if type(value) in PLAIN:
        return value
    kind = _KINDS[type(value)]
    if kind is _TUPLE:
        return single.packed_tuple([as_plain(x) for x in value])
    if kind is _ENUM:
        return single.packed_enum(value)
    return single.packed(value) if kind is _TENSOR else value.item()


def inside(name: str, value: Any) -> Iterator[tuple[str, dict[Any, Any], Any, Any]]:
    """Path, holder, key and value of what a dict, or an object of the script's, has of interest.

    That is plain values and containers. A dict whose keys are other than texts, or that is large,
    is one container. Objects are read two deep; records in records are one object, because
    Lightning keeps its counters so.
    """
    if type(value) in DICTS:
        yield from _items(name, value)
    elif holds_values(cast(Hashable, type(value))) and hasattr(value, "__dict__"):
        yield from _attributes(name, value)


def is_table(values: dict[Any, Any]) -> bool:
    """Whether a dict is a container of its own, because its keys name no values."""
    return len(values) > DICT_MAX or not set(map(type, list(values))) <= _TEXT


def _items(name: str, values: dict[Any, Any]) -> Iterator[tuple[str, dict[Any, Any], Any, Any]]:
    if len(values) <= DICT_MAX:
        for key, item in list(values.items()):  # another thread of the script may add to it
            if type(key) is str and (is_value(item) or type(item) in CONTAINERS):
                plain = item if type(item) in CONTAINERS else as_plain(item)
                yield f"{name}[{key}]", values, key, plain


def _attributes(
    name: str, holder: Any, objects: int = OBJECTS_DEEP, nested: int = NESTED_MAX
) -> Iterator[tuple[str, dict[Any, Any], Any, Any]]:
    for key, item in list(vars(holder).items()):
        kind = _KINDS[type(item)]
        if kind in _VALUES:
            if is_value(item):
                yield f"{name}.{key}", vars(holder), key, as_plain(item)
        elif type(item) in CONTAINERS:
            if not _is_of_loop_package(cast(Hashable, type(holder))):
                yield f"{name}.{key}", vars(holder), key, item
        elif kind is _Kind.INSIDE and item is not holder and hasattr(item, "__dict__"):
            left = objects - (not is_dataclass(item))
            if left and nested:
                yield from _attributes(f"{name}.{key}", item, left, nested - 1)


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's variables, by which nothing lives longer than the copy.

    Before Python 3.13 ``f_locals`` of a function is a dict that the frame keeps until it is read
    again: a result of the model would be held for a step longer than the script holds it. So it
    is emptied, unless the script has got it from ``locals()``.
    """
    found = frame.f_locals
    copied = dict(found)  # another thread may set the script's global names
    is_snapshot = frame.f_code.co_flags & CO_OPTIMIZED and sys.version_info < (3, 13)
    if is_snapshot and sys.getrefcount(found) <= _HELD_BY_THE_FRAME:
        found.clear()
    return copied


def _held_by_the_frame() -> int:
    found = sys._getframe().f_locals
    return sys.getrefcount(found)


_HELD_BY_THE_FRAME = _held_by_the_frame()


def read_values(
    frame: FrameType,
    containers: dict[str, Any] | None = None,
    variables: dict[str, Any] | None = None,
) -> Values:
    """The plain values that a frame reaches, by path. It runs at every draw.

    ``containers``: gets the containers that it reaches, in the same way. ``variables``: a copy of
    the frame's, if there is one already.
    """
    found: Values = {}
    is_package = containers is None or is_loop_package(frame.f_code.co_filename)
    kept: dict[str, Any] = {} if is_package else cast("dict[str, Any]", containers)
    known = variables_of(frame) if variables is None else variables
    kinds = map(_KINDS.__getitem__, map(type, known.values()))
    for (name, value), kind in zip(known.items(), kinds, strict=True):
        if kind is _NOTHING or _LEFT_OUT[name]:
            continue
        if kind is _PLAIN:
            if type(value) is not str or len(value) <= TEXT_CHARS_MAX:
                found[name] = value
        elif kind is _CONTAINER:
            kept[name] = value
        elif kind is _NUMBER:
            found[name] = value.item()
        elif kind is _TENSOR:
            if single.is_single(value):
                found[name] = single.packed(value)
        elif kind is _TUPLE or kind is _ENUM:
            if is_value(value):
                found[name] = as_plain(value)
        else:
            read_inside(name, value, found, kept)
        if len(found) >= NAMES_MAX or len(kept) >= NAMES_MAX:
            break
    return found


def read_inside(name: str, value: Any, found: Values, kept: dict[str, Any]) -> None:
    """Add the plain values and the containers of a dict, or of an object of the script's."""
    if type(value) in DICTS and is_table(value):
        kept[name] = value
    for path, _, _, item in inside(name, value):
        if is_own(path):
            continue
        if not _is_container(item):
            found[path] = item
        elif type(item) not in DICTS or is_table(item):
            kept[path] = item
        else:
            for inner, _, _, value_in in _items(path, item):
                (kept if _is_container(value_in) else found)[inner] = value_in


def _is_container(item: Any) -> bool:
    return type(item) in CONTAINERS and not single.is_packed(item)


def short(value: Any) -> str:
    """A value, for people."""
    text = repr(single.unpacked(value))
    return text if len(text) <= 40 else text[:37] + "..."
