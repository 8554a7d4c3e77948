"""The count loops of a script stand where Python's own would, and can be set."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.inject.zero_edit.counting import (
    RANGES,
    Items,
    Numbers,
    Ranges,
    follow,
)
from ftrun.inject.zero_edit.frames import Spot, spot_at
from tests.unit.inject.zero_edit.followed import run

numbers = st.integers(-20, 20)
CODE = compile("", "f.py", "exec")
FOLLOWED = {"numbered.py:f"}


@given(numbers, numbers, numbers.filter(bool))
def test_a_loop_over_a_range_is_as_pythons(start: int, stop: int, step: int) -> None:
    numbers = range(start, stop, step)
    assert list(Numbers.begin(numbers)) == list(numbers)
    for taken in range(len(numbers)):
        loop = Numbers.begin(numbers)
        assert [next(loop) for _ in range(taken)] == list(numbers[:taken])
        assert loop.__length_hint__() == len(numbers) - taken
        for to in numbers:
            assert loop.go_on_after(to) and loop.taken() == to
        assert list(loop) == []


SCRIPT = """
from itertools import count

def bar(iterable):
    yield from iterable  # not a package's: its own loops are followed

def over_range(look):
    for number in range(8):
        look(number)

def from_a_variable(look, numbers=range(8)):
    for number in numbers:
        look(number)

def over_several_lines(look):
    for number in range(
        0,
        8,
    ):
        look(number)

def in_a_comprehension(look):
    [look(number) for number in range(8)]

def in_an_expression(look):
    list(look(number) for number in range(8))

def in_a_generator(look):
    def numbers():
        for number in range(8):
            look(number)
            yield number
    for _ in numbers():
        pass

def by_count(look):
    for number in count():
        if number == 8:
            break
        look(number)

def by_tqdm(look):
    for number in tqdm(range(8), desc="x"):
        look(number)

def by_its_method(look):
    for number in tqdm(range(8)).again():
        look(number)

def in_nested(look):
    for _ in range(1):
        for number in range(8):
            look(number)
"""
PACKAGE = """
class tqdm:
    def __init__(self, iterable, desc=None):
        self.iterable = iterable

    def __iter__(self):
        iterable = self.iterable
        for item in iterable:
            yield item

    def again(self):
        yield from self
"""
LOOPS = [x.split("(")[0] for x in SCRIPT.split("def ")[2:] if "look" in x.split("\n")[0]]


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    """Of a script that has a package."""
    found = run(tmp_path / "script.py", SCRIPT)
    library = tmp_path / "site-packages" / "tqdm.py"
    exec(compile(PACKAGE, str(library), "exec"), found)
    return found


@pytest.mark.parametrize(
    ("own", "theirs", "after", "left"),
    [
        (range(0, 2, 8), range(0, 24, 8), 8, [16]),  # it was made of what has not healed
        (range(9), range(2), 0, [1]),
        (range(0), range(3), 1, [2]),
        (range(0, 15, 8), range(0, 16, 8), 0, [8]),  # ranks share it: as many turns
        (range(0, 6, 2), range(1, 7, 2), 3, [4]),
        (range(0, 9), range(3, 9), 4, [5, 6, 7, 8]),
        (range(2, 4), range(0, 4), 0, [1, 2, 3]),  # it has found a newer checkpoint
        (range(0, 3), range(3, 6), 4, None),
        (range(0, 7, 2), range(1, 6, 2), 3, None),
    ],
)
def test_a_loop_goes_on_as_that_of_the_peers(
    own: range, theirs: range, after: int, left: list[int] | None
) -> None:
    loop = Numbers.begin(own)
    found = loop.like(theirs, after)
    goes_on = found is not None and loop.go_on_after(found)
    assert (list(loop) if goes_on else None) == left


def test_a_predecessors_range_is_taken_whatever_this_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of ``range(10 * epoch, 10 * epoch + 10)``: it was made in this process's first epoch."""
    monkeypatch.setattr(RANGES, "are_predecessors", True)
    loop = Numbers.begin(range(0, 10))
    code = sys._getframe().f_code
    RANGES.note(code, 1, loop)
    assert RANGES.come_to(spot_at(code, 1), 8, range(10, 20)) and list(loop) == [18, 19]
    again = Numbers.begin(range(0, 10))
    assert again.like(range(10, 20), 18) == 18
    assert again.go_on_after(18) and list(again) == [19]


