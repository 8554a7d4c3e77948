"""The count loops of the script: where each one stands, and how it is set to another place.

A replica that joins its peers in their third epoch must not count from the first. Its ``for`` loops
hold iterators that nobody else can reach. So each header of a loop in the script's modules hands
what it goes over to ``follow`` (headers.py), which gives the loop an iterator that is known here:

- Over a ``range``, or a new ``itertools.count`` of whole numbers, one that can be set.
- Over a sampler of torch's, the iterator of a loader (loaders.py): the script makes its batches.
- Over anything else one that counts the items, and goes on after a later one: it reads those
  between. Of a package's generator, as tqdm's, a range that it goes over is moved on instead.

All that the script has names of stays Python's own. Not here: which loops are set (moving.py).
"""

from __future__ import annotations

import gc
import itertools
import operator
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from types import CodeType, GeneratorType
from typing import Any, cast

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit.frames import Spot, loop_at

KNOWN_SEQUENCES = (list, tuple, dict, str, range, set, frozenset)
SITES_MAX = 1024
COUNT_END, COUNT_STEP_MAX = 1 << 62, 1 << 32
GENERATORS_DEEP = 4
_COUNT = re.compile(r"count\((-?\d+)(?:, (\d+))?\)")
_PIECE: Any = type(iter(range(0)))
_OF_KNOWN = frozenset(type(iter(kind(()))) for kind in KNOWN_SEQUENCES if kind is not range)


class _Told:
    """A piece of ``Numbers`` that tells of each turn of its loop before it gives the next number.
    That may set the loop, and so the piece."""

    __slots__ = ("began", "piece", "spot")

    def __init__(self, piece: Any, spot: Spot) -> None:
        self.piece, self.spot, self.began = piece, spot, RANGES.steps()

    def __iter__(self) -> _Told:
        return self

    def __next__(self) -> int:
        RANGES.before_turn(self.spot)
        try:
            return int(next(self.piece))
        except StopIteration:
            RANGES.turns_ended(self.began)
            raise

    def __setstate__(self, index: int) -> None:
        self.piece.__setstate__(index)

    def __length_hint__(self) -> int:
        return int(self.piece.__length_hint__())


class Numbers(itertools.chain[int]):
    """The iterator of one loop over a ``range``, which can be set to another place in either
    direction.

    Its pieces are iterators of Python's own, so that a loop has their speed. One of those can be
    moved, but from Python 3.12 on not back: so it is brought to its end, and another one follows.
    """

    __slots__ = ("__weakref__", "_pieces", "over")
    may_count = True
    over: range
    _pieces: list[Any]

    @staticmethod
    def begin(numbers: range) -> Numbers:
        """An iterator at the beginning of a range."""
        pieces = [iter(numbers)]
        found = cast(Numbers, Numbers.from_iterable(iter(pieces)))
        found.over, found._pieces = numbers, pieces
        return found

    def taken(self) -> int | None:
        """The number that was taken last; None: none yet. (It is asked for in each step.)"""
        left: int = self._pieces[-1].__length_hint__()
        turns = len(self.over) - left
        return self.over[turns - 1] if turns else None

    def numbers(self) -> Numbers:
        return self

    def turns(self) -> int:
        return len(self.over) - self.__length_hint__()

    def go_on_after(self, number: int) -> bool:
        """Take the number that follows ``number`` next; False: the range lacks it."""
        return number in self.over and self.come_to(self.over.index(number) + 1)

    def like(self, theirs: range, number: int) -> int | None:
        """What to go on after, as the peers after ``number`` of ``theirs``; None: nobody can tell.

        A loop around steps takes as many turns on all ranks. If its end alone is another one, it
        was made from values that have not healed: it goes over theirs from now on. If its begin is,
        ranks share the numbers in turn, or it may be either, unless theirs are its predecessor's.
        """
        own = self.over
        is_as_long = len(own) == len(theirs)
        if RANGES.are_predecessors:
            self.over = theirs
            return number
        if own.step == theirs.step and abs(own.start - theirs.start) < abs(own.step):
            if own.start != theirs.start:
                return own[theirs.index(number)] if is_as_long else None
            if not is_as_long:
                self.over = theirs
            return number
        if own.stop != theirs.stop:
            return None
        self.over = theirs  # its own begin is that of a checkpoint, perhaps beyond their place
        return number

    def come_to(self, turns: int) -> bool:
        """Go on as if so many numbers were taken; False: the range lacks them."""
        rest, last = iter(self.over[turns:]), self._pieces[-1]
        if isinstance(last, _Told):
            last.piece = rest
        else:
            self.end()
            self._pieces.append(rest)
        return turns <= len(self.over)

    def tell(self, spot: Spot) -> None:
        """Tell of each further turn before it begins."""
        if not isinstance(self._pieces[-1], _Told):
            rest = iter(self.over[self.turns() :])
            self.end()
            self._pieces.append(_Told(rest, spot))

    def end(self) -> None:
        """Take no further number."""
        self._pieces[-1].__setstate__(COUNT_END)

    def __length_hint__(self) -> int:
        """How many numbers are left."""
        return int(self._pieces[-1].__length_hint__())


