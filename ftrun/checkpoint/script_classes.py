"""Objects of the script's classes in a state: enum members, named tuples, dataclasses, others.

The others are plain objects, which hold attributes and nothing else. A structure names the class of
each object, as a pickle does. But a receiver only looks the name up, in the plain namespaces of
modules that it has loaded already: nothing is imported, and no method of a class is called. A
member of an enum is looked up too; the fields of a new tuple or object are set.

Objects that would not be restored completely are refused when they are written: those of a class
that is not found under its name, with attributes besides its fields, with a ``__del__``, which
would run, or with its own rules for copies.

Not here: the values of the fields (format.py).
"""

from __future__ import annotations

import copyreg
import dataclasses
import sys
from enum import Enum
from types import ModuleType
from typing import Any, TypeAlias

from ftrun.base.errors import UserError

Fields: TypeAlias = dict[str, Any]

ENUM, NAMED_TUPLE, DATACLASS, OBJECT = "enum", "namedtuple", "dataclass", "object"
KINDS = (ENUM, NAMED_TUPLE, DATACLASS, OBJECT)
_RULES = {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__new__", "__deepcopy__"}
"""A class that has one of these decides itself what a copy of its objects holds."""


class _Plain:
    """Its objects hold attributes and nothing else."""


def kind_of(kind: type) -> str:
    """Which of the four kinds a class is; "": none."""
    if issubclass(kind, Enum):
        return ENUM
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        return NAMED_TUPLE if type(names) is tuple else ""
    if dataclasses.is_dataclass(kind):
        return DATACLASS
    has_rules = any(not _RULES.isdisjoint(vars(base)) for base in kind.__mro__[:-1])
    is_plain = kind.__dictoffset__ and kind.__basicsize__ == _Plain.__basicsize__
    return OBJECT if is_plain and not has_rules else ""


def name_of(kind: type) -> str:
    """``module:Class``, by which a receiver finds the class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def fields_of(value: Any) -> Fields:
    """The fields of a named tuple or an object, and their values, in their order."""
    if isinstance(value, tuple):
        return dict(zip(_names(type(value)), value, strict=True))
    if kind_of(type(value)) == OBJECT:
        return {**vars(value)}
    return {name: getattr(value, name) for name in _names(type(value))}


def why_not(value: Any) -> str:
    """Why an object of one of the four kinds cannot be sent; "": it can."""
    kind = type(value)
    if _find(name_of(kind)) is not kind:
        return "whose class is not found under its name (is it made within a function?)"
    if kind_of(kind) == ENUM:
        whole = kind._member_map_.get(value.name) is value
        return "" if whole else "a combination of flags"
    if hasattr(kind, "__del__"):
        return "whose class has a __del__"
    if kind_of(kind) == OBJECT:
        return "with __slots__" if copyreg._slotnames(kind) else ""  # type: ignore[attr-defined]
    more: set[str] = {*vars(value)} if hasattr(value, "__dict__") else set()
    if kind_of(kind) == NAMED_TUPLE:
        return f"with an attribute {min(more)!r} beside its fields" if more else ""
    more = (more | {*copyreg._slotnames(kind)}) - {*_names(kind)}  # type: ignore[attr-defined]
    if more:
        return f"with an attribute {min(more)!r} beside its fields"
    if not all(hasattr(value, name) for name in _names(kind)):
        return "without a value in one of its fields"
    return "" if _blank(kind) is not None else "which is a container or a tensor, too"


def member(name: str, of: str) -> Any:
    """The member ``of`` of the enum ``name``.

    Raises:
        UserError: this process has no such member.
    """
    kind = _class(ENUM, name)
    found = kind._member_map_.get(of)
    if found is None:
        raise UserError(f"the state holds {of!r} of {_shown(name)}, which is no member of it here")
    return found


def make(kind: str, name: str, fields: Fields) -> Any:
    """A named tuple or dataclass of the class ``name``.

    Raises:
        UserError: this process has no such class, or one with other fields.
    """
    found = _class(kind, name)
    if [*fields] != [*_names(found)]:
        raise UserError(
            f"the state holds a {_shown(name)} with the fields {', '.join(fields)}, and here it "
            f"has {', '.join(_names(found))}: all replicas must run the same script"
        )
    if kind == NAMED_TUPLE:
        return tuple.__new__(found, fields.values())
    made = _blank(found)
    for key, value in fields.items():
        object.__setattr__(made, key, value)
    return made


def begun(name: str) -> Any:
    """A plain object of the class ``name``, without its attributes.

    Raises:
        UserError: this process has no such class.
    """
    return _blank(_class(OBJECT, name))


def _class(kind: str, name: str) -> Any:
    found = _find(name)
    if found is None or kind_of(found) != kind or hasattr(found, "__del__"):
        raise UserError(
            f"the state holds a {kind} of the class {_shown(name)}, and this process has none of "
            "that name: import it before the first step. Nothing was applied"
        )
    return found


def _shown(name: str) -> str:
    return name[:200].replace(":", ".")


def _find(name: str) -> type | None:
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        found = vars(found).get(part)  # not getattr: a module's own __getattr__ could import
    return found if isinstance(found, type) else None


def _names(kind: Any) -> tuple[str, ...]:
    if issubclass(kind, tuple):
        return tuple(kind._fields)
    return tuple(field.name for field in dataclasses.fields(kind))


def _blank(kind: type) -> Any:
    """An object of ``kind`` without fields; None for one that inherits from a compiled class."""
    try:
        return object.__new__(kind)
    except TypeError:
        return None