def spot_of_loop(name: str, number: int) -> Spot:
    """The place of the loop of ``name`` that has taken ``number``."""
    functions = {f"script.py:{name}", "script.py:numbers"}
    (found,) = [at for at, taken in RANGES.current(functions) if taken == number]
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_goes_on_after_another_number(names: dict[str, Any], name: str) -> None:
    seen: list[int] = []

    def look(number: int) -> None:
        seen.append(number)
        if number == 1:
            assert RANGES.set(spot_of_loop(name, 1), 5)

    names[name](look)
    assert seen == [0, 1, 6, 7]


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_ended_where_it_stands(names: dict[str, Any], name: str) -> None:
    seen: list[int] = []

    def look(number: int) -> None:
        seen.append(number)
        assert not RANGES.one_ends() or name == "in_nested"
        RANGES.end(lambda spot: spot.name.startswith("script.py"))

    names[name](look)
    assert seen == [0]


BACK = sorted(set(LOOPS) - {"by_tqdm", "by_its_method"})


@pytest.mark.parametrize("name", BACK)
def test_a_loop_goes_back(names: dict[str, Any], name: str) -> None:
    seen: list[int] = []
    moves = {4: 0, 2: 6}

    def look(number: int) -> None:
        seen.append(number)
        if number in moves:
            assert RANGES.set(spot_of_loop(name, number), moves.pop(number))

    names[name](look)
    assert seen == [0, 1, 2, 7] or seen == [*range(5), 1, 2, 7]


def test_a_loop_takes_a_number_next(names: dict[str, Any]) -> None:
    seen: list[int] = []

    def look(number: int) -> None:
        seen.append(number)
        if number == 1:
            spot = spot_of_loop("over_range", 1)
            assert not RANGES.go_to(spot, 9) and not RANGES.go_to(spot, 0)
            assert RANGES.go_to(spot, 6)

    names["over_range"](look)
    assert seen == [0, 1, 6, 7]


def test_a_loop_that_lacks_the_number(names: dict[str, Any]) -> None:
    def look(number: int) -> None:
        spot = spot_of_loop("by_tqdm", number)
        assert not RANGES.set(spot, 9) and not RANGES.set(Spot("other.py:f", 1), 0)

    names["by_tqdm"](look)


LEFT = """
def any_of(n):
    return any(x == 1 for x in range(n)), next(x for x in range(n) if x > 2)

def outer(look):
    for number in range(7):
        for inner in range(7):
            if inner == 3:
                break
        return look(number)

def held():
    return (number for number in range(5))
"""


def test_two_loops_in_one_function_of_a_package_are_two(tmp_path: Path) -> None:
    """Seen by reading: the inner one hid the outer one, and the epoch was not set."""
    path = tmp_path / "site-packages" / "transformers" / "trainer.py"
    path.parent.mkdir(parents=True)
    text = "def train(look):\n for x in range(9):\n  for y in range(3):\n   look(x, y)"
    seen = []

    def look(*at: int) -> None:
        seen.append(at)
        if len(seen) == 2:
            (outer, _), (inner, _) = RANGES.current({"trainer.py:train"})
            assert (outer.line, inner.line) == (2, 3)
            assert RANGES.set(outer, 6) and RANGES.set(inner, 0)

    run(path, text)["train"](look)
    rest = [(x, y) for x in (7, 8) for y in range(3)]
    assert seen == [(0, 0), (0, 1), (0, 1), (0, 2), *rest]


