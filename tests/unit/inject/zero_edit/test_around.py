"""Loops of a script that nobody can set are found by the values of their variables."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

from ftrun.inject.zero_edit.around import (
    collecting,
    developed,
    handed_on,
    holds_both,
    read_later,
    unlike,
)
from ftrun.inject.zero_edit.frames import Spot, spot_of, spots_of
from ftrun.inject.zero_edit.values.walk import Walk
from tests.unit.inject.zero_edit.followed import run

SCRIPT = """
from itertools import count

def phases(look):
    for epoch in range(2):
        for phase in ["train", "val"]:
            look()

def listed(look, epochs=[0, 1]):
    for epoch in epochs:
        look()

def zipped(look):
    for epoch, rate in zip(range(2), (0.1, 0.2)):
        look()

def counted(look):
    for epoch in count():
        look()
        if epoch == 1:
            break

def called(look):
    for epoch in reversed([1, 0]):
        look()

def ranged(look, epochs=range(2)):
    for epoch in epochs:
        look()

def listed_inside(look):
    return [look() for epoch in [0, 1]]

def generated(look, epochs=(0, 1)):
    return list(
        look()
        for epoch in epochs
    )

def ranged_inside(look):
    return [look() for epoch in range(2)]

def after(look):
    for epoch in [0, 1]:
        pass
    look()

def header(look):
    for epoch in (look() for _ in [0, 1]):
        pass
"""


def _seen(tmp_path: Path, function: str, epoch: int) -> list[str]:
    """What is unlike at the first look, if the peers are at ``epoch``."""
    path = tmp_path / "script.py"
    names = run(path, SCRIPT)
    found: list[list[str]] = []

    def look() -> None:
        frame: FrameType | None = sys._getframe(1)
        frames = []
        while frame is not None and frame.f_code.co_filename == str(path):
            frames.append(frame)
            frame = frame.f_back
        here = {spot_of(x).name: Walk().walk([x])[0].values for x in frames}
        theirs = {name: {"epoch": epoch} for name in here} if epoch else {}
        found.append([loop.words for loop in unlike(frames, theirs, here)])

    names[function](look)
    return found[0]


@pytest.mark.parametrize("function", ["listed", "zipped", "called", "listed_inside", "generated"])
def test_a_loop_that_cannot_be_set_is_named_if_its_peers_are_elsewhere(
    tmp_path: Path, function: str
) -> None:
    (problem,) = _seen(tmp_path, function, 1)
    assert problem.startswith("its loop at script.py:") and "epoch is 0 here and 1 there" in problem
    assert _seen(tmp_path, function, 0) == []


def test_what_a_comprehension_collects_is_named() -> None:
    found = [collecting([sys._getframe()]) for _ in range(1)]
    assert found == [
        [f"what the comprehension at test_around.py:{_line_of('found = [coll')} has collected"]
    ]
    assert collecting([sys._getframe()]) == []


def _line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.strip().startswith(text))


@pytest.mark.parametrize(
    "function", ["phases", "counted", "ranged", "after", "header", "ranged_inside"]
)
def test_loops_that_are_set_or_over_or_stand_alike_are_not(tmp_path: Path, function: str) -> None:
    assert _seen(tmp_path, function, 1) == []


ALTERNATE = """
def train(look):
    for batch in [0]:
        step(look)
        print()
    for batch in [0]:
        print()

def step(look):
    look()
"""


def test_peers_at_another_line_of_a_loop_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    names = run(path, ALTERNATE)
    found: list[tuple[bool, ...]] = []

    def look() -> None:
        frames = [*map(sys._getframe, (1, 2, 3))]
        step, train, outer = spots_of(frames)
        function = train.name

        def there(*inner: Spot) -> bool:
            return holds_both(frames, [*inner, outer])

        found.append(
            (
                there(Spot("inner", 9), Spot(function, 5)),
                there(Spot(function, 7)),
                there(Spot("another", 5)),
                there(step, train),
                there(Spot(step.name, 9), train),
            )
        )

    names["train"](look)
    assert found == [(True, False, False, False, False)]


TURNS = """
x, y = 1, 2
for step in range(3):
    for part in range(2):
        z = f(x, y)
        x, y = g()
    with z as b:
        b
    try:
        q = 1
    except Error:
        q
    w = [b for b in y]
    for k in w:
        k
"""


def test_what_a_turn_hands_on_is_read_before_it_is_set(tmp_path: Path) -> None:
    path = tmp_path / "turns.py"
    path.write_text(TURNS)
    code = compile(TURNS, str(path), "exec")
    assert handed_on(code, 3) == {"x", "y"}
    assert handed_on(code, 2) == handed_on(code, 16) - {"x", "y"} == set()


SELDOM = """
while steps:
    if steps % 3 == 0:
        mean, extra = f(), 1
    elif steps:
        both = 1
    else:
        both = mean
    if steps == 2:
        total = total + mean
    g(both, total)
"""


def test_what_some_turns_alone_set_is_handed_on_too(tmp_path: Path) -> None:
    """Seen in a script that computes a penalty in each sixteenth turn, and logs it in each."""
    path = tmp_path / "seldom.py"
    path.write_text(SELDOM)
    code = compile(SELDOM, str(path), "exec")
    assert handed_on(code, 3) == {"total"}
    assert handed_on(code, 3, seldom=True) == {"total", "mean", "both"}


ADDED = """
for x in loader:
    x = x.to(device)
    loss = f(x)
    total += loss
    fresh = 0
    fresh += loss
    means = [0.9 * m + p for m, p in zip(means, model)]
    kept[0] += loss
"""


def test_what_is_added_to_is_read_first(tmp_path: Path) -> None:
    """``total += loss`` with a loss that has gradients began again at 0 in a replacement."""
    path = tmp_path / "added.py"
    path.write_text(ADDED)
    code = compile(ADDED, str(path), "exec")
    assert handed_on(code, 4) == developed(code, 4) == {"total", "means"}, "x is a batch"


WITHIN = """
for x in loader:
    lost = first(x)
    other = lost + 1
    with second(x):
        gained = third(other)
    kept = other = 2
    log(lost, gained, other, kept)
done(lost)
"""


def test_what_a_turn_has_set_and_reads_later_in_it(tmp_path: Path) -> None:
    path = tmp_path / "within.py"
    path.write_text(WITHIN)
    code = compile(WITHIN, str(path), "exec")
    assert read_later(code, 4) == {"lost"}
    assert read_later(code, 5) == {"lost", "other"}
    assert read_later(code, 6) == {"lost"}
    assert read_later(code, 7) == {"lost", "gained", "other"}
    assert read_later(code, 9) == set()
