"""The kinds of objects that a script's variables, attributes and items have.

Plain values are Python's numbers, texts, flags and None. Numbers of numpy, tensors that are one
number, enum members and tuples of these are plain values too. A newcomer gets a new tensor, because
the one that it holds may be a part of another one. A tensor on another device is not read: the
training thread would wait for that device in each step. Nor is a DTensor, which is a tensor of any
size: all ranks would have to call. A tuple is one value, because nobody can change a part of it:
``best = (score, epoch)``.

All values travel in one form, which JSON has (``packed``): a number of numpy as Python's, and what
JSON does not have as its kind with its parts.

Names that say ``rank`` or ``device`` belong to each replica, whatever their value.

Not here: where values are found (walk.py), copies of containers (histories.py).
"""

from __future__ import annotations

import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from itertools import count
from pathlib import Path, PurePath
from typing import Any

from ftrun.inject.zero_edit.frames import (
    INSTALLED,
    OF_RANK,
    Values,
    is_loop_package,
    is_script,
)
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.generators import is_generator
from ftrun.inject.zero_edit.values.holders import file_of, is_cell, is_holder
from ftrun.inject.zero_edit.values.limits import Remembered, remembered

LIFE_DIGITS = 6
"""A time of the day has as many."""
_NUMBER = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}|\d+")
"""Also a UUID."""

PLAIN = (int, float, bool, str, type(None))
DICTS = (dict, defaultdict, OrderedDict, Counter)
CONTAINERS = frozenset({list, deque, set, bytearray, *DICTS})
"""What a script collects values in."""
Packed = dict[str, Any]
"""A value that JSON does not have: its kind, and its parts."""
GONE: Packed = {"kind": "gone", "values": []}
"""In place of the value of a dict's key that the script has removed."""
_MADE_OF: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "deque": deque,
    "set": set,
    "dict": dict,
    "tuple": tuple,
    "bytearray": bytearray,
}
"""What is made of the parts, by its kind."""
_NAMES: Mapping[type, str] = {
    **{kind: kind.__name__ for kind in (list, deque, set, tuple, bytearray)},
    **dict.fromkeys(DICTS, "dict"),
}
_TEXTS: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: (bytes.hex, bytes.fromhex),
    complex: (repr, complex),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    Decimal: (str, Decimal),
    Fraction: (str, Fraction),
    count: (repr, lambda text: count(*numbers_of(text))),
}
"""Values that JSON has as text: how that is made, and read."""
_BY_NAME = {kind.__name__: read for kind, (_, read) in _TEXTS.items()}
_OTHERS = ("torch", "numpy", "ftrun")
_OF_PROCESS = "hostname|^pid$"
_OF_RANK = f"{OF_RANK}|device|{_OF_PROCESS}"


class Kind:
    """The kinds of values, as numbers: an enumeration costs a walk a tenth more. From ``LIST`` on,
    a walk may look inside.

    ``OTHER``: a value that JSON does not have; ``GENERATOR``: of random numbers; ``BAG``: a deque,
    a set or bytes; ``RECORD``: a dataclass of the script's, which is no level of its own;
    ``OBJECT``: another object of the script's; ``LINK``: what is none, and holds values all the
    same (holders.py).
    """

    NOTHING, PLAIN, TEXT, NUMBER, TENSOR, ARRAY, OTHER, GENERATOR, BAG = range(9)
    LIST, TUPLE, DICT, RECORD, OBJECT, LINK = range(9, 15)


