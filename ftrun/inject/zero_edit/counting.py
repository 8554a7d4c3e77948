"""The positions of the script's ``for`` loops: reads them, and sets a loop to another position.

A replica that joins its peers in their third epoch must not count from the first. But Python gives
no access to the iterator that a ``for`` loop holds. So the header of each loop in the script's
modules passes its iterable to ``follow`` (headers.py), which returns an iterator registered here:

- For a ``range``, or a new ``itertools.count`` of whole numbers: an iterator that can be set. The
  same within a new ``zip``.
- For a torch sampler, whose indices the script collates itself: a loader's iterator (loaders.py).
- For any other iterable: an iterator that counts items. It is set forward by reading the items in
  between. If it is a package's generator over a range (tqdm), that range is advanced instead.
- For a ``while``: the same, over nothing.

Only the loop itself holds its iterator. So the loop has ended, or was left, when that goes.

The script's own variables still hold Python's types. Not here: which loops are set (moving.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import operator
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import CO_GENERATOR
from types import CodeType, GeneratorType
from typing import Any, cast

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import Spot, loop_at
from ftrun.inject.zero_edit.place import Over

KNOWN_SEQUENCES = (list, tuple, dict, str, range, set, frozenset)
SITES_MAX = 1024
COUNT_END, COUNT_STEP_MAX = 1 << 62, 1 << 32
GENERATORS_DEEP = 4
_COUNT = re.compile(r"count\((-?\d+)(?:, (\d+))?\)")
_PIECE: Any = type(iter(range(0)))
_AROUND = (enumerate, filter, itertools.islice, map, zip)
_OF_KNOWN = frozenset(type(iter(kind(()))) for kind in KNOWN_SEQUENCES if kind is not range)


class _Told:
    """A piece of ``Numbers`` that calls ``RANGES.before_turn`` before it yields each number, while
    its turns are told of. That call may set the loop, and so replace ``piece``."""

    __slots__ = ("piece", "spot")

    def __init__(self, piece: Any, spot: Spot) -> None:
        self.piece, self.spot = piece, spot

    def __iter__(self) -> _Told:
        return self

    def __next__(self) -> int:
        if RANGES.tells_all or self.spot in RANGES.heard:
            RANGES.before_turn(self.spot)
        return int(next(self.piece))

    def __setstate__(self, index: int) -> None:
        self.piece.__setstate__(index)

    def __length_hint__(self) -> int:
        return int(self.piece.__length_hint__())


class Numbers(itertools.chain[int]):
    """The iterator of one loop over a ``range``, which can be set forward and back.

    It chains Python's own range iterators (the pieces), for their speed. Since Python 3.12 a range
    iterator cannot be set back. So the current piece is exhausted, and a new piece follows it.
    """

    __slots__ = ("__weakref__", "_pieces", "beside", "over")
    may_count = True
    start = None
    over: range
    _pieces: list[Any]
    beside: Sequence[Any]
    """The other iterators of its ``zip``: the numbers are set only where those are moved, too."""

    @staticmethod
    def begin(numbers: range, beside: Sequence[Any] = ()) -> Numbers:
        """An iterator at the beginning of a range."""
        pieces = [iter(numbers)]
        found = cast(Numbers, Numbers.from_iterable(iter(pieces)))
        found.over, found._pieces, found.beside = numbers, pieces, beside
        return found

    def taken(self) -> int | None:
        """The number that was taken last; None: none yet. (Called in each step.)"""
        left: int = self._pieces[-1].__length_hint__()
        turns = len(self.over) - left
        return self.over[turns - 1] if turns else None

    def numbers(self) -> Numbers | None:
        return self if all(map(RANGES.moves, self.beside)) else None

    def turns(self) -> int:
        return len(self.over) - self.__length_hint__()

    def go_on_after(self, number: int) -> bool:
        """Take the number that follows ``number`` next; False: the range lacks it."""
        return number in self.over and self.come_to(self.over.index(number) + 1)

    def can_be_like(self, theirs: range) -> bool:
        """Whether ``like`` knows a position of ``theirs`` here."""
        own = self.over
        if RANGES.are_predecessors:
            return True
        if own.step == theirs.step and abs(own.start - theirs.start) < abs(own.step):
            return own.start == theirs.start or len(own) == len(theirs)
        return own.stop == theirs.stop

    def like(self, theirs: range, number: int) -> int | None:
        """Translate a peer's position to this loop's: it stands after ``number`` of ``theirs``.

        A loop around steps takes equally many turns on all ranks. If only the end differs, this
        range was made from values that have not healed, and ``theirs`` replaces it. If the start
        differs by less than the step, the ranks share out the numbers: the index is translated, if
        the lengths are equal. Otherwise ``theirs`` replaces a range with the same end. A range of
        the predecessor's always replaces it.

        Returns:
            The number after which this loop continues; None: it cannot be known.
        """
        own = self.over
        if not self.can_be_like(theirs):
            return None
        is_near = own.step == theirs.step and abs(own.start - theirs.start) < abs(own.step)
        if is_near and own.start != theirs.start and not RANGES.are_predecessors:
            return own[theirs.index(number)]
        self.over = theirs  # its own begin may be from a checkpoint, beyond the peers' place
        return number

    def come_to(self, turns: int) -> bool:
        """Continue as if ``turns`` numbers were taken; False: the range has fewer."""
        rest, last = iter(self.over[turns:]), self._pieces[-1]
        if isinstance(last, _Told):
            last.piece = rest
        else:
            self.end()
            self._pieces.append(rest)
        return turns <= len(self.over)

    def tell(self, spot: Spot) -> None:
        """Call ``RANGES.before_turn(spot)`` before each further turn."""
        if not isinstance(self._pieces[-1], _Told):
            rest = iter(self.over[self.turns() :])
            self.end()
            self._pieces.append(_Told(rest, spot))

    def end(self) -> None:
        """Yield no further number."""
        self._pieces[-1].__setstate__(COUNT_END)

    def __length_hint__(self) -> int:
        """How many numbers are left."""
        return int(self._pieces[-1].__length_hint__())


class Within:
    """Python's ``range`` iterator inside a suspended generator: it can be set forward."""

    def __init__(self, iterator: Any) -> None:
        _, (self._numbers,), index = iterator.__reduce__()
        self._index: int = index or 0  # of the next number
        self._iterator = iterator

    def taken(self) -> int:
        """The number that was taken last."""
        first, step = self._numbers.start, self._numbers.step
        return int(first + (self._index - 1) * step)

    def go_on_after(self, number: int) -> bool:
        """Take the number that follows ``number`` next; False: it is not ahead."""
        by, rest = divmod(number - self.taken(), self._numbers.step)
        if rest or not 0 <= self._index + by <= len(self._numbers):
            return False
        self._iterator.__setstate__(self._index + by)
        return True

    def end(self) -> None:
        """Yield no further number."""
        self._iterator.__setstate__(len(self._numbers))


