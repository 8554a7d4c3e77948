"""Containers of plain values that a script fills: lists of losses, dicts of lists, sets of names.

A container is one value: its copy. A list that only grows is not copied again: its new values are
added to the copy, and the place has that copy and its length. Values are plain, or paths, or
tuples, lists, dicts and sets of these.

Not here: where containers are found (walk.py), when they have changed (changes.py), how they are
set (writing.py).
"""

from __future__ import annotations

import json
import operator
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from ftrun.inject.zero_edit.frames import Values
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import (
    DICTS,
    KINDS,
    Kind,
    Packed,
    base_of,
    is_container,
    is_plain,
    is_result,
    is_single,
    packed_values,
)

SAMPLED = 8
COMPARED = 64
"""So many values of a long list are compared, and its length."""
DIGEST = " (digest)"
"""Ends the path of what stands for a value that is compared between ranks."""
_SHORT = frozenset({int, float, bool, type(None)})
_COPIED = frozenset({list, deque, set, tuple, *DICTS})


class NotPlain(Exception):
    """A container has something that does not heal."""


@dataclass(slots=True, eq=False)
class Copy:
    """A container at one draw; nobody changes it. An equal one is the same object.

    ``copied``: its values are the first ``length`` of these, to which later copies may add; None:
    it does not heal. ``start``: so many are those of the copy before it; of bytes that do not heal
    a checksum. ``is_history``: it has plain values, unlike a list of batches. ``digest``: of what
    heals; "": not asked for so far.
    """

    kind: type
    length: int
    copied: list[Any] | None
    start: int = 0
    is_history: bool = True
    digest: str = ""

    @property
    def heals(self) -> bool:
        """Whether a peer can be given it, if it is not too large together with the others."""
        return self.copied is not None

    def packed_as(self, values: Sequence[Any]) -> list[Any]:
        """Some of its values, as they are packed."""
        return cast(list[Any], packed_values(self.kind, values)["values"])

    def packed(self, start: int = 0) -> Packed:
        """Its values from ``start`` on, in any thread."""
        return packed_values(self.kind, (self.copied or [])[start : self.length])


Cut = tuple[str, str, int, Copy]
"""Function, path, step of the last change, and the container at a place."""


def plain_of(values: Values) -> Values:
    return {path: value for path, value in values.items() if type(value) is not Copy}


def digests_of(values: Values) -> Values:
    """What stands for the containers that heal, among values as they are read, or were left."""
    found = {}
    for path, value in values.items():
        if type(value) is Copy:
            if value.heals and not value.digest:
                some = _compared((value.copied or [])[: value.length], value.kind is list)
                value.digest = _digest(value.packed_as(some), value.length)
            found[path + DIGEST] = value.digest
        elif is_container(value):
            some = _compared(value["values"], value["kind"] == list.__name__)
            found[path + DIGEST] = _digest(some, len(value["values"]))
    return {path: x for path, x in found.items() if x}