def _kind_of(kind: type) -> int:
    numpy = sys.modules.get("numpy") if kind.__module__ == "numpy" else None
    if numpy is not None and issubclass(kind, (numpy.number, numpy.bool_)):
        lacking = numpy.complexfloating, numpy.timedelta64, numpy.longdouble  # JSON has none
        return Kind.NOTHING if issubclass(kind, lacking) else Kind.NUMBER
    if numpy is not None and kind is numpy.ndarray:
        return Kind.ARRAY
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        return Kind.TENSOR
    if is_sharded(kind) or is_parameter(kind):
        return Kind.TENSOR
    if issubclass(kind, (Enum, PurePath)) or kind in _TEXTS:
        return Kind.OTHER
    if is_named(kind):
        return Kind.TUPLE
    if is_generator(kind):
        return Kind.GENERATOR
    if is_cell(kind):
        return Kind.OBJECT
    if is_holder(kind):
        return Kind.LINK
    if not holds_values(kind):
        return Kind.NOTHING
    return Kind.RECORD if is_dataclass(kind) else Kind.OBJECT


_SIMPLE: dict[Any, int] = {
    **dict.fromkeys(PLAIN, Kind.PLAIN),
    **dict.fromkeys(DICTS, Kind.DICT),
    **dict.fromkeys((deque, set, bytearray), Kind.BAG),
    **{str: Kind.TEXT, list: Kind.LIST, tuple: Kind.TUPLE},
}
KINDS: Remembered[type, int] = Remembered(_kind_of, _SIMPLE)
"""The kind of each type."""


def is_sharded(kind: type) -> bool:
    """Whether this is DTensor: to import it takes half a second."""
    return kind is getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_parameter(kind: type) -> bool:
    """Whether this is torch's Parameter: a script may keep copies of a module's, as an average."""
    return kind is getattr(sys.modules.get("torch.nn"), "Parameter", None)


class _Own:
    """The names of what belongs to one worker: of its rank, or of its process alone."""

    names = re.compile(_OF_RANK)


def has_its_rank() -> None:
    """What replaces this worker has its rank: only what is of this process does not heal."""
    _Own.names = re.compile(_OF_PROCESS)
    is_own.cache_clear()
    LEFT_OUT.clear()


@lru_cache(maxsize=65_536)
def is_of_rank(name: str) -> bool:
    """Whether a variable of this name, or what a path leads to, belongs to one rank: no peer gives
    it, also if its own successor ``has_its_rank``."""
    return re.search(_OF_RANK, name) is not None


@lru_cache(maxsize=65_536)
def is_own(name: str) -> bool:
    """Whether a variable of this name belongs to one rank, as ``is_world_process_zero`` does."""
    return _Own.names.search(name) is not None


LEFT_OUT: Remembered[str, bool] = Remembered(lambda x: x.startswith("__") or is_own(x), {})
"""Whether a variable of each name is left out: Python's own, and those of one rank."""


@remembered
def holds_values(kind: Any) -> bool:
    """Whether objects of this class are the script's own, and may hold values.

    An installed class is so too if its base runs the loop: a package's own Trainer.
    """
    if not _script_file_of(kind):
        return False
    torch = sys.modules.get("torch")
    has_own_rules = issubclass(kind, Enum | type) or (torch and issubclass(kind, torch.nn.Module))
    return not has_own_rules


@remembered
def base_of(kind: Any) -> Any:
    """The container of Python's own that objects of a class are, also of a class of the script's;
    None: they are none."""
    if kind in CONTAINERS:
        return kind
    return next((x for x in kind.__mro__ if x in CONTAINERS), None) if holds_values(kind) else None


@remembered
def is_named(kind: Any) -> bool:
    """Whether this is a named tuple's class, which a newcomer finds by its name."""
    is_one = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return is_one and named(kind.__module__, kind.__qualname__) is kind


@remembered
def is_of_loop_package(kind: Any) -> bool:
    """Whether a package that runs training loops has this class: its containers are its own."""
    return is_loop_package(_script_file_of(kind))


@remembered
def is_data(kind: Any) -> bool:
    """Whether objects of this class give samples: their tensors are data."""
    data: Any = sys.modules["torch"].utils.data
    return issubclass(kind, (data.Dataset, data.Sampler))


