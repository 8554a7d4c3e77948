"""The values that an object holds, by name, as a dict that also sets them.

| holder | values |
|---|---|
| an object of the script | its attributes, also those in ``__slots__`` |
| a class of the script | its namespace |
| a function of the script | its closure, its attributes, the defaults of its arguments |
| a module of the script that Python does not list | its variables |
| a partial, a method, a weak reference | the objects that it was made of |
| a namespace, a thread's local values | attributes |
| a context variable | its value |
| a number or a short array of ctypes, or shared between processes | its value, its items |

Not here: which of these count (kinds.py, walk.py).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum
from functools import partial
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import ReferenceType

from ftrun.inject.zero_edit.frames import is_loop_package, is_script, own_file
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.limits import Remembered, remembered

OPEN = frozenset(
    {
        ("types", "SimpleNamespace"),
        ("argparse", "Namespace"),
        ("_thread", "_local"),
        ("collections", "UserDict"),
        ("collections", "UserList"),
        ("collections", "ChainMap"),
        ("queue", "Queue"),
    }
)
"""Classes of Python's library, by module and name, in whose attributes a script keeps values."""
_VALUE = "value"
_NUMBER: Any = ctypes.c_int.__mro__[1]
_SHARED = "multiprocessing.sharedctypes"
_CODE = frozenset({staticmethod, classmethod, property, MemberDescriptorType, GetSetDescriptorType})
_FIXED = frozenset({int, float, bool, str, bytes, tuple, type(None), type, FunctionType})
"""Types of defaults that are left out, because such a value cannot change."""
_Put = Callable[[str, Any], None]


class Held(dict[str, Any]):
    """The values of a holder. ``put`` sets a value in the holder, and ``drop`` removes one."""

    def __init__(
        self,
        known: Mapping[str, Any],
        put: _Put = lambda name, value: None,
        drop: Callable[[str], None] = lambda name: None,
    ) -> None:
        super().__init__(known)
        self._put, self._drop = put, drop

    def __delitem__(self, name: str) -> None:
        self._drop(name)
        super().__delitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._put(name, value)
        super().__setitem__(name, value)


def attributes_of(holder: Any) -> dict[str, Any] | None:
    """The values that an object holds, by name; None: none that heal."""
    find = _FINDS.get(type(holder))
    if find is not None:
        return find(holder)
    if is_cell(type(holder)):
        return _of_cell(holder)
    if isinstance(holder, type):
        return _of_class(holder)
    slots = slots_of(type(holder))
    return _of_slots(holder, slots) if slots else getattr(holder, "__dict__", None)


def is_holder(kind: type) -> bool:
    """Whether objects of a type outside the script may hold values of the script."""
    is_open = (kind.__module__, kind.__qualname__) in OPEN
    return is_open or kind in _FINDS or issubclass(kind, type)


@remembered
def is_cell(kind: Any) -> bool:
    """Whether an object of this type is a C value, usually shared between processes."""
    return issubclass(kind, (_NUMBER, ctypes.Array)) or kind.__module__ == _SHARED


@remembered
def slots_of(kind: Any) -> Mapping[str, Any]:
    """The descriptors of a class's ``__slots__``, by name."""
    classes = [vars(one) for one in reversed(kind.__mro__) if "__slots__" in vars(one)]
    known = (pair for names in classes for pair in names.items())
    return {name: x for name, x in known if type(x) is MemberDescriptorType}


def _of_slots(holder: Any, slots: Mapping[str, Any]) -> Held:
    inner = getattr(holder, "__dict__", {})
    found = dict(inner)
    for name, slot in slots.items():
        with suppress(AttributeError):  # the attribute is not set yet
            found[name] = slot.__get__(holder)

    def put(name: str, value: Any) -> None:  # bypasses ``__setattr__``
        if name in slots:
            slots[name].__set__(holder, value)
        else:
            inner[name] = value

    return Held(found, put)


