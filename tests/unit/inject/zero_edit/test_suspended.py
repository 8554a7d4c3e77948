"""A replacement's generators come to where its predecessor's stood."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit import suspended
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.frames import HeldFrame, spot_of
from ftrun.inject.zero_edit.suspended import Suspended, come_to
from ftrun.inject.zero_edit.values.walk import Walk, frames_of
from ftrun.inject.zero_edit.values.writing import write_values
from tests.unit.inject.zero_edit.followed import run

SCRIPT = """
def rows(data):
    seen = 0
    for epoch in range(9):
        yield f"epoch {epoch}"
        for row in list(data):
            seen += row
            yield row, seen

def few():
    yield 1

source, other = rows([3, 1, 2]), few()
pairs = zip(rows("ab"), range(9))
"""


@pytest.fixture(autouse=True)
def _is_off() -> Iterator[None]:
    yield
    RANGES.is_on = False


def held_by(names: dict[str, Any], *variables: str) -> dict[tuple[str, str], Any]:
    """What a walk finds in these variables."""
    code = compile("yes", names["__file__"], "exec")

    class Frame:
        f_code, f_lineno = code, 1
        f_locals = {name: names[name] for name in variables}  # noqa: RUF012

    walk = Walk()
    walk.reaches_all = True
    frame: Any = Frame()
    return walk.held(walk.walk([frame]))


def test_it_is_asked_until_it_stands_at_the_same_yield(tmp_path: Path) -> None:
    names = run(tmp_path / "a.py", SCRIPT)
    rest = [next(names["source"]) for _ in range(7)][-1:]
    held = held_by(names, "source", "other")
    theirs = suspended.look(held)
    ranges = RANGES.current({"a.py:rows"})
    (frame,) = (x for x in frames_of(held) if spot_of(x).name == "a.py:rows@source")
    seen = frame.f_locals["seen"]
    rest += [next(names["source"]) for _ in range(5)]
    RANGES.end(lambda spot: True)

    again = run(tmp_path / "a.py", SCRIPT)
    own = held_by(again, "source", "other")
    assert come_to(own, theirs) == []
    assert all(RANGES.set(*x) for x in ranges)
    waiting: Any = HeldFrame(own["a.py:<module>", "source"].gi_frame, "source")
    write_values(waiting, {"seen": seen})
    assert [next(again["source"]) for _ in range(5)] == rest[1:]
    assert next(again["other"]) == 1


def test_what_cannot_be_brought_there_is_named(tmp_path: Path) -> None:
    names = run(tmp_path / "a.py", SCRIPT)
    held = held_by(names, "other")
    (other,) = suspended.look(held)
    assert other[:4] == ("a.py:<module>", "other", "a.py:few", other.at)
    lost = other._replace(path="gone")
    never = other._replace(at=10_000)
    alike = other._replace(is_one=False)
    words = "the place of the generator {} of a.py:few"
    given = [lost, never, alike, other._replace(draws=True, at=10_000)]
    assert come_to(held, given) == [words.format(x) for x in ("gone", "other", "other")]


def test_one_that_is_over_is_ended(tmp_path: Path) -> None:
    names = run(tmp_path / "a.py", SCRIPT)
    list(names["other"])
    (over,) = suspended.look(held_by(names, "other"))
    assert over.at == suspended.OVER
    again = held_by(run(tmp_path / "a.py", SCRIPT), "other")
    assert come_to(again, [over]) == []
    assert list(next(iter(again.values()))) == []


def test_one_in_zip_is_found(tmp_path: Path) -> None:
    names = run(tmp_path / "a.py", SCRIPT)
    next(names["pairs"])
    (found,) = suspended.look(held_by(names, "pairs"))
    assert isinstance(found, Suspended) and found.path.startswith("pairs(")
    assert found.function == "a.py:rows" and found.is_one


def test_a_replica_that_heals_names_those_that_its_peers_have_asked(tmp_path: Path) -> None:
    names = run(tmp_path / "a.py", SCRIPT)
    next(names["source"])
    theirs = suspended.look(held_by(names, "source", "other"))
    again = run(tmp_path / "a.py", SCRIPT)
    own = held_by(again, "source", "other")
    assert suspended.elsewhere(own, theirs) == ["the place of the generator source of a.py:rows"]
    assert suspended.elsewhere(own, [x._replace(draws=True) for x in theirs]) == []
    assert next(again["source"]) == "epoch 0", "it has not been asked"
    assert suspended.elsewhere(own, theirs) == []