def _within(generator: Any, deep: int = GENERATORS_DEEP) -> list[Any]:
    """The ``range`` iterators that a generator holds, also in the generators that it draws from. A
    running generator may not show all of its references, so it counts as holding none."""
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
    """The range that a generator goes over, if it holds exactly one; it has yielded ``turns`` of
    the numbers."""
    found = _within(source, 0) if type(source) is GeneratorType else ()
    if len(found) != 1:
        return None
    left = cast(range, _numbers_of(found[0]))
    return range(left.start - turns * left.step, left.stop, left.step)


def _only_next(source: Iterator[Any]) -> Iterator[Any]:
    """The items of ``source``, whose ``__iter__`` is not called: a ``for`` loop calls it once, and
    that of a script's own iterator may begin from the first item again."""
    return map(next, itertools.repeat(source))


class Items(map):  # type: ignore[type-arg]  # a ``map``, for its speed
    """The iterator of one loop over anything: counts the items that it yields, and keeps none."""

    __slots__ = ("__weakref__", "_instead", "_numbers", "_source", "enumerated", "start")
    _numbers: Numbers
    _source: Iterator[Any]
    _instead: list[range]
    enumerated: Any
    start: int | None
    """The first number of the ``enumerate`` that gives its items; None: none does."""

    @staticmethod
    def over(source: Iterator[Any]) -> Items:
        """Count the items of ``source`` from 0."""
        numbers, instead = Numbers.begin(range(COUNT_END)), list[range]()

        def give(_: int, item: Any) -> Any:
            if not instead:
                return item
            turns = numbers.turns()
            own = _span(source, turns)
            if own is None or type(item) is not int or item != own[turns - 1]:
                return item
            if len(own) != len(instead[0]):
                raise UserError(f"this loop went over {instead[0]}, and now it goes over {own}")
            return instead[0][turns - 1]

        found = Items(give, numbers, _only_next(source))
        found._numbers, found._source, found._instead = numbers, source, instead
        found.enumerated = counted = _enumerated(source)
        found.start = None if counted is None else counted.__reduce__()[1][1]
        return found

    @property
    def may_count(self) -> bool:
        """Whether ``numbers`` may find a range in it."""
        return type(self._source) is GeneratorType

    def span(self) -> range | None:
        """The range whose numbers it yields (a progress bar does); None: it yields other items."""
        return self._instead[0] if self._instead else _span(self._source, self.turns())

    def goes_over(self, theirs: range) -> None:
        """Yield the numbers of ``theirs`` in place of its own range's, which has equal length."""
        if self.span() != theirs:
            self._instead[:] = [theirs]

    def go_on_after(self, number: int, theirs: range) -> bool:
        """Yield the number that follows ``number`` in ``theirs`` next; False: it cannot."""
        own, within = _span(self._source, self.turns()), self.numbers()
        if own is None or within is None or len(own) != len(theirs) or number not in theirs:
            return False
        self.goes_over(theirs)
        at = theirs.index(number)
        return within.go_on_after(own[at]) and self._numbers.come_to(at + 1)

    def turns(self) -> int:
        return self._numbers.turns()

    def come_to(self, turns: int) -> bool:
        """Read items until ``turns`` were yielded; False: more were already, or there are fewer."""
        left = turns - self.turns()
        read = sum(1 for _ in itertools.islice(_only_next(self._source), max(0, left)))
        return read == left and self._numbers.come_to(turns)

    def tell(self, spot: Spot) -> None:
        """Call ``RANGES.before_turn(spot)`` before each further turn."""
        self._numbers.tell(spot)

    def is_generated(self) -> bool:
        """Whether a generator gives its items, perhaps through Python's own iterators."""
        found = [self._source]
        if type(self._source) in _AROUND:
            found += gc.get_referents(self._source)
        return any(type(x) is GeneratorType for x in found)

    def end(self) -> None:
        """Yield no further item."""
        self._numbers.end()

    def __length_hint__(self) -> int:
        """How many items are left; 1 if that is not known."""
        is_known = type(self._source) in _OF_KNOWN
        return operator.length_hint(self._source, 1) if is_known else 1

    def numbers(self) -> Within | None:
        """The ``range`` iterator inside a generator; None: it is no generator, or does not hold
        exactly one."""
        found = _within(self._source) if self.may_count else ()
        return Within(found[0]) if len(found) == 1 else None