def test_a_loop_that_was_left_is_over(tmp_path: Path) -> None:
    names = run(tmp_path / "left.py", LEFT)
    every = {f"left.py:{name}" for name in ("any_of", "outer", "held")}
    assert names["any_of"](5) == (True, 3) and RANGES.current(every) == ()
    found: list[Any] = []
    names["outer"](lambda number: found.extend(RANGES.current(every)))
    assert [number for _, number in found] == [0], "the outer loop alone goes on"
    held = names["held"]()
    assert next(held) == 0 and next(held) == 1
    assert [number for _, number in RANGES.current(every)] == [1]
    del held
    assert RANGES.current(every) == ()


def test_a_loop_that_was_left_does_not_end_and_one_at_its_last_number_does() -> None:
    loops = Ranges()

    def begin(count: int) -> Iterator[int]:
        iterator = Numbers.begin(range(count))
        loops.note(CODE, count, iterator)
        return iterator

    left = begin(1)
    next(left)
    assert loops.one_ends()
    del left
    assert not loops.one_ends()
    inner = begin(2)
    next(inner)
    assert not loops.one_ends()
    next(inner)
    assert loops.one_ends()


@pytest.mark.parametrize(
    "make",
    [
        lambda: [1, 2],
        lambda: enumerate([5]),
        lambda: enumerate("ab", 3),
        lambda: iter(range(3)),
        lambda: zip("ab", "cd", strict=True),
        lambda: {1: 2}.items(),
        lambda: (x for x in "abc"),
        lambda: count(1.5),
    ],
)
def test_a_loop_over_anything_is_as_pythons_and_counts_its_items(make: Callable[[], Any]) -> None:
    RANGES.is_on = True
    expected = [*islice(make(), 3)]
    assert [*islice(follow(make()), 3)] == expected
    for turns in range(len(expected) + 1):
        loop = follow(make())
        next(loop)
        assert loop.turns() == 1 and loop.come_to(turns) == (turns > 0)
        assert not turns or [*islice(loop, len(expected) - turns)] == expected[turns:]
    assert type(make()) is count or not follow(make()).come_to(len(expected) + 1)


def test_an_iterator_of_the_scripts_begins_once() -> None:
    class Bar:
        begun = 0

        def __iter__(self) -> Iterator[str]:
            self.begun, self.letters = self.begun + 1, iter("abcd")
            return self

        def __next__(self) -> str:
            return next(self.letters)

    RANGES.is_on = True
    bar = Bar()
    loop = follow(bar)
    assert next(loop) == "a" and loop.come_to(3)
    assert [*loop] == ["d"] and bar.begun == 1


def test_what_is_no_iterable_is_pythons_to_refuse() -> None:
    RANGES.is_on = True
    assert follow(5) == 5


def test_a_count_goes_on_after_another_number() -> None:
    RANGES.is_on = True
    new = follow(count(3, 2))  # not in an assert, where pytest has a name for it
    others = [follow(count(1.5)), follow(count(0, 0)), follow(count(1 << 40))]
    assert type(new) is Numbers and [next(new), next(new)] == [3, 5]
    assert [type(x) for x in others] == [Items] * 3
    named = count(3)
    assert type(follow(named)) is Items, "its name may be asked elsewhere"


@pytest.mark.parametrize(
    "make",
    [
        lambda: zip(range(4), "abcdef", strict=False),
        lambda: zip("abc", count(7, 2), strict=False),
        lambda: zip(range(8, 2, -2), "abc", strict=True),
        lambda: zip(range(2), count(), strict=False),  # two are not followed
        lambda: zip(iter(range(0)), "ab", strict=False),
    ],
)
def test_a_zip_with_numbers_is_as_pythons(make: Callable[[], Any]) -> None:
    RANGES.is_on = True
    expected = [*make()]
    assert [*follow(make())] == expected
    with pytest.raises(ValueError, match="shorter"):
        [*follow(zip(range(3), "ab", strict=True))]
    kept = count(5)
    assert [*follow(zip(kept, "ab", strict=False))] == [(5, "a"), (6, "b")]
    assert next(kept) == 8, "it is the script's own"


NUMBERED = """
def f():
    seen = []
    for x in OVER:
        seen.append(x)
    return seen
"""


