"""Memory snapshots: suspended Python generators that the script holds and advances by ``next``.

A generator's variables and loop positions are carried like those of a function on the stack. But
when a replacement reaches its place, its own generator has not started. So the replacement calls
``next`` on it, and drops the items, until it is at the same ``yield`` as its predecessor's;
usually one call is enough. A generator that draws from a loader is not advanced, because that
would load data. It is set when the script first draws from it.

Not here: its variables (values/), its loops' numbers (counting.py), its loaders (moving.py).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import GEN_CREATED, GEN_SUSPENDED, getgeneratorstate
from types import GeneratorType
from typing import Any, NamedTuple

from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.frames import Spot, spot_at
from ftrun.inject.zero_edit.loaders import LoaderIterator
from ftrun.inject.zero_edit.values.walk import CYCLE

ASKED_MAX = 8
DEEP = 6
OVER = -1
_Loops = tuple[tuple[Spot, int], ...]


class Suspended(NamedTuple):
    """One generator.

    Attributes:
        holder, path: the function and the path by which the script reaches it.
        function: its own function.
        at: the offset in its bytecode; ``OVER``: it has ended.
        draws: it draws from a loader.
        loops: with ``draws``, the number that each of its loops has taken last. Otherwise, for each
            loop over anything but numbers, the number of turns begun.
        is_one: it can be identified: it has not started; or no ``itertools.cycle`` holds it, and it
            is the only one of its function or has no loops.
    """

    holder: str
    path: str
    function: str
    at: int
    draws: bool
    loops: _Loops
    is_one: bool


Held = Mapping[tuple[str, str], "GeneratorType[Any, Any, Any]"]
"""Generators by holder and path."""


def look(held: Held) -> tuple[Suspended, ...]:
    """The current states of the generators."""
    begun = [x for x in held.values() if getgeneratorstate(x) == GEN_SUSPENDED]
    counts = Counter(map(function_of, begun))
    found = []
    for key, one in held.items():
        name, draws = function_of(one), _draws(one, DEEP)
        numbers: _Loops = RANGES.current({name}) if one in begun else ()
        items: _Loops = RANGES.items({name}) if one in begun and not draws else ()
        is_one = (counts[name] == 1 or not (numbers or items)) and CYCLE not in key[1]
        is_one |= getgeneratorstate(one) == GEN_CREATED
        loops = numbers if draws else items
        found.append(Suspended(*key, name, _at(one), draws, loops, is_one))
    return tuple(found)


def come_to(held: Held, theirs: Sequence[Suspended]) -> list[str]:
    """Advance the generators of this replacement to the places of its predecessor's.

    Returns:
        Descriptions of those that could not be advanced. Generators that draw are left out.
    """
    return [
        _words(x)
        for x in theirs
        if not (x.draws or (x.is_one and _comes_to(held.get((x.holder, x.path)), x)))
    ]


def elsewhere(held: Held, theirs: Sequence[Suspended]) -> list[str]:
    """Describes the generators of a healing replica that are at another place than the peers'.

    They are not advanced, because they may make a call that the peers have already made.
    """

    def stands_there(x: Suspended) -> bool:
        own = held.get((x.holder, x.path))
        return own is not None and function_of(own) == x.function and _at(own) == x.at

    return [_words(x) for x in theirs if not (x.draws or stands_there(x))]


def _words(one: Suspended) -> str:
    return f"the place of the generator {one.path} of {one.function}"


def _comes_to(own: GeneratorType[Any, Any, Any] | None, theirs: Suspended) -> bool:
    if own is None or function_of(own) != theirs.function:
        return False
    if theirs.at == OVER:
        own.close()
    for _ in range(ASKED_MAX):
        if _at(own) == theirs.at:
            return all(RANGES.come_to(*loop) for loop in theirs.loops)
        next(own, None)
    return False


def function_of(generator: GeneratorType[Any, Any, Any]) -> str:
    """The name of its function, as in a Spot."""
    return spot_at(generator.gi_code, 0).name


def _at(generator: GeneratorType[Any, Any, Any]) -> int:
    return OVER if generator.gi_frame is None else generator.gi_frame.f_lasti


def _draws(source: Any, deep: int) -> bool:
    """Whether a generator holds a loader's iterator, directly or through other iterators."""
    kind = type(source)
    if kind is LoaderIterator or not deep:
        return kind is LoaderIterator
    leads_on = kind in (tuple, GeneratorType) or hasattr(kind, "__next__")
    return leads_on and any(_draws(x, deep - 1) for x in gc.get_referents(source))
