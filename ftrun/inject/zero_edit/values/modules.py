"""The variables of a script's module that count, found at little cost.

A module has many names that lead nowhere: functions, classes of other modules, modules. And most
classes never change. A walk looks at the former once in ``READ_ANEW``; of a class of plain values
alone it compares what is there with what was there at the last walk.

Not here: what counts (walk.py), the modules (frames.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from ftrun.inject.zero_edit.frames import Values
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import PLAIN

READ_ANEW = 64
"""What has the length that it had counts as at the last walk. One walk in so many reads all."""
_PLAIN = frozenset(PLAIN)


@dataclass(slots=True)
class _Still:
    """A class at a walk: its names, their values, and what the walk has found of it, by path."""

    names: list[str]
    leaves: list[Any]
    count: int
    values: Values = field(default_factory=dict)
    containers: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Module:
    """``count``: of all names; ``names``: those that count; ``still``: classes, by name."""

    count: int = -1
    names: list[str] = field(default_factory=list)
    still: dict[str, _Still] = field(default_factory=dict)


class Modules:
    """What one worker's walk knows of the script's modules."""

    def __init__(self) -> None:
        self._known: dict[str, _Module] = {}

    def variables(
        self, name: str, variables: Mapping[str, Any], looks: int, counts: Callable[..., bool]
    ) -> dict[str, Any]:
        """The variables of a module that count, by ``counts``. ``looks``: so many walks so far."""
        known = self._known.get(name) or _Module()
        if len(self._known) < limits.TRACKED:
            self._known[name] = known
        if known.count != len(variables) or looks % READ_ANEW == 0:
            known.names = [x for x, value in variables.items() if counts(x, value)]
            known.count = len(variables)
        return {x: variables[x] for x in known.names if x in variables}

    def still(self, to: Any, variable: str, kind: Any) -> bool:
        """Whether a class is as it was at the last walk. If so, ``to`` gets what was found of it
        then."""
        of = self._known.get(to.function)
        known = None if of is None else of.still.get(variable)
        if known is None or len(now := vars(kind)) != known.count:
            return False
        values = [*map(now.get, known.names)]
        leaves = _leaves(values) if len(known.leaves) > len(values) else values
        if len(leaves) != len(known.leaves) or not all(map(is_, leaves, known.leaves)):
            return False
        to.values.update(known.values)
        to.containers.update(known.containers)
        return True

    def note(self, to: Any, path: str, kind: type, held: Mapping[str, Any]) -> None:
        """A walk has found a class: remember it, if it ``held`` plain values, and lists and dicts
        of these, alone."""
        of = self._known.get(to.function)
        leaves = _leaves(held.values())
        is_simple = all(type(x) in _PLAIN or type(x) in (dict, list) for x in leaves)
        if of is None or len(of.still) >= limits.TRACKED or not is_simple:
            return
        of.still[path] = still = _Still([*held], leaves, len(vars(kind)))
        for x, value in held.items():
            ways = [f"{path}.{x}"]
            if type(value) is dict and len(value) <= limits.ITEMS:
                ways += [f"{path}.{x}[{key}]" for key in value]
            for found, there in (still.values, to.values), (still.containers, to.containers):
                found.update((way, there[way]) for way in ways if way in there)


def _leaves(values: Iterable[Any]) -> list[Any]:
    """The values, and the items of lists and dicts in which a walk looks for objects."""
    found: list[Any] = []
    for x in values:
        found.append(x)
        if type(x) is dict and len(x) <= limits.ITEMS:
            found += x
            found += map(_checked, x.values())
        elif type(x) is list and len(x) <= limits.ITEMS:
            found += map(_checked, x)
    return found


def _checked(item: Any) -> Any:
    """An item, or a new object in its place if a change inside of it would not be seen."""
    return item if type(item) in _PLAIN else object()