class Within:
    """A ``range`` iterator of Python's own in a generator that waits: it can be moved on."""

    def __init__(self, iterator: Any) -> None:
        _, (self._numbers,), index = iterator.__reduce__()
        self._index: int = index or 0  # of the next number
        self._iterator = iterator

    def taken(self) -> int:
        """The number that was taken last."""
        first, step = self._numbers.start, self._numbers.step
        return int(first + (self._index - 1) * step)

    def go_on_after(self, number: int) -> bool:
        """Take the number that follows ``number`` next; False: that is not ahead."""
        by, rest = divmod(number - self.taken(), self._numbers.step)
        if rest or not 0 <= self._index + by <= len(self._numbers):
            return False
        self._iterator.__setstate__(self._index + by)
        return True

    def end(self) -> None:
        """Take no further number."""
        self._iterator.__setstate__(len(self._numbers))

    def __length_hint__(self) -> int:
        return int(self._iterator.__length_hint__())


def _within(generator: Any, deep: int = GENERATORS_DEEP) -> list[Any]:
    """The ``range`` iterators that a generator holds, also in those that it goes through. One that
    runs may not show all, so it counts as one that has none."""
    found: list[Any] = []
    if getattr(generator, "gi_running", False):
        return found
    for held in gc.get_referents(generator):
        if type(held) is _PIECE:
            found.append(held)
        elif type(held) in (GeneratorType, enumerate) and deep:
            found += _within(held, deep - 1)
    return found


def _span(source: Any, turns: int) -> range | None:
    """The range that a generator goes over, of which it has given so many numbers."""
    found = _within(source, 0) if type(source) is GeneratorType else ()
    if len(found) != 1:
        return None
    _, (left,), index = found[0].__reduce__()
    return range(left.start + ((index or 0) - turns) * left.step, left.stop, left.step)


class Items(map):  # type: ignore[type-arg]  # of Python's own, for its speed
    """The iterator of one loop over anything: it counts what it gives. It holds no item."""

    __slots__ = ("__weakref__", "_instead", "_numbers", "_source")
    _numbers: Numbers
    _source: Iterator[Any]
    _instead: list[range]

    @staticmethod
    def over(source: Iterator[Any]) -> Items:
        """An iterator that gives what ``source`` gives, beginning with number 0."""
        numbers, instead = Numbers.begin(range(COUNT_END)), list[range]()

        def give(_: int, item: Any) -> Any:
            if not instead:
                return item
            turns = numbers.turns()
            own = _span(source, turns)
            if own is None or type(item) is not int or item != own[turns - 1]:
                return item
            if len(own) != len(instead[0]):
                raise UserError(f"this loop went over {instead[0]}, and goes over {own} now")
            return instead[0][turns - 1]

        found = Items(give, numbers, source)
        found._numbers, found._source, found._instead = numbers, source, instead
        return found

    @property
    def may_count(self) -> bool:
        """Whether it may have ``numbers``."""
        return type(self._source) is GeneratorType

    def span(self) -> range | None:
        """The range whose numbers it gives, as a progress bar does; None: it gives others."""
        return self._instead[0] if self._instead else _span(self._source, self.turns())

    def goes_over(self, theirs: range) -> None:
        """Give the numbers of ``theirs`` in place of those of another range, which is as long."""
        if self.span() != theirs:
            self._instead[:] = [theirs]

    def go_on_after(self, number: int, theirs: range) -> bool:
        """Take the number of ``theirs`` next that follows ``number``; False: it cannot."""
        own, within = _span(self._source, self.turns()), self.numbers()
        if own is None or within is None or len(own) != len(theirs) or number not in theirs:
            return False
        self.goes_over(theirs)
        at = theirs.index(number)
        return within.go_on_after(own[at]) and self._numbers.come_to(at + 1)

    def turns(self) -> int:
        return self._numbers.turns()

    def come_to(self, turns: int) -> bool:
        """Read up to the item after so many; False: it is behind, or there are too few."""
        left = turns - self.turns()
        read = sum(1 for _ in itertools.islice(self._source, max(0, left)))
        return read == left and self._numbers.come_to(turns)

    def tell(self, spot: Spot) -> None:
        """Tell of each further turn before it begins."""
        self._numbers.tell(spot)

    def __length_hint__(self) -> int:
        """How many items are left, at least: 1 if that is not known."""
        is_known = type(self._source) in _OF_KNOWN
        return operator.length_hint(self._source, 1) if is_known else 1

    def numbers(self) -> Within | None:
        """The one ``range`` that a package's generator goes over; None: it is none, or has not."""
        found = _within(self._source) if self.may_count else ()
        return Within(found[0]) if len(found) == 1 else None