def _compared(values: list[Any], is_list: bool) -> list[Any]:
    """All of a set or a dict, which has no order, or another one in another process."""
    return [*values[:: 1 + len(values) // COMPARED], *values[-1:]] if is_list else values


def _digest(some: Sequence[Any], length: int) -> str:
    marks = sorted(zlib.crc32(json.dumps(x).encode()) for x in some)
    return f"{length} {zlib.crc32(repr(marks).encode()):08x}"


def length_of(container: Any) -> int:
    """The number of items, by a digest or a packed container."""
    if type(container) is str:
        return int(container.partition(" ")[0])
    return len(container["values"])


def copies_in(of: Mapping[str, Values]) -> list[tuple[str, str, Copy]]:
    """Function, path and copy of the containers among values."""
    every = ((name, path, x) for name, values in of.items() for path, x in values.items())
    return [one for one in every if type(one[2]) is Copy]


def see(container: Any, last: Any = None) -> Copy:
    """A container as it is. It runs at every draw. ``last``: the value of the draw before."""
    kind, length = base_of(type(container)), len(container)
    before = last if type(last) is Copy and last.kind is kind else None
    try:
        if length > (limits.LIST if kind in (list, bytearray) else limits.TABLE):
            raise NotPlain
        known = None if before is None or kind is not list else before.copied
        if before is not None and known and 0 < before.length <= length:
            known = known if len(known) == before.length else known[: before.length]
            if are_equal(container[: before.length], known):
                if length == before.length:
                    return before
                known.extend(_frozen_all(container[before.length : length]))
                return Copy(kind, length, known, before.length)
        parts = list(_parts(container))
        if before is not None and before.length == length and are_equal(parts, before.copied):
            return before  # mostly so; to copy it takes twenty times as long
        values = _frozen_all(parts)
    except NotPlain:
        is_checked = kind is bytearray and length <= limits.ARRAY_BYTES  # it keeps its length
        start = zlib.crc32(container) if is_checked else 0
        if before is not None and (before.heals, before.length, before.start) == (0, length, start):
            return before
        return Copy(kind, length, None, start, _is_history(container))
    return Copy(kind, len(values), values)


def _is_history(container: Any) -> bool:
    try:
        return len(_frozen_all(islice(_parts(container), SAMPLED))) > 0
    except (NotPlain, RuntimeError):  # another thread of the script may change it now
        return False


# ---------------------------------------------------------------- copies


def carries(container: Any) -> bool:
    """Whether a container heals, if it is not too large together with the others."""
    return see(container).heals


def _parts(container: Any) -> Iterable[Any]:
    return container.items() if isinstance(container, dict) else container


def _frozen_all(values: Iterable[Any]) -> list[Any]:
    """Copies without anything that the script can change."""
    copy = list(values)
    if set(map(type, copy)) <= _SHORT:
        return copy
    return [value if type(value) in _SHORT else _frozen(value) for value in copy]


def _frozen(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if is_plain(value) or KINDS[kind] is Kind.OTHER:
        return value
    if KINDS[kind] is Kind.TENSOR and (is_single(value) or is_result(value)):
        return value.detach()  # the copy needs no gradients, and may not keep their graph
    is_known = kind in _COPIED or KINDS[kind] is Kind.TUPLE
    if depth >= limits.DICTS_DEEP or not is_known or len(value) > limits.ITEMS:
        raise NotPlain
    if kind in DICTS:
        return {_frozen(k, depth + 1): _frozen(v, depth + 1) for k, v in list(value.items())}
    frozen = [_frozen(x, depth + 1) for x in list(value)]
    is_same = KINDS[kind] is Kind.TUPLE and all(map(operator.is_, frozen, value))
    return value if is_same else getattr(kind, "_make", kind)(frozen)


# ---------------------------------------------------------------- for peers and successors


def within_limits(cuts: Iterable[Cut]) -> tuple[list[list[Any]], list[str]]:
    """The containers that heal, packed, the smallest first; the words of the other histories."""
    found, lacking, values, size = [], [], 0, 0
    for function, path, step, copy in sorted(cuts, key=lambda x: x[3].length):
        packed = copy.packed()
        nbytes = len(json.dumps(packed))
        is_over = values + copy.length > limits.LIST or size + nbytes > limits.CONTAINERS_BYTES
        if is_over or not copy.heals:
            if copy.is_history:
                kind = copy.kind.__name__
                lacking.append(f"{path} ({kind} of {copy.length})")
            continue
        values, size = values + copy.length, size + nbytes
        found.append([function, path, step, packed])
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
    kind = base_of(type(container))
    return type(new) is (dict if kind in DICTS else kind)


def put_into(container: Any, new: Any) -> None:
    """Let a container have the values of another one. A class of the script's may have methods of
    its own, which do more."""
    kind = base_of(type(container))
    if kind in (list, bytearray):
        kind.__setitem__(container, slice(None), new)
    elif kind is not None:
        kind.clear(container)
        (kind.extend if kind is deque else kind.update)(container, new)


def words(container: Any) -> str:
    """The number of values, for people."""
    return f"{len(container)} value{'' if len(container) == 1 else 's'}"