def test_a_zip_yields_the_number_to_which_it_is_set_while_it_draws(tmp_path: Path) -> None:
    names = run(tmp_path / "numbered.py", NUMBERED.replace("OVER", "zip(range(9), items())"))

    def items() -> Iterator[str]:
        yield "a"
        [(spot, _)] = RANGES.current(FOLLOWED)
        assert RANGES.set(spot, 5, range(4, 9))
        yield from "bcdefg"

    names["items"] = items
    assert names["f"]() == [(0, "a"), (5, "b"), (6, "c"), (7, "d"), (8, "e")]


def test_what_a_generator_was_given_is_looked_at_with_care() -> None:
    """As a dead ``weakref.proxy``, whose every attribute raises."""

    class Closed:
        def __getattribute__(self, name: str) -> Any:
            raise ReferenceError(name)

    def given(closed: Any, numbered: Any) -> Iterator[Any]:
        yield from numbered

    RANGES.is_on = True
    loop = follow(given(Closed(), enumerate("ab", 3)))
    assert type(loop) is Items and loop.start == 3 and [*loop] == [(3, "a"), (4, "b")]


def test_an_enumerate_counts_on_from_the_peers_start(tmp_path: Path) -> None:
    names = run(tmp_path / "numbered.py", NUMBERED.replace("OVER", "enumerate(items(), 3)"))

    def items() -> Iterator[str]:
        yield "a"
        [(spot, start)] = RANGES.over(FOLLOWED)
        assert start == 3 and (RANGES.current(FOLLOWED), RANGES.starts) == ((), ((spot, 3),))
        assert RANGES.start_from({spot: 7}) == [f"the first number of the loop at {spot} 3→7"]
        assert not RANGES.start_from({spot: 7}) and RANGES.over(FOLLOWED) == ((spot, 7),)
        yield from "bc"

    names["items"] = items
    assert names["f"]() == [(3, "a"), (8, "b"), (9, "c")]