def _enumerated(source: Any) -> Any:
    """The one ``enumerate`` from which a loop's items come: ``source``, or what a generator was
    given that has not begun, as that of a progress bar. None: there is none."""
    if type(source) is enumerate:
        return source
    frame = source.gi_frame if type(source) is GeneratorType else None
    given = list(frame.f_locals.values()) if frame is not None else []
    parts = list[Any]()
    for one in given:
        with contextlib.suppress(Exception):  # of the script's, as a proxy of what is gone raises
            parts += one.__dict__.values()
    found = [x for x in given + parts if type(x) is enumerate]
    return found[0] if len(found) == 1 else None


def count_on(counted: Any, by: int) -> None:
    """Add ``by`` to the count of an ``enumerate`` or ``islice``.

    An ``enumerate`` has no setter, so the first field of its C structure is written, if that field
    holds the count.
    """
    if type(counted) is itertools.islice:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            sliced: Any = counted
            _, (*_, step), passed = sliced.__reduce__()
            if step == 1:  # with a step, the next index would have to be set as well
                sliced.__setstate__(passed + by)
        return
    number = ctypes.c_ssize_t.from_address(id(counted) + object.__basicsize__)
    if number.value == counted.__reduce__()[1][1]:
        number.value += by
    else:
        told.once(
            "this replica cannot set an enumerate() to its peers' count, because ftrun does not "
            "know this Python's. It counts on from its own"
        )