_Begun = list[Any]
"""Of one loop: a weak reference to its iterator, its code, and its place if that was asked for."""


class Ranges:
    """The newest iterator of each count loop of the script, by its place.

    It is held by the loop alone: one that has ended, or was left, is gone. So is
    ``any(f(x) for x in range(3))`` at the first true value.

    Attributes:
        is_on: the loops of the script are followed.
        tells_all: each turn of the loops that begin is told of, as those of the loops in ``told``,
            by ``before_turn`` (loop.py); ``turns_ended``: and of the end of one over a ``range``,
            with the ``steps`` of this process when that began.
        are_predecessors: what a newcomer is set to is of its own predecessor.
        is_compiling: torch compiles the function that runs, once it is there.
        samplers: torch's classes whose iterators give batches of indices; ``iterate``: makes them
            as a loader's (loaders.py).
    """

    def __init__(self) -> None:
        self.is_on = self.tells_all = self.are_predecessors = False
        self.before_turn: Callable[[Spot], None] = lambda spot: None
        self.turns_ended: Callable[[int], None] = lambda steps: None
        self.steps: Callable[[], int] = lambda: 0
        self.is_compiling: Callable[[], bool] = lambda: False
        self.samplers: tuple[type, ...] = ()
        self.iterate: Callable[[Any], Any] = iter
        self.told: set[Spot] = set()
        self._sites: set[tuple[int, int]] = set()  # of ``told``
        self._loops: dict[tuple[int, int], _Begun] = {}
        self._lives: object = None  # another one whenever a loop begins or ends
        self._counting: tuple[object, Collection[str], list[tuple[Spot, weakref.ref[Any]]]]
        self._counting = self, (), []  # of ``current``: as it was, for these functions

    def note(self, code: CodeType, line: int, iterator: Any) -> None:
        """A loop begins at a line of ``code``. A loop over little may begin very often."""
        key = id(code), line
        if len(self._loops) >= SITES_MAX and key not in self._loops:
            self._live()  # forgets those that have ended
        if self._loops.pop(key, None) or len(self._loops) < SITES_MAX:
            self._loops[key] = [weakref.ref(iterator, self._has_ended), code, None]
            self._lives = object()
            if self.tells_all or key in self._sites:
                iterator.tell(loop_at(code, line))

    def _has_ended(self, _: object) -> None:
        self._lives = object()

    def tell(self, code: CodeType, line: int) -> bool:
        """Tell from now on of each turn of the loop at a line of ``code``; False: it is told of."""
        key = id(code), line
        if key in self._sites:
            return False
        if len(self._sites) < SITES_MAX and key in self._loops:
            self._sites.add(key)
            self.told.add(loop_at(code, line))
            iterator = self._loops[key][0]()
            if iterator is not None:
                iterator.tell(loop_at(code, line))
        return True

    def _live(self, functions: Collection[str] | None = None) -> list[tuple[Spot, Numbers | Items]]:
        """Those in one of these functions, or all."""
        found: list[tuple[Spot, Numbers | Items]] = []
        for key, begun in list(self._loops.items()):
            iterator, spot = begun[0](), begun[2]
            if iterator is None:
                if self._loops.get(key) is begun:
                    self._loops.pop(key)
                continue
            if spot is None:
                spot = begun[2] = loop_at(begun[1], key[1])
            if functions is None or spot.name in functions:
                found.append((spot, iterator))
        return found

    def _all(self) -> dict[Spot, Numbers | Within]:
        """Those over numbers."""
        within = {spot: loop.numbers() for spot, loop in self._live()}
        return {spot: loop for spot, loop in within.items() if loop is not None}

    def current(self, functions: Collection[str]) -> tuple[tuple[Spot, int], ...]:
        """The number that each loop in one of these functions has taken last. (It is asked for in
        each step, so the loops are found again only when one has begun or ended.)"""
        lives, of, loops = self._counting
        if lives is not self._lives or of is not functions:
            lives = self._lives
            live = self._live(functions)
            loops = [(spot, weakref.ref(loop)) for spot, loop in live if loop.may_count]
            self._counting = lives, functions, loops
        found = []
        for spot, ref in loops:
            loop = ref()
            numbers = loop if loop is None or type(loop) is Numbers else loop.numbers()
            number = None if numbers is None else numbers.taken()
            if number is not None:
                found.append((spot, number))
        return tuple(found)

    def over(self, functions: Collection[str]) -> tuple[tuple[Spot, range], ...]:
        """The ranges of each loop over a ``range`` in one of these functions."""
        live, of_all = self._live(functions), self.are_predecessors
        known = [(x, y.over if isinstance(y, Numbers) else of_all and y.span()) for x, y in live]
        return tuple((spot, over) for spot, over in known if isinstance(over, range))

    def items(self, functions: Collection[str]) -> tuple[tuple[Spot, int], ...]:
        """How many turns have begun of each loop in one of these functions that is over anything
        but numbers."""
        live = self._live(functions)
        return tuple((x, y.turns()) for x, y in live if isinstance(y, Items) and not y.numbers())

    def turns(self, spot: Spot) -> int:
        """How many turns of the loop at a place have begun, whatever it is over."""
        loop = dict(self._live()).get(spot)
        return 0 if loop is None else loop.turns()

    def come_to(self, spot: Spot, turns: int, theirs: range | None = None) -> bool:
        """Let a loop go on as if so many turns had begun; False: there is none, or it cannot.

        ``theirs``: as in ``set``.
        """
        loop = dict(self._live()).get(spot)
        if isinstance(loop, Numbers) and theirs:
            is_other = self.are_predecessors or len(theirs) != len(loop.over)
            if is_other and loop.like(theirs, theirs.start) is None:
                return False
        if isinstance(loop, Items) and theirs is not None and self.are_predecessors:
            loop.goes_over(theirs)
        return loop is not None and loop.come_to(turns)

    def one_ends(self) -> bool:
        """Whether a loop has begun its last turn."""
        return any(not loop.__length_hint__() for _, loop in self._live())

    def knows(self, spot: Spot) -> bool:
        """Whether a loop at this place is one over numbers."""
        return spot in self._all()

    def end(self, is_left: Callable[[Spot], bool]) -> None:
        """Let the loops at some places take no further number."""
        for spot, loop in self._all().items():
            if is_left(spot):
                loop.end()

    def set(self, spot: Spot, number: int, theirs: range | None = None) -> bool:
        """Let a loop go on after ``number``; False: there is no such loop, or it lacks it.

        ``theirs``: what the loop goes over at the peers, if that is known (``Numbers.like``).
        """
        loop = self._all().get(spot)
        if isinstance(loop, Numbers) and theirs is not None and loop.over != theirs:
            found = loop.like(theirs, number)
            return found is not None and loop.go_on_after(found)
        bar = dict(self._live()).get(spot)
        if isinstance(bar, Items) and theirs is not None and self.are_predecessors:
            return bar.go_on_after(number, theirs)
        return loop is not None and loop.go_on_after(number)


