"""``range`` and ``enumerate`` of the script's modules, whose loops can be set to another place.

A replica that joins its peers in their third epoch must not count from the first. Its ``for`` loops
hold iterators that nobody else can reach. So the script's modules get a ``range`` and an
``enumerate`` of ours as global names, which hand out iterators that this module knows:

- An iterator of ``range`` can be set, and has the speed of Python's own.
- ``enumerate`` over a loader follows the jumps of that loader.
- ``itertools.count`` of whole numbers is a range without an end, and tqdm's ``trange`` has ours.

Not here: which loops are set (moving.py).
"""

from __future__ import annotations

import builtins
import importlib.machinery
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FrameType
from typing import Any, ClassVar, cast

from torch.compiler import is_compiling

from ftrun.inject.zero_edit.frames import Spot, is_script, script_frames, spot_of
from ftrun.inject.zero_edit.patches import Patches

KNOWN_SEQUENCES = (list, tuple, dict, str, builtins.range, set, frozenset)
SITES_MAX = 1024
COUNT_END, COUNT_STEP_MAX = 1 << 62, 1 << 32
TQDM = frozenset({"tqdm.std", "tqdm.auto", "tqdm.notebook", "tqdm.rich"})
"""Modules whose ``trange`` makes a range."""


class Numbers(itertools.chain[int]):
    """The iterator of one ``range`` loop, which can be set to another place in either direction.

    Its pieces are iterators of Python's own, so that a loop has their speed. One of those can be
    moved, but from Python 3.12 on not back: so it is brought to its end, and another one follows.
    """

    __slots__ = ("_numbers", "_pieces")
    _numbers: range
    _pieces: list[Any]

    @staticmethod
    def over(numbers: range) -> Numbers:
        """An iterator at the beginning of a range."""
        pieces = [iter(numbers)]
        found = cast(Numbers, Numbers.from_iterable(iter(pieces)))
        found._numbers, found._pieces = numbers, pieces
        return found

    def taken(self) -> int | None:
        """The number that was taken last; None: none yet."""
        index = len(self._numbers) - self.__length_hint__()
        return self._numbers[index - 1] if index else None

    def go_on_after(self, number: int) -> bool:
        """Take the number that follows ``number`` next; False: the range lacks it."""
        if number not in self._numbers:
            return False
        self._pieces[-1].__setstate__(len(self._numbers))
        self._pieces.append(iter(self._numbers[self._numbers.index(number) + 1 :]))
        return True

    def end(self) -> None:
        """Take no further number."""
        self._pieces[-1].__setstate__(len(self._numbers))

    def __length_hint__(self) -> int:
        """How many numbers are left."""
        return int(self._pieces[-1].__length_hint__())

    def __reduce__(self) -> Any:
        """A copy is an iterator of Python's own: no loop of the script's holds it."""
        return self._pieces[-1].__reduce__()


def _references(held: list[Numbers]) -> int:
    return sys.getrefcount(held[0])


_OURS_ALONE = _references([Numbers.over(range(1))])
"""References to an iterator that only ``Ranges`` knows."""


class Ranges:
    """The newest iterator of each ``range`` loop of the script, by its place.

    Each is held in a list of its own, where its references can be counted.
    """

    def __init__(self) -> None:
        self._loops: dict[Spot, list[Numbers]] = {}

    def note(self, iterator: Numbers) -> None:
        """A loop begins."""
        frames = script_frames()
        if len(self._loops) >= SITES_MAX:
            self._loops = {spot: held for spot, held in self._loops.items() if _goes_on(held)}
        if frames and (len(self._loops) < SITES_MAX or spot_of(frames[0]) in self._loops):
            self._loops[spot_of(frames[0])] = [iterator]

    def current(self, functions: Collection[str]) -> tuple[tuple[Spot, int], ...]:
        """The number that each loop in one of these functions has taken last."""
        found = []
        for spot, held in self._loops.items():
            if spot.name in functions and _goes_on(held):
                number = held[0].taken()
                if number is not None:
                    found.append((spot, number))
        return tuple(found)

    def one_ends(self) -> bool:
        """Whether a loop has taken its last number."""
        return any(
            _goes_on(held) and not held[0].__length_hint__() for held in self._loops.values()
        )

    def knows(self, spot: Spot) -> bool:
        """Whether a loop at this place is one of these."""
        return spot in self._loops and _goes_on(self._loops[spot])

    def end(self, is_left: Callable[[Spot], bool]) -> None:
        """Let the loops at some places take no further number."""
        for spot, held in self._loops.items():
            if is_left(spot) and _goes_on(held):
                held[0].end()

    def set(self, spot: Spot, number: int) -> bool:
        """Let a loop go on after ``number``; False: there is no such loop, or it lacks it."""
        return self.knows(spot) and self._loops[spot][0].go_on_after(number)


def _goes_on(held: list[Numbers]) -> bool:
    """Whether somebody but us holds the iterator: a loop that ended, or was left, has not.

    ``any(f(x) for x in range(3))`` leaves its loop at the first true value.
    """
    return _references(held) > _OURS_ALONE


RANGES = Ranges()


