"""Counters in objects that a list, a tuple or a dict of the script's holds.

``callbacks=[EarlyStopping()]``, ``meters["loss"].count``, ``envs[3].episode``: objects are known
by the way that leads to them, as ``self.callbacks[0].best``. A collection in a variable may be a
batch, which is another one at the next draw, so it counts from the second draw on at which it is
there; one that was there before the first step, or in an object's attribute, counts at once.

A newcomer may lack an object that its peers have made in the loop, as a meter at the first loss of
an epoch. So the values of an object that has nothing but what heals begin with its class, and a
newcomer makes it from these (writing.py).

Not here: objects that variables and attributes name (frames.py), tensors (units.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, cast

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import (
    DICTS,
    TYPES_MAX,
    Values,
    holds_values,
    is_own,
    is_table,
    is_value,
    read_inside,
)
from ftrun.inject.zero_edit.values import histories

COLLECTIONS = frozenset({list, tuple, *DICTS})
OBJECTS_MAX = 64
"""In one collection; of a longer one nothing heals."""
VALUES_MAX = 512
VISITS_MAX = 512
DEEP = 3
TRACKED_MAX = 512
CLASS = "__class__"
_MADE_IN_PLACE = (list, set)
"""Containers that a newcomer may make, apart from a dict that is one value. A deque may have a
length, and another dict a factory, which are not known."""


class _Leads(dict[type, bool]):
    """Whether a value of each type that was met may lead to objects."""

    def __missing__(self, kind: type) -> bool:
        found = kind in COLLECTIONS or holds_values(cast(Hashable, kind))
        if len(self) < TYPES_MAX:
            self[kind] = found
        return found


_LEADS = _Leads()


@dataclass(frozen=True, slots=True)
class _Seen:
    """A collection in a variable. ``first``: an object in it; ``step``: when it was seen first."""

    identity: int
    first: weakref.ref[Any] | None
    step: int


@dataclass(slots=True)
class _Search:
    """One look at one frame. ``met``: the ids of objects that were read; ``above``: of those whose
    attributes were looked through."""

    found: Values
    kept: dict[str, Any]
    met: set[int] = field(default_factory=set)
    above: set[int] = field(default_factory=set)
    visits: int = 0


class Held:
    """The objects that one replica's collections hold. For the main thread."""

    def __init__(self) -> None:
        self._has_begun = self._is_off = False
        self._seen: dict[tuple[str, str], _Seen] = {}

    def begin(self) -> None:
        """The first step begins: what is there now, was there before it."""
        self._has_begun = True

    def read(
        self,
        function: str,
        variables: Mapping[str, Any],
        step: int,
        found: Values,
        kept: dict[str, Any],
    ) -> None:
        """Add plain values to ``found`` and containers to ``kept``, by path. At every draw.

        Args:
            function: of the frame that has the variables.
            step: how many are committed.
        """
        if self._is_off:
            return
        try:
            self._read(function, variables, step, found, kept)
        except Exception as error:  # noqa: BLE001 - an object of the script's may do anything
            self._is_off = True
            told.say(
                "counters in objects that lists, tuples and dicts hold are not carried, because "
                f"looking for them failed: {type(error).__name__}: {error}"
            )

    def _read(
        self,
        function: str,
        variables: Mapping[str, Any],
        step: int,
        found: Values,
        kept: dict[str, Any],
    ) -> None:
        leads = map(_LEADS.__getitem__, map(type, variables.values()))
        some = [(n, x) for n, x in compress(variables.items(), leads) if not n.startswith("__")]
        search = _Search(found, kept)
        for name, value in some:
            if type(value) not in COLLECTIONS:
                search.above.add(id(value))
                self._look_into(search, name, value, DEEP)
            elif self._stays(function, name, value, step):
                self._look_at_items(search, name, value, DEEP)

    def _stays(self, function: str, name: str, value: Any, step: int) -> bool:
        """Whether a collection in a variable is no batch."""
        first = next((x for _, x in _items(value) if type(x) not in COLLECTIONS), None)
        key, before = (function, name), self._seen.get((function, name))
        is_same = (
            before is not None and before.identity == id(value) and _is_at(before.first, first)
        )
        if not is_same:
            if key in self._seen or len(self._seen) < TRACKED_MAX:
                self._seen[key] = _Seen(id(value), _reference(first), step)
            return not self._has_begun
        if before is not None and before.first is None and first is not None:
            self._seen[key] = _Seen(before.identity, _reference(first), before.step)
        return not self._has_begun or (before is not None and before.step < step)

    def _look_at_items(self, search: _Search, path: str, value: Any, deep: int) -> None:
        search.visits += 1
        if not deep or search.visits > VISITS_MAX:
            return
        for key, item in _items(value):
            inner = f"{path}[{key}]"
            if is_own(inner) or len(search.found) >= VALUES_MAX:
                continue
            if type(item) in COLLECTIONS:
                self._look_at_items(search, inner, item, deep - 1)
            elif id(item) not in search.met and hasattr(item, "__dict__"):
                search.met.add(id(item))
                if type(value) is not tuple and _is_whole(item):
                    search.found[f"{inner}.{CLASS}"] = class_name(type(item))
                read_inside(inner, item, search.found, search.kept)
                if id(item) not in search.above:
                    search.above.add(id(item))
                    self._look_into(search, inner, item, deep - 1)

    def _look_into(self, search: _Search, path: str, holder: Any, deep: int) -> None:
        """The collections, and the objects, that an object's attributes name."""
        search.visits += 1
        if not deep or search.visits > VISITS_MAX or not hasattr(holder, "__dict__"):
            return
        for key, item in list(vars(holder).items()):
            if not _LEADS[type(item)] or is_own(key):
                continue
            if type(item) in COLLECTIONS:
                if item:
                    self._look_at_items(search, f"{path}.{key}", item, deep)
            elif id(item) not in search.above:
                search.above.add(id(item))
                self._look_into(search, f"{path}.{key}", item, deep - 1)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Key or index, and object or collection, of what a collection holds of interest."""
    if len(value) > OBJECTS_MAX:
        return
    if type(value) not in DICTS:
        for index, item in enumerate(value):
            if _LEADS[type(item)]:
                yield index, item
        return
    for key, item in list(value.items()):
        if not _LEADS[type(item)]:
            continue
        if type(key) is int:
            yield f"#{key}", item
        elif is_name(key):
            yield key, item


def is_name(key: Any) -> bool:
    """Whether a dict's key can be a part of a path; ``#3`` is the number 3."""
    return type(key) is str and key != "" and key[0] != "#" and not {"[", "]"} & set(key)


def _is_whole(item: Any) -> bool:
    """Whether an object has nothing but what heals, so that it can be made from that."""
    kind = type(item)
    has_more = any(vars(x).get("__slots__") for x in kind.__mro__)
    plain: Any = object.__new__
    if kind.__new__ is not plain or has_more:
        return False
    return all(not is_own(key) and _is_made(x) for key, x in list(vars(item).items()))


def _is_made(value: Any) -> bool:
    is_table_of_values = type(value) is dict and is_table(value)
    if type(value) in _MADE_IN_PLACE or is_table_of_values:
        return histories.carries(value)
    return is_value(value)


def class_name(kind: type) -> str:
    """The name by which a newcomer finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _reference(item: Any) -> weakref.ref[Any] | None:
    try:
        return None if item is None else weakref.ref(item)
    except TypeError:
        return None


def _is_at(reference: weakref.ref[Any] | None, item: Any) -> bool:
    return reference is None or reference() is item
