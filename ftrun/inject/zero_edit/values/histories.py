"""Containers of plain values that a script fills: lists of losses, dicts of lists, sets of names.

A list of more than ``COPIED`` values is not copied as a whole at a draw. Its new values are added
to a copy of ours if the first and the last known one, and some others in turn, are where they were;
the place has that copy and its length. When a peer asks for the place, the whole list is compared
with it. A list in which something else was changed is named as not carried, and copied as a whole
at the next draw. Shorter lists, and dicts, deques and sets of up to ``limits.TABLE`` values, are
copied each time.

Values are plain, or paths, or tuples, lists, dicts and sets of these. Not here: where they are
found (walk.py), how they are set (writing.py).
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, cast

from ftrun.inject.zero_edit.values import kinds, limits
from ftrun.inject.zero_edit.values.kinds import DICTS, is_number, is_single, is_tensor

COPIED = 256
PROBED = 32
SAMPLED = 8
_PLAIN = frozenset({int, float, bool, str, type(None)})
_SHORT = frozenset({int, float, bool, type(None)})
_NAMES: dict[type, str] = {list: "list", deque: "deque", set: "set", tuple: "tuple"}

Packed = dict[str, Any]
"""A container as JSON has it: its kind, and its values."""
_NEVER = -1


class NotPlain(Exception):
    """A container has something that does not heal."""


@dataclass(slots=True)
class Seen:
    """A container at one draw; nobody changes it. (A frozen one takes three times as long.)

    ``values``: a copy of them; None: the list is long, and the copy has the first ``length``.
    """

    container: Any
    length: int
    values: list[Any] | None = None
    is_plain: bool = True


def see(container: Any) -> Seen:
    """Note a container as it is. It runs at every draw."""
    length = len(container)
    is_long = length > COPIED and type(container) is list
    if is_long or length > limits.TABLE:
        return Seen(container, length, is_plain=is_long and length <= limits.LIST)
    try:
        return Seen(container, length, _copied(container))
    except NotPlain:
        return Seen(container, length, is_plain=False)


@dataclass(slots=True)
class _Known:
    """The container at one path, as it was at the last draw.

    ``values``: a copy of its values, to which values are only added; None: it does not heal.
    ``changed_at``: the step of its last change. ``probe``: the index from which values are compared
    next. ``is_doubtful``: some values were found to differ.
    """

    kind: type
    length: int
    values: list[Any] | None
    changed_at: int
    probe: int = 0
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """A container at a place: the first ``seen.length`` of ``values``; None: it does not heal."""

    function: str
    path: str
    seen: Seen
    values: list[Any] | None
    changed_at: int
    known: _Known

    @property
    def has_changed(self) -> bool:
        """Whether the script has ever changed it. In any thread."""
        return self.changed_at != _NEVER or not self._stands()

    def packed(self) -> Packed | None:
        """Its values, in any thread; None: they do not heal, or have been changed meanwhile."""
        if self.values is None or not self._stands():
            return None
        return packed_values(type(self.seen.container), self.values[: self.seen.length])

    def _stands(self) -> bool:
        """Whether the script has only added to it since it was copied."""
        if self.seen.values is not None or self.values is None:
            return True
        length = self.seen.length
        if are_equal(self.seen.container[:length], self.values[:length]):
            return True
        self.known.is_doubtful = True
        return False

    @property
    def is_history(self) -> bool:
        """Whether it has plain values, unlike a list of batches. In any thread."""
        container = self.seen.container
        try:
            some = islice(container.items() if type(container) in DICTS else container, SAMPLED)
            return len(_frozen_all(some)) > 0
        except (NotPlain, RuntimeError):  # the script may change it now
            return False

    @property
    def words(self) -> str:
        """Path, kind and length, for people."""
        kind = type(self.seen.container).__name__
        return f"{self.path} ({kind} of {self.seen.length})"


@dataclass(frozen=True, slots=True)
class Grown:
    """A container's new values since the last draw: ``values`` from ``start`` up to ``length``."""

    function: str
    path: str
    kind: type
    start: int
    length: int
    values: list[Any]