class _RangeType(type):
    """Makes ``range`` of ours equal to Python's in ``isinstance``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (builtins.range, _Range))

    def __call__(cls, *args: Any) -> Any:
        return builtins.range(*args) if is_compiling() else _Range(builtins.range(*args))


class Range(metaclass=_RangeType):
    """``range`` of the script's modules; in what torch.compile compiles, Python's own."""

    def __new__(cls, *args: Any) -> Any:
        """torch.compile calls this in place of the metaclass."""
        return builtins.range(*args)


Range.__name__ = Range.__qualname__ = "range"


class _Range:
    """One range. Whatever is asked of it but an iterator, Python's own answers."""

    __slots__ = ("_real",)

    def __init__(self, real: range) -> None:
        self._real = real

    def __iter__(self) -> Iterator[int]:
        iterator = Numbers.over(self._real)
        RANGES.note(iterator)
        return iterator

    def __len__(self) -> int:
        return len(self._real)

    def __getitem__(self, index: Any) -> Any:
        return self._real[index]

    def __contains__(self, value: object) -> bool:
        return value in self._real

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._real)

    def __eq__(self, other: object) -> bool:
        return self._real == (other._real if isinstance(other, _Range) else other)

    def __hash__(self) -> int:
        return hash(self._real)

    def __repr__(self) -> str:
        return repr(self._real)

    def __reduce__(self) -> Any:
        return self._real.__reduce__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _EnumerateType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (builtins.enumerate, Counted))

    def __call__(cls, iterable: Iterable[Any], start: int = 0) -> Any:
        is_known = type(iterable) in KNOWN_SEQUENCES or isinstance(iterable, _Range)
        if is_compiling() or is_known:
            return builtins.enumerate(iterable, start)
        return Counted(iterable, start)


class Enumerate(metaclass=_EnumerateType):
    """``enumerate`` of the script's modules; in what torch.compile compiles, Python's own."""

    def __new__(cls, iterable: Iterable[Any], start: int = 0) -> Any:
        """torch.compile calls this in place of the metaclass."""
        return builtins.enumerate(iterable, start)


Enumerate.__name__ = Enumerate.__qualname__ = "enumerate"


class Counted:
    """An ``enumerate`` whose count follows the jumps of the loaders that it draws from."""

    __slots__ = ("__weakref__", "_iterator", "_next")
    _drawing: ClassVar[list[Counted]] = []

    def __init__(self, iterable: Iterable[Any], start: int) -> None:
        self._iterator = iter(iterable)
        self._next = start

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> tuple[int, Any]:
        Counted._drawing.append(self)
        try:
            value = next(self._iterator)
        finally:
            Counted._drawing.remove(self)
        number = self._next
        self._next += 1
        return number, value

    def jump(self, by: int) -> None:
        """Count on from a number that is greater by ``by``."""
        self._next += by

    @staticmethod
    def drawing() -> Iterable[Counted]:
        """The ``enumerate`` iterators that are drawing their next item now."""
        return Counted._drawing


class Count:
    """``itertools.count`` for the script's own lines; for others, and other numbers, Python's."""

    plain = itertools.count

    def __call__(self, start: Any = 0, step: Any = 1) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        is_whole = type(start) is int and type(step) is int and 0 < step < COUNT_STEP_MAX
        if is_compiling() or not is_whole or abs(start) > COUNT_STEP_MAX or not is_script(caller):
            return self.plain(start, step)
        iterator = Numbers.over(builtins.range(start, COUNT_END, step))
        RANGES.note(iterator)
        return iterator


NAMES = {"range": Range, "enumerate": Enumerate}


def give() -> None:
    """Give our names to the modules of the script that have begun already."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:  # a tool may run the script in names that are no module's
        if is_script(frame.f_code.co_filename):
            _give(frame.f_globals)
        frame = frame.f_back
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_script(file):
            _give(vars(module))


def _give(names: dict[str, Any]) -> None:
    for name, ours in NAMES.items():
        names.setdefault(name, ours)
    for name in [name for name, value in names.items() if value is Count.plain]:
        names[name] = itertools.count


def forget() -> None:
    """Take our names out of the script's modules.

    The type of each name is asked, not the value: torch has names that warn when they are used.
    """
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name in [name for name, value in names.items() if type(value) is Count]:
            names[name] = Count.plain
        for name, ours in NAMES.items():
            if names.get(name) is ours:
                del names[name]


def install(patches: Patches) -> None:
    """Give each module of the script that is imported from now on our names."""
    loader: Any = importlib.machinery.SourceFileLoader
    plain = loader.exec_module

    def exec_module(self: Any, module: Any) -> None:
        origin = getattr(module.__spec__, "origin", None)
        if isinstance(origin, str) and is_script(origin):
            for name, ours in NAMES.items():
                module.__dict__.setdefault(name, ours)
        if module.__name__ in TQDM:
            module.__dict__.setdefault("range", Range)
        plain(self, module)

    patches.put(loader, "exec_module", exec_module)
    patches.put(itertools, "count", Count())
    for name in TQDM & sys.modules.keys():
        vars(sys.modules[name]).setdefault("range", Range)
    give()
