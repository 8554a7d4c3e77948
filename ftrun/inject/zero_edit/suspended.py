"""Memory snapshots: generators of Python's that the script holds, and asks by ``next``.

What a generator function counts, and where its loops stand, is carried like that of a function on
the stack. But when a replacement comes to its place, its own generator has not begun. So it is
asked for items, which are dropped, until it stands at the ``yield`` of its predecessor's: mostly
for one. One that draws from a loader is not, because that would load: it is set when it begins.

Not here: its variables (values/), numbers of its loops (counting.py), its loaders (moving.py).
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

    ``holder`` and ``path``: by what the script reaches it; ``at``: where in its code it stands;
    ``draws``: from a loader. ``loops``: how many turns of those over anything but numbers have
    begun, or of one that draws the numbers that its loops have taken last. ``is_one``: there is no
    other of the same function, or it has no such loop, and no ``itertools.cycle`` has it; or it has
    not begun.
    """

    holder: str
    path: str
    function: str
    at: int
    draws: bool
    loops: _Loops
    is_one: bool


Held = Mapping[tuple[str, str], "GeneratorType[Any, Any, Any]"]
"""By holder and path."""


def look(held: Held) -> tuple[Suspended, ...]:
    """The generators as they are."""
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
    """Let the generators of this replacement stand where its predecessor's stood.

    Returns:
        Those that do not, in words.
    """
    return [
        _words(x)
        for x in theirs
        if not (x.draws or (x.is_one and _comes_to(held.get((x.holder, x.path)), x)))
    ]


def elsewhere(held: Held, theirs: Sequence[Suspended]) -> list[str]:
    """Those of a replica that heals which do not stand where its peers' do, in words. Nobody asks
    them for items, as a call in them may be one that its peers have made."""

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
    """The name of its function, as a Spot has it."""
    return spot_at(generator.gi_code, 0).name


def _at(generator: GeneratorType[Any, Any, Any]) -> int:
    return OVER if generator.gi_frame is None else generator.gi_frame.f_lasti


def _draws(source: Any, deep: int) -> bool:
    """Whether a generator holds an iterator of a loader."""
    kind = type(source)
    if kind is LoaderIterator or not deep:
        return kind is LoaderIterator
    leads_on = kind in (tuple, GeneratorType) or hasattr(kind, "__next__")
    return leads_on and any(_draws(x, deep - 1) for x in gc.get_referents(source))