class Histories:
    """The containers of this replica, by function and path."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    def begin(self, seen: Iterable[tuple[str, Mapping[str, Seen]]]) -> None:
        """Take the containers as they are now, without counting that as a change."""
        for function, containers in seen:
            for path, now in containers.items():
                known = self._known.get((function, path))
                at = _NEVER if known is None else known.changed_at
                self._take(function, path, now, at, keeps=True)

    def adopt(self, changed_at: Mapping[tuple[str, str], int]) -> None:
        """Some containers have been set to values that were changed at these steps."""
        for key, step in changed_at.items():
            known = self._known.get(key)
            if known is not None:
                known.changed_at = max(known.changed_at, step)

    def note(
        self, seen: Iterable[tuple[str, Mapping[str, Seen]]], step: int
    ) -> tuple[tuple[Cut, ...], list[Grown]]:
        """The containers at a place: those that have ever changed, and what has been added now."""
        cuts, grown = [], []
        for function, containers in seen:
            for path, now in containers.items():
                known, more = self._take(function, path, now, step)
                if known is None:
                    continue
                if more is not None:
                    grown.append(more)
                if known.changed_at != _NEVER or now.values is None:
                    at = known.changed_at
                    cuts.append(Cut(function, path, now, known.values, at, known))
        return tuple(cuts), grown

    def all(self) -> list[tuple[str, str, int, type, list[Any]]]:
        """Function, path, step, kind and values of the containers that have changed and heal."""
        return [
            (function, path, known.changed_at, known.kind, known.values)
            for (function, path), known in self._known.items()
            if known.values is not None and known.changed_at != _NEVER
        ]

    def steps(self) -> dict[tuple[str, str], int]:
        """When each has changed last."""
        return {k: x.changed_at for k, x in self._known.items() if x.changed_at != _NEVER}

    def _take(
        self, function: str, path: str, now: Seen, step: int, *, keeps: bool = False
    ) -> tuple[_Known | None, Grown | None]:
        key, kind = (function, path), type(now.container)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= limits.TRACKED:
                return None, None
            known = self._known[key] = _Known(kind, -1, None, _NEVER)
        start = _goes_on(known, now) if known.kind is kind else None
        if start == now.length or (start is None and not now.is_plain and _is_same(known, now)):
            return known, None
        known.kind = kind
        if not keeps:
            known.changed_at = step
        known.length = now.length
        if start is None or known.values is None:
            start, known.values = 0, _values_of(now)
            if known.values is None:
                return known, None
        else:
            try:
                known.values.extend(_frozen_all(now.container[start : now.length]))
            except NotPlain:
                known.values = None
                return known, None
        return known, Grown(function, path, kind, start, now.length, known.values)


def _is_same(known: _Known, now: Seen) -> bool:
    """Whether a container that does not heal looks as it did."""
    return known.values is None and known.length == now.length


def _goes_on(known: _Known, now: Seen) -> int | None:
    """How many of its values are known already; None: others have taken their places."""
    values = known.values
    if values is None:
        return None
    if now.values is not None:  # a copy
        return now.length if now.values == values else None
    if not now.is_plain or not values or now.length < len(values) or known.is_doubtful:
        known.is_doubtful = False
        return None
    last, container = len(values) - 1, now.container
    begin = known.probe if known.probe < len(values) else 0
    known.probe = begin + PROBED
    end = min(begin + PROBED, len(values))
    now_there = [container[0], container[last], *container[begin:end]]
    known_there = [values[0], values[last], *values[begin:end]]
    return len(values) if are_equal(now_there, known_there) else None


def _values_of(now: Seen) -> list[Any] | None:
    if now.values is not None or not now.is_plain:
        return now.values
    try:
        return _frozen_all(now.container[: now.length])
    except NotPlain:
        return None


# ---------------------------------------------------------------- copies


def carries(container: Any) -> bool:
    """Whether a container heals, if it is not too large together with the others."""
    if len(container) > (limits.LIST if type(container) is list else limits.TABLE):
        return False
    try:
        _copied(container)
    except NotPlain:
        return False
    return True


def _copied(container: Any) -> list[Any]:
    """The values of a container, without anything that the script can change."""
    if type(container) in DICTS:
        return _frozen_all(container.items())
    return _frozen_all(container)


def _frozen_all(values: Iterable[Any]) -> list[Any]:
    copy = list(values)
    if set(map(type, copy)) <= _SHORT:
        return copy
    return [value if type(value) in _SHORT else _frozen(value) for value in copy]


def _frozen(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        if kind is str and len(value) > limits.TEXT_CHARS:
            raise NotPlain
        return value
    if is_number(cast(Hashable, kind)):
        return value.item()
    if is_tensor(cast(Hashable, kind)) and is_single(value):
        return value
    if isinstance(value, PurePath):
        return value
    if (
        depth >= limits.DICTS_DEEP
        or not (kind in _NAMES or kind in DICTS)
        or len(value) > limits.ITEMS
    ):
        raise NotPlain
    if kind in DICTS:
        return {_frozen(k, depth + 1): _frozen(v, depth + 1) for k, v in list(value.items())}
    return kind(_frozen(x, depth + 1) for x in list(value))


# ---------------------------------------------------------------- as JSON


def packed_values(kind: type, values: Sequence[Any]) -> Packed:
    """A container of ``kind`` with these values."""
    name = "dict" if kind in DICTS else _NAMES[kind]
    return {"kind": name, "values": [x if type(x) in _PLAIN else _packed(x) for x in values]}


def _packed(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if is_tensor(cast(Hashable, type(value))):
        return kinds.packed_tensor(value)
    if isinstance(value, PurePath):
        return {"kind": "path", "values": [str(value)]}
    items = value.items() if type(value) in DICTS else value
    return packed_values(type(value), list(items))


def unpacked(value: Any) -> Any:
    """The value that was packed as ``value``."""
    if type(value) is not dict or "kind" not in value:
        return kinds.unpacked(value)
    values = [x if type(x) is not dict else unpacked(x) for x in value["values"]]
    match value["kind"]:
        case "dict":
            return dict(values)
        case "path":
            return Path(values[0])
        case "set":
            return set(values)
        case "deque":
            return deque(values)
        case "tuple":
            return tuple(values)
    return values


def within_limits(cuts: Iterable[Cut]) -> tuple[list[list[Any]], list[str]]:
    """The containers that heal, packed, the smallest first; and the words of the others.

    A container that has never changed is in neither, nor is one without plain values.
    """
    found, lacking, values, size = [], [], 0, 0
    for cut in sorted(cuts, key=lambda x: x.seen.length):
        if not cut.has_changed:
            continue
        packed = cut.packed()
        nbytes = 0 if packed is None else len(json.dumps(packed))
        if (
            packed is None
            or values + cut.seen.length > limits.LIST
            or size + nbytes > limits.CONTAINERS_BYTES
        ):
            if packed is not None or cut.is_history:
                lacking.append(cut.words)
            continue
        values, size = values + cut.seen.length, size + nbytes
        found.append([cut.function, cut.path, cut.changed_at, packed])
    return found, lacking


# ---------------------------------------------------------------- setting


def are_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal. They are not if comparing them fails, as with arrays."""
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - whatever a class of the script's raises
        return False


def are_alike(container: Any, new: Any) -> bool:
    """Whether ``new`` can be put into a container."""
    return type(new) is (dict if type(container) in DICTS else type(container))


def put_into(container: Any, new: Any) -> None:
    """Let a container have the values of another one."""
    if type(container) is list:
        container[:] = new
    elif type(container) in (deque, set, dict, OrderedDict, defaultdict, Counter):
        container.clear()
        (container.extend if type(container) is deque else container.update)(new)


def words(container: Any) -> str:
    """The number of values, for people."""
    return f"{len(container)} value{'' if len(container) == 1 else 's'}"