def _of_class(kind: type) -> Held | None:
    if not _is_own(kind):
        return None
    known, seen = vars(kind), _NAMES[kind]
    if seen.count != len(known):
        items = list(known.items())
        seen.names = [name for name, x in items if name[:2] != "__" and _may_change(x)]
        seen.count = len(known)
    found = {name: known[name] for name in seen.names if name in known}
    return Held(found, partial(type.__setattr__, kind))


class _Seen:
    """The names in a class that may change, when it had ``count`` names."""

    def __init__(self, _: type) -> None:
        self.count, self.names = -1, list[str]()


_NAMES: Remembered[type, _Seen] = Remembered(_Seen, {})


def _may_change(value: Any) -> bool:
    return bool(_of_function(value)) if type(value) is FunctionType else type(value) not in _CODE


@remembered
def _is_own(kind: Any) -> bool:
    """Whether a class is defined in a file of the script, and is no enumeration."""
    file = file_of(kind)
    return is_script(file) and not is_loop_package(file) and not issubclass(kind, Enum)


def file_of(kind: type) -> str:
    """The file that defines a class, also one whose module Python does not list, or lists an object
    in its place; "<none>": it has none."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if not isinstance(file, str):
        codes = (x.__code__ for x in list(vars(kind).values()) if type(x) is FunctionType)
        file = next((x.co_filename for x in codes if x.co_filename[:1] != "<"), None)
    return file if isinstance(file, str) else "<none>"


def _of_function(function: FunctionType) -> Held | None:
    code, defaults = function.__code__, function.__defaults__ or ()
    if not is_script(code.co_filename):
        return None
    names = zip(code.co_freevars, function.__closure__ or (), strict=True)
    cells = {name: cell for name, cell in names if name != "__class__"}
    given = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    by_name = (function.__kwdefaults__ or {}).items()
    every = (*zip(given, defaults, strict=True), *by_name)
    own = function.__dict__
    found = {name: x for name, x in every if type(x) not in _FIXED} | own
    for name, cell in cells.items():
        with suppress(ValueError):  # the variable is not set yet
            found[name] = cell.cell_contents

    def put(name: str, value: Any) -> None:
        if name in cells:  # if not, another function of this name had the variable
            cells[name].cell_contents = value
        elif name not in code.co_varnames + code.co_freevars:
            own[name] = value

    return Held(found, put)


def _of_cell(cell: Any) -> Held | None:
    # Without its lock, because a process may have died while it held the lock.
    memory = cell.get_obj() if type(cell).__module__ == _SHARED else cell
    if isinstance(memory, _NUMBER):
        return Held({_VALUE: memory.value}, partial(setattr, memory))
    if not isinstance(memory, ctypes.Array) or len(memory) > limits.ITEMS:
        return None

    def put(name: str, value: Any) -> None:
        memory[int(name)] = value

    return Held({str(number): item for number, item in enumerate(memory)}, put)


def _of_context(variable: ContextVar[Any]) -> Held:
    found = {}
    with suppress(LookupError):
        found[_VALUE] = variable.get()

    def put(_: str, value: Any) -> None:
        variable.set(value)

    return Held(found, put)


def _of_module(module: ModuleType) -> Held | None:
    known = ModuleType.__getattribute__(module, "__dict__")
    if sys.modules.get(known.get("__name__", "")) is module or not own_file(module):
        return None  # it has a frame of its own, or is a package's
    return Held(known, known.__setitem__)


_FINDS: Mapping[type, Callable[[Any], Held | None]] = {
    ModuleType: _of_module,
    FunctionType: _of_function,
    MethodType: lambda x: Held({"self": x.__self__, "function": x.__func__}),
    partial: lambda x: Held({"func": x.func, "args": x.args, "keywords": x.keywords}),
    ReferenceType: lambda x: Held({_VALUE: x()}),
    ContextVar: _of_context,
}