RANGES = Ranges()


_NEW = (lambda iterable: sys.getrefcount(iterable))(object())
"""References to an argument that only its caller has."""


def follow(iterable: Any) -> Any:
    """In a header of the script's: what its loop is to go over in place of ``iterable``.

    In what torch.compile compiles, and for a script that is not followed, that is ``iterable``.
    """
    if RANGES.is_compiling() or not RANGES.is_on:
        return iterable
    kind = type(iterable)
    numbers = iterable if kind is range else None
    if kind is itertools.count and sys.getrefcount(iterable) <= _NEW:
        numbers = _counts(iterable)
    if numbers is not None:
        followed: Any = Numbers.begin(numbers)
    elif issubclass(kind, RANGES.samplers):
        return RANGES.iterate(iterable)
    elif hasattr(kind, "__iter__") or hasattr(kind, "__getitem__"):
        followed = Items.over(iter(iterable))
    else:
        return iterable  # Python finds out
    frame = sys._getframe(1)
    RANGES.note(frame.f_code, frame.f_lineno, followed)
    return followed


def _counts(counting: Any) -> range | None:
    """The numbers of an ``itertools.count``, if these are whole ones."""
    found = _COUNT.fullmatch(repr(counting))
    first, step = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
    is_known = abs(first) <= COUNT_STEP_MAX and 0 < step < COUNT_STEP_MAX
    return range(first, COUNT_END, step) if is_known else None


def install() -> None:
    """Torch is there from now on, and may compile a function of the script's."""
    from torch.compiler import is_compiling

    RANGES.is_compiling = is_compiling