@pytest.mark.parametrize(
    "make", [lambda: Numbers.begin(range(5)), lambda: Items.over(iter("abcde"))]
)
@pytest.mark.parametrize("known", [False, True])
def test_turns_are_told_before_they_begin(
    make: Callable[[], Any], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may set the loop: to its third turn in its second one here."""
    loops, spot, told = Ranges(), Spot("f.py:<module>", 1), list[int]()

    def before(at: Spot) -> None:
        told.append(loops.turns(at))
        if told[-1] == 1:
            assert loops.come_to(at, 3)

    monkeypatch.setattr(RANGES, "before_turn", before)
    monkeypatch.setattr(RANGES, "heard", loops.heard)
    monkeypatch.setattr(RANGES, "tells_all", not known)
    if known:
        first = make()
        loops.note(CODE, 1, first)
        assert next(first) in (0, "a") and not told
        assert loops.tell(CODE, 1) and not loops.tell(CODE, 1) and loops.heard == {spot}
    loops.tells_all = not known
    loop = make()
    loops.note(CODE, 1, loop)
    assert [*loop] in ([0, 3, 4], ["a", "d", "e"])
    assert told == [0, 1, 4, 5], "the last one finds the end"
    assert loops.current({spot.name}) in ((), ((spot, 4),))
    del loop
    assert loops.turns(spot) == 0 and not loops.come_to(spot, 0)
    later = make()
    loops.note(CODE, 1, later)
    monkeypatch.setattr(RANGES, "tells_all", False)
    assert [*later] and bool(told[4:]) == known, "none is told of once nobody is to join at turns"


ENDS = """
def ends(steps, at, generator):
    for _ in range(3): steps(1)
    at("the end")
    for _ in [*"ab"][:]:
        steps(1)
        break
    at("a break")
    def returns():
        while True:
            steps(1)
            if generator is not None: return at("its value")
    returns()
    at("a return")
    n = 0
    while n < 2:
        steps(1)
        n += 1
    at("a condition")
    try:
        for x in iter("ab"): steps(1), int(x)
    except ValueError: at("an error")
    for _ in range(2): at("no step")
    next(generator)
    steps(1)
    generator.close()
    at("a generator that is closed")

def generator(at):
    for x in range(9): yield at(x)
"""


def test_a_loop_around_steps_is_told_of_once_it_has_ended_or_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, told = run(tmp_path / "script.py", ENDS), list[Any]()
    monkeypatch.setattr(RANGES, "ended", told.append)
    monkeypatch.setattr(RANGES, "steps", 7)

    def steps(by: int) -> None:
        RANGES.steps += by

    names["ends"](steps, told.append, names["generator"](told.append))
    assert told == [
        *(3, "the end", 1, "a break", "its value", 1, "a return", 2, "a condition"),
        *(1, "an error", "no step", "no step", 0, "a generator that is closed"),
    ]


AT_END = """
import gc

from ftrun.inject.zero_edit.counting import RANGES, follow

def numbers():
    for number in follow(range(3)):
        yield number

RANGES.is_on = True
gc.set_threshold(0)
left = [numbers()]
next(left[0])
left.append(left)
del left
"""


def test_a_generator_that_is_left_at_the_scripts_end_says_nothing() -> None:
    """Seen: an error of a callback, because no frame was left, after the script's last line."""
    ended = subprocess.run(
        [sys.executable, "-c", AT_END], capture_output=True, text=True, timeout=60, check=True
    )
    assert not ended.stderr


def test_loops_over_anything_do_not_end_where_they_stand() -> None:
    loops, loop = Ranges(), Items.over(iter("ab"))
    loops.note(CODE, 1, loop)
    loops.end(lambda spot: True)
    assert not loops.one_ends() and [*loop] == ["a", "b"]
    assert not loops.knows(Spot("f.py:<module>", 1))


def test_a_generator_that_runs_or_goes_over_two_ranges_is_not_followed() -> None:
    loops = Ranges()

    def both() -> Iterator[Any]:
        yield loops.current({"f.py:<module>"})
        for one in range(2):
            yield loops.current({"f.py:<module>"})
            for _other in range(2):
                yield one

    generator = both()
    over = Items.over(generator)
    loops.note(CODE, 1, over)
    assert next(over) == next(over) == ()
    assert [number for _, number in loops.current({"f.py:<module>"})] == [0]
    next(over)
    assert loops.current({"f.py:<module>"}) == ()
    del over
    assert sys.getrefcount(generator) <= 2, "nobody else holds it"


def _plain_bar() -> Callable[[range], Iterator[int]]:
    """As tqdm: a package's, whose own loops are not followed."""
    found: dict[str, Any] = {}
    code = "def bar(numbers):\n for number in numbers:\n  yield number\n"
    exec(compile(code, "/usr/site-packages/bar.py", "exec"), found)
    made: Callable[[range], Iterator[int]] = found["bar"]
    return made


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("turns", [0, 1, 4])
def test_a_progress_bar_goes_over_its_predecessors_range(before: int, turns: int) -> None:
    theirs = range(10, 20)
    loop = Items.over(_plain_bar()(range(10)))
    taken = [next(loop) for _ in range(before)]
    assert taken == list(range(before))
    loop.goes_over(theirs)
    if turns >= before:
        assert loop.come_to(turns)
    assert list(loop) == list(theirs[max(before, turns) :])
    assert loop.span() == theirs


@pytest.mark.parametrize("number", [10, 13, 19])
def test_a_progress_bar_around_others_goes_on_after_a_number(number: int) -> None:
    theirs = range(10, 20)
    loop = Items.over(_plain_bar()(range(10)))
    assert next(loop) == 0
    assert loop.go_on_after(number, theirs)
    assert not loop.go_on_after(number, range(5)) and not loop.go_on_after(9, theirs)
    assert list(loop) == list(range(number + 1, 20))


def test_what_is_no_number_of_its_range_stays() -> None:
    def pairs() -> Iterator[tuple[int, int]]:
        for number in range(3):
            yield number, number

    loop = Items.over(pairs())
    loop.goes_over(range(5, 8))
    assert list(loop) == [(0, 0), (1, 1), (2, 2)]