_Begun = list[Any]
"""One loop: a weak reference to its iterator, its code, and its Spot once that was looked up."""


class Ranges:
    """The newest iterator of each loop of the script, by code and line.

    Attributes:
        is_on: the loops of the script are followed.
        before_turn: called before each turn of the loops in ``told`` (loop.py); ``heard``: their
            headers.
        tells_all: it is called for all loops that begin from now on.
        ended: called when a loop has ended, or was left, with the number of steps in it (loop.py).
        steps: that were taken or gone through again, and more where a newcomer joined.
        has_new: a loop has begun that is the first one at its line (noting.py).
        are_predecessors: a newcomer is set to its own predecessor's place.
        is_compiling: whether torch is compiling the running function (``install``).
        starts: the part of ``over`` that costs little, of the newest ``current``.
        samplers: torch's sampler classes; ``iterate`` makes their iterators (loaders.py).
        moves: whether the items of an iterator are those of a loader that is set (loaders.py).
    """

    def __init__(self) -> None:
        self.is_on = self.tells_all = self.are_predecessors = self.has_new = False
        self.before_turn: Callable[[Spot], None] = lambda spot: None
        self.ended: Callable[[int], None] = lambda steps: None
        self.steps = 0
        self.is_compiling: Callable[[], bool] = lambda: False
        self.samplers: tuple[type, ...] = ()
        self.iterate: Callable[[Any], Any] = iter
        self.moves: Callable[[Any], bool] = lambda source: getattr(source, "gi_running", False)
        self.told: set[tuple[int, int]] = set()
        self.heard: set[Spot] = set()
        self._seen: set[tuple[int, int]] = set()
        self._loops: dict[tuple[int, int], _Begun] = {}
        self._lives: object = None  # a new object whenever a loop begins or ends
        self._counting: tuple[object, Collection[str], list[tuple[Spot, weakref.ref[Any]]]]
        self._counting = self, (), []  # cache of ``current``: ``_lives``, functions, loops
        self.starts: Over = ()

    def note(self, code: CodeType, line: int, iterator: Any) -> None:
        """A loop begins at a line of ``code``. (Called often for short inner loops.)"""
        key = id(code), line
        if key not in self._seen and len(self._seen) < SITES_MAX:
            self._seen.add(key)
            self.has_new = True
        if len(self._loops) >= SITES_MAX and key not in self._loops:
            self._live()  # drops the loops that have ended
        if self._loops.pop(key, None) or len(self._loops) < SITES_MAX:
            ended = functools.partial(self._has_ended, code, self.steps)
            self._loops[key] = [weakref.ref(iterator, ended), code, None]
            self._lives = object()
            if self.tells_all or key in self.told:
                iterator.tell(loop_at(code, line))

    def _has_ended(self, code: CodeType, began: int, _: object) -> None:
        """A loop has ended that began after so many steps. One in a generator may do so at any
        time, as where that is collected."""
        self._lives = object()
        by = sys._getframe().f_back  # None: Python ends, and drops what the script has left
        is_own = by is not None and by.f_code is code and not code.co_flags & CO_GENERATOR
        if is_own and began != self.steps:
            self.ended(self.steps - began)

    def tell(self, code: CodeType, line: int) -> bool:
        """Call ``before_turn`` at each turn of this loop from now on; False: it already is."""
        key = id(code), line
        if key in self.told:
            return False
        if len(self.told) < SITES_MAX and key in self._loops:
            spot = loop_at(code, line)
            self.told.add(key)
            self.heard.add(spot)
            iterator = self._loops[key][0]()
            if iterator is not None:
                iterator.tell(spot)
        return True

    def _live(self, functions: Collection[str] | None = None) -> list[tuple[Spot, Numbers | Items]]:
        """The running loops in one of these functions; None: in any."""
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
        """The running loops over numbers."""
        within = {spot: loop.numbers() for spot, loop in self._live()}
        return {spot: loop for spot, loop in within.items() if loop is not None}

    def current(self, functions: Collection[str]) -> tuple[tuple[Spot, int], ...]:
        """The number that each loop in one of these functions has taken last. Sets ``starts``.

        Called in each step, so the loops are cached until one begins or ends.
        """
        lives, of, loops = self._counting
        if lives is not self._lives or of is not functions:
            lives = self._lives
            live = self._live(functions)
            loops = [(spot, weakref.ref(loop)) for spot, loop in live if loop.may_count]
            self._counting = lives, functions, loops
            self.starts = _starts(live)
        found = []
        for spot, ref in loops:
            loop = ref()
            numbers = loop if loop is None or type(loop) is Numbers else loop.numbers()
            number = None if numbers is None else numbers.taken()
            if number is not None:
                found.append((spot, number))
        return tuple(found)

    def over(self, functions: Collection[str]) -> Over:
        """What the loops in these functions go over."""
        live, of_all = self._live(functions), self.are_predecessors
        known = [(x, y.over if isinstance(y, Numbers) else of_all and y.span()) for x, y in live]
        ranges = [(spot, over) for spot, over in known if isinstance(over, range)]
        return (*ranges, *_starts(live))

    def start_from(self, starts: Mapping[Spot, int]) -> list[str]:
        """Let the ``enumerate`` of loops count as those of the peers do. Returns what has changed,
        for people."""
        changed, done = [], set[int]()
        for spot, loop in self._live():
            own, theirs = loop.start, starts.get(spot)
            if own is None or theirs in (None, own) or not isinstance(loop, Items):
                continue
            if id(loop.enumerated) not in done:
                changed.append(f"the first number of the loop at {spot} {own}→{theirs}")
                count_on(loop.enumerated, theirs - own)
            done.add(id(loop.enumerated))  # a loop in a generator may go over it, too
            loop.start = theirs
        return changed

    def items(self, functions: Collection[str]) -> tuple[tuple[Spot, int], ...]:
        """The number of turns begun, for each loop in one of these functions that is not over
        numbers."""
        live = self._live(functions)
        return tuple((x, y.turns()) for x, y in live if isinstance(y, Items) and not y.numbers())

    def turns(self, spot: Spot) -> int:
        """How many turns of the loop at ``spot`` have begun; 0: no such loop runs."""
        loop = dict(self._live()).get(spot)
        return 0 if loop is None else loop.turns()

    def come_to(self, spot: Spot, turns: int, theirs: range | None = None) -> bool:
        """Set a loop as if ``turns`` turns had begun; False: no such loop, or it cannot be set.

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
        """Whether any loop has begun its last turn."""
        return any(not loop.__length_hint__() for _, loop in self._live())

    def knows(self, spot: Spot) -> bool:
        """Whether a loop over numbers runs at this place."""
        return spot in self._all()

    def end(self, is_left: Callable[[Spot], bool], *, all_of: bool = False) -> None:
        """End the loops over numbers at the places for which ``is_left`` is true. ``all_of``: those
        over anything, too."""
        for spot, loop in self._live():
            ends = loop.numbers() or (loop if all_of else None)
            if ends is not None and is_left(spot):
                ends.end()

    def is_generated(self, spot: Spot) -> bool:
        """Whether a generator gives the items of a loop: which may depend on where that began."""
        loop = dict(self._live()).get(spot)
        return isinstance(loop, Items) and loop.span() is None and loop.is_generated()

    def set(self, spot: Spot, number: int, theirs: range | None = None) -> bool:
        """Set a loop to continue after ``number``; False: no such loop, or it lacks ``number``.

        ``theirs``: the peers' range of this loop, if that is known (``Numbers.like``).
        """
        loop = self._all().get(spot)
        if isinstance(loop, Numbers) and theirs is not None and loop.over != theirs:
            found = loop.like(theirs, number)
            return found is not None and loop.go_on_after(found)
        bar = dict(self._live()).get(spot)
        if isinstance(bar, Items) and theirs is not None and self.are_predecessors:
            return bar.go_on_after(number, theirs)
        return loop is not None and loop.go_on_after(number)

    def can_be_set(self, spot: Spot, number: int, theirs: range | None) -> bool:
        """Whether ``set`` can set a loop, if it runs."""
        loop = self._all().get(spot)
        if not isinstance(loop, Numbers):
            return True
        return loop.can_be_like(theirs) if theirs is not None else number in loop.over

    def go_to(self, spot: Spot, number: int, theirs: range | None = None) -> bool:
        """Set a loop to take ``number`` next; False: it cannot, or that is its first number."""
        loop = self._all().get(spot)
        over = theirs if theirs is not None else getattr(loop, "over", range(0))
        before = over.index(number) - 1 if number in over else -1
        return before >= 0 and self.set(spot, over[before], theirs)


def _starts(live: list[tuple[Spot, Numbers | Items]]) -> Over:
    return tuple((spot, loop.start) for spot, loop in live if loop.start is not None)


RANGES = Ranges()


_TURNS = object()
_NEW = (lambda iterable: sys.getrefcount(iterable))(object())
"""The reference count of an argument to which only the call refers."""


def _references(items: tuple[Any, ...]) -> list[int]:
    return [sys.getrefcount(x) for x in items]


[_ALONE] = _references((object(),))  # that of an item to which only a tuple refers


def follow(iterable: Any = _TURNS) -> Any:
    """Called in the header of a loop: what the loop iterates over in place of ``iterable``; without
    one it is a ``while``.

    It is ``iterable`` itself while torch compiles the function, or if loops are not followed.
    """
    iterable = itertools.repeat(()) if iterable is _TURNS else iterable
    if RANGES.is_compiling() or not RANGES.is_on:
        return iterable
    kind = type(iterable)
    given = followed = cast(Any, None)
    if kind is range:
        given = followed = Numbers.begin(iterable)
    elif kind is itertools.count and sys.getrefcount(iterable) <= _NEW:
        if (numbers := _numbers_of(iterable)) is not None:
            given = followed = Numbers.begin(numbers)
    elif kind is zip and sys.getrefcount(iterable) <= _NEW:
        given, followed = _zipped(iterable)
    elif issubclass(kind, RANGES.samplers):
        return RANGES.iterate(iterable)
    if followed is None:
        if not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
            return iterable  # Python raises its own TypeError
        given = followed = Items.over(iter(iterable))
    frame = sys._getframe(1)
    RANGES.note(frame.f_code, frame.f_lineno, followed)
    return given


def _zipped(zipped: Any) -> tuple[Any, Numbers | None]:
    """A ``zip`` with numbers that can be set, and these; None: it has no numbers, or several.

    A ``zip`` takes its number before it draws the batch in which a newcomer is set, so the number
    is looked up after that.
    """
    _, parts, *strict = zipped.__reduce__()
    is_alone = [count <= _ALONE for count in _references(parts)]
    every = [_numbers_of(x) if alone else None for x, alone in zip(parts, is_alone, strict=True)]
    found = [(at, over) for at, over in enumerate(every) if over is not None]
    if len(found) != 1:
        return zipped, None
    [(at, over)] = found
    numbers = Numbers.begin(over, (*parts[:at], *parts[at + 1 :]))

    def give(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*items[:at], numbers.taken(), *items[at + 1 :])

    parts = [*parts[:at], numbers, *parts[at + 1 :]]
    return map(give, zip(*parts, strict=bool(strict))), numbers


def _numbers_of(counting: Any) -> range | None:
    """The numbers that an ``itertools.count`` or the iterator of a ``range`` yields. None: it is
    another object, or the numbers are not whole, too large, or descend."""
    if type(counting) is _PIECE:
        _, (left,), index = counting.__reduce__()
        return range(left.start + (index or 0) * left.step, left.stop, left.step)
    found = _COUNT.fullmatch(repr(counting)) if type(counting) is itertools.count else None
    first, step = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
    is_known = abs(first) <= COUNT_STEP_MAX and 0 < step < COUNT_STEP_MAX
    return range(first, COUNT_END, step) if is_known else None


def install() -> None:
    """Called once torch is imported: from then on it may compile a function of the script."""
    from torch.compiler import is_compiling

    RANGES.is_compiling = is_compiling