@remembered
def is_read_again(kind: Any) -> bool:
    """Whether objects of this class give samples one after another: who comes to a place in them
    reads all before it, and what they collect on the way is there then."""
    data: Any = sys.modules["torch"].utils.data
    return issubclass(kind, data.IterableDataset)


def _is_of_package(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if not any(x in file for x in INSTALLED) or kind.__module__.partition(".")[0] in _OTHERS:
        return False
    return not issubclass(kind, Enum | type | sys.modules["torch"].nn.Module)


PACKAGES: Remembered[type, bool] = Remembered(_is_of_package, {})
"""Whether an installed package has each class, which may keep tensors for the script: torch's own
classes, and modules, are looked after elsewhere."""


def _script_file_of(kind: type) -> str:
    """The file of a class, or of its nearest base, that is the script's or runs the loop for it."""
    return next((file for one in kind.__mro__ if is_script(file := file_of(one))), "")


def is_name(key: Any) -> bool:
    """Whether a dict's key can be a part of a path; ``#3`` is the number 3."""
    return type(key) is str and key != "" and key[0] != "#" and not {"[", "]"} & set(key)


def is_table(values: dict[Any, Any]) -> bool:
    """Whether a dict is one value, because its keys name no values, or too many."""
    return len(values) > limits.ITEMS or not set(map(type, list(values))) <= {str}


def is_plain(value: Any) -> bool:
    """Whether a value is Python's own or a number of numpy's."""
    kind = KINDS[type(value)]
    if kind is Kind.TEXT:
        return len(value) <= limits.TEXT_CHARS
    return kind is Kind.PLAIN or kind is Kind.NUMBER


def is_value(value: Any) -> bool:
    """Whether this is a plain value: also a tensor that is one number, an enum's member, and a
    short tuple of such values."""
    kind = KINDS[type(value)]
    if kind is Kind.TUPLE:
        parts = 0 < len(value) <= limits.TUPLE
        return parts and all(type(x) is not tuple and is_value(x) for x in value)
    if kind is Kind.OTHER:
        return type(value) is not bytes or len(value) <= limits.TEXT_CHARS
    return is_plain(value) or (kind is Kind.TENSOR and is_single(value))


def is_single(tensor: Any) -> bool:
    """Whether a tensor is a single number that may be a counter."""
    if tensor.dim() or tensor.requires_grad or tensor.is_complex():
        return False
    if is_sharded(type(tensor)) or is_parameter(type(tensor)):
        return False
    return tensor.device.type == "cpu" and not tensor.is_quantized


def is_computed(value: Any) -> bool:
    """Whether this is a tensor that was computed with gradients."""
    is_tensor = type(value) is sys.modules["torch"].Tensor
    return is_tensor and value.requires_grad and not value.is_leaf


def is_result(value: Any) -> bool:
    """Whether this is one number that was computed with gradients, as a loss. It is a value where
    a later turn of the loop may read it."""
    return is_computed(value) and is_single(value.detach())


def is_small(value: Any) -> bool:
    """Whether this is a tensor of this process's memory that can travel as text."""
    if type(value) is not sys.modules["torch"].Tensor or value.numel() > limits.TABLE:
        return False
    is_here = value.device.type == "cpu" and not value.is_quantized
    return is_here and not (value.requires_grad or value.is_complex())


def packed(value: Any) -> Any:
    """A plain value, a container or a small tensor as JSON has it; anything else as it is."""
    kind = KINDS[type(value)]
    if kind is Kind.NUMBER:
        return value.item()
    if kind is Kind.TENSOR and value.numel() <= limits.TABLE:
        dtype = str(value.dtype).removeprefix("torch.")
        return _packed("tensor", [dtype, list(value.shape), value.flatten().tolist()])
    if isinstance(value, Enum):
        return _packed("enum", [type(value).__module__, type(value).__qualname__, value.name])
    if type(value) in _TEXTS:
        return _packed(type(value).__name__, [_TEXTS[type(value)][0](value)])
    if kind is Kind.TUPLE and type(value) is not tuple:
        name = [type(value).__module__, type(value).__qualname__]
        return _packed("named", [*name, *map(packed, value)])
    if type(value) in _NAMES:
        return packed_values(type(value), value.items() if type(value) in DICTS else value)
    return _packed("path", [str(value)]) if isinstance(value, PurePath) else value


def packed_values(kind: type, values: Iterable[Any]) -> Packed:
    """A container of ``kind`` with these values."""
    return _packed(_NAMES[kind], [x if type(x) in PLAIN else packed(x) for x in values])


def _packed(kind: str, parts: list[Any]) -> Packed:
    return {"kind": kind, "values": parts}


def is_container(value: Any) -> bool:
    """Whether a container was packed as ``value``."""
    return type(value) is dict and value["kind"] in _MADE_OF and value["kind"] != "tuple"


def is_fraction(value: Any) -> bool:
    """Whether ``value`` is a fraction, or was packed from a tensor that is one."""
    is_tensor = type(value) is dict and value["kind"] == "tensor" and not value["values"][1]
    return type(value) is float or (is_tensor and "float" in value["values"][0])


def may_name_life(value: Any) -> bool:
    """Whether this is a text or a path with as many digits as a time, and no address."""
    text = _text_of(value)
    return len(re.findall(r"\d", text)) >= LIFE_DIGITS and "://" not in text


def is_renamed(value: Any, other: Any) -> bool:
    """Whether two texts or paths that may name lives differ in their numbers or UUIDs alone."""
    texts = _text_of(value), _text_of(other)
    return type(value) is type(other) and texts[0] != texts[1] and len({*map(form_of, texts)}) == 1


def form_of(text: str) -> str:
    """A text without its numbers and UUIDs."""
    return _NUMBER.sub("0", text)


def _text_of(value: Any) -> str:
    if type(value) is dict:
        value = value["values"][0] if value["kind"] == "path" else ""
    return value if type(value) is str and len(value) <= limits.TEXT_CHARS else ""


def is_batch(value: Any) -> bool:
    """Whether a tensor of several numbers was packed as ``value``: another one at each turn."""
    return type(value) is dict and value["kind"] == "tensor" and bool(value["values"][1])


def plain_values(values: dict[str, Any]) -> Values:
    """The plain values among an object's attributes that do not belong to one rank."""
    return {
        name: packed(value)
        for name, value in values.items()
        if is_plain(value) and not is_own(name)
    }


def unpacked(value: Any) -> Any:
    if type(value) is not dict or "kind" not in value:
        return value
    kind, parts = value["kind"], value["values"]
    if value == GONE:
        return None
    if kind == "tensor":
        torch, (dtype, shape, numbers) = sys.modules["torch"], parts
        return torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(shape)
    if kind == "enum":
        return _enum(*parts)
    if kind == "path":
        return Path(parts[0])
    if kind == "named":
        return named(*parts[:2])._make(map(unpacked, parts[2:]))
    if kind in _BY_NAME:
        return _BY_NAME[kind](parts[0])
    return _MADE_OF[kind]([unpacked(x) if type(x) is dict else x for x in parts])


def _enum(module: str, path: str, name: str) -> Any:
    found = named(module, path)
    is_enum = isinstance(found, type) and issubclass(found, Enum)
    return found[name] if is_enum and name in found.__members__ else None


def numbers_of(text: str) -> tuple[Any, Any]:
    """The next number of an ``itertools.count``, and its step, from its text."""
    parts = text.removeprefix("count(").removesuffix(")").split(", ")
    number, step = (int(x) if x.lstrip("-").isdecimal() else float(x) for x in [*parts, "1"][:2])
    return number, step


def named(module: str, path: str) -> Any:
    """The object of this qualified name; None: there is none."""
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def short(value: Any) -> str:
    """A value, for people."""
    text = repr(unpacked(value))
    return text if len(text) <= 40 else text[:37] + "..."
