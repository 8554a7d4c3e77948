"""What a worker has left is what it held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit.frames import Spot
from ftrun.inject.zero_edit.values.histories import Copy
from ftrun.inject.zero_edit.values.journal import Journal
from ftrun.inject.zero_edit.values.kinds import is_container, unpacked
from ftrun.inject.zero_edit.values.legacy import Left, Legacy, left_at

F = "train.py:main"
LOOP = ((Spot(F, 4), 2),)


def copied(path: str, start: int, length: int, values: list[Any]) -> dict[str, dict[str, Any]]:
    """A container that had ``start`` of its values before."""
    return {F: {path: Copy(list, length, values, start)}}


def lists_at(path: Path) -> dict[str, object]:
    left = left_at(path, 10_000)
    assert left is not None
    return lists_in(left)


def lists_in(left: Left) -> dict[str, object]:
    found = left.values.get(F, {})
    return {path: unpacked(x) for path, (x, _) in found.items() if is_container(x)}


def test_values_and_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "left"
    assert left_at(path, 10_000) is None
    worker = Legacy(path)
    worker.begin("life", {F: {"best": (float("inf"), 0)}}, LOOP)
    assert worker.add(3, {F: {"best": 0.5, "name": "ä"}}, LOOP)
    assert worker.add(4, {"train.py:epoch": {"i": 1}}, ((Spot(F, 4), 3),))
    left = left_at(path, 10_000)
    assert left is not None and left.life == "life"
    assert left.values == {F: {"best": (0.5, 3), "name": ("ä", 3)}, "train.py:epoch": {"i": (1, 4)}}
    assert left.ranges == {Spot(F, 4): 3}


def test_values_as_they_were_at_an_earlier_step(tmp_path: Path) -> None:
    """Seen: a successor went through the last two steps again, with the counters after them."""
    worker, path = Legacy(tmp_path / "left"), tmp_path / "left"
    log = Copy(list, 1, [1])
    worker.begin("life", {F: {"old": (1, 2), "new": (5, 7), "log": (log, 3)}}, LOOP)
    values: list[object] = [1, 2, 3]
    worker.add(5, {F: {"steps": 5, **copied("log", 1, 2, values)[F]}}, LOOP)
    worker.add(7, {F: {"steps": 7, "new": 5, **copied("log", 2, 3, values)[F]}}, ())
    left = left_at(path, 6)
    assert left is not None
    compared = left.compared()[F]
    assert compared.pop("log (digest)").startswith("2 ")
    assert compared == {"old": 1, "steps": 5} and left.values[F]["steps"] == (5, 5)
    assert lists_in(left) == {"log": [1, 2]}
    assert left.ranges == dict(LOOP) and left.step == 5


def test_the_values_with_which_a_file_begins_are_those_of_their_step(tmp_path: Path) -> None:
    """Seen: what differed between ranks since the second place of all was no rank's own."""
    worker, path = Legacy(tmp_path / "left"), tmp_path / "left"
    worker.begin("life", {F: {"best": (0.5, 4)}}, LOOP, 4)
    worker.add(6, {F: {"best": 0.2}}, LOOP)
    left = left_at(path, 6)
    assert left is not None and left.noted == {4, 6}


def test_what_is_left_between_steps_is_no_note_of_the_step_that_begins(tmp_path: Path) -> None:
    """An evaluation may change more before: only then a peer's values are of the same moment."""
    worker, path = Legacy(tmp_path / "left"), tmp_path / "left"
    worker.begin("life", {F: {"best": (0.0, 0)}}, LOOP)
    worker.add(3, {F: {"seen": 1}}, LOOP, early_at=7)
    left = left_at(path, 3)
    assert left is not None and left.values[F]["seen"] == (1, 3) and not left.noted
    assert left.early_at == 7  # only what a peer has at the same draw is of the same moment
    worker.add(3, {}, LOOP)
    left = left_at(path, 3)
    assert left is not None and (left.noted, left.early_at) == ({3}, 0)
    worker.add(4, {F: {"seen": 2}}, LOOP, early_at=7)  # the draw that finds the end of an epoch
    worker.add(4, {}, LOOP, early_at=8)  # that of the next one's first batch
    left = left_at(path, 4)
    assert left is not None and (left.noted, left.early_at) == ({3}, 8)


@pytest.mark.parametrize("is_told", [True, False])
def test_what_was_left_at_a_later_draw_of_the_step_is_done_again(
    tmp_path: Path, is_told: bool
) -> None:
    """Seen: a list that each step makes anew had what its predecessor put into it after its first
    draw, and then the newcomer put it there once more."""
    worker, path = Legacy(tmp_path / "left"), tmp_path / "left"
    worker.begin("life", {F: {"log": (Copy(list, 0, []), 0)}}, LOOP)
    worker.add(3, copied("log", 0, 1, [0.5]), LOOP)
    worker.add(4, copied("log", 0, 0, []) if is_told else {}, LOOP, early_at=7)
    worker.add(4, copied("log", 0, 1, [1.5]), (), early_at=8)
    found = [left_at(path, until, at) for until, at in ((4, 7), (4, 8), (4, 0), (5, 7))]
    logs = [lists_in(left)["log"] for left in found if left is not None]
    assert logs == [[] if is_told else [0.5], [1.5], [1.5], [1.5]]
    assert [left and left.early_at for left in found] == [7 if is_told else 0, 8, 8, 8]
    worker.add(4, copied("log", 0, 0, []), LOOP)  # its place: what was there at the first draw
    left = left_at(path, 4, 7)
    assert left is not None and lists_in(left) == {"log": []} and left.ranges == dict(LOOP)


def test_lists_that_grow(tmp_path: Path) -> None:
    worker, path = Legacy(tmp_path / "left"), tmp_path / "left"
    values: list[object] = [1, 2]
    worker.begin("life", {F: {"log": (Copy(list, 2, list(values)), 0)}}, ())
    values += [(3, 0.5), {"a": 1}]
    assert worker.add(1, copied("log", 2, 3, values), ())
    assert lists_at(path) == {"log": [1, 2, (3, 0.5)]}
    assert worker.add(2, copied("log", 3, 4, values), ())
    assert lists_at(path) == {"log": values}
    assert worker.add(3, copied("log", 0, 1, [9]), ())
    assert lists_at(path) == {"log": [9]}


def test_a_full_file_asks_for_a_beginning(tmp_path: Path) -> None:
    worker, path = Legacy(tmp_path / "left"), tmp_path / "left"
    worker.begin("life", {}, ())
    step = 0
    while worker.add(step, {F: {"n": step, "text": "x" * 1000}}, ()):
        step += 1
    left = left_at(path, 10_000)
    assert left is not None and left.values[F]["n"] == (step - 1, step - 1)
    large = [0.123456789] * 40_000
    lists = {"small": (Copy(list, 1, [1]), 5), "large": (Copy(list, 40_000, large), 5)}
    worker.begin("life", {F: {"n": (step, step), **lists}}, ())
    assert lists_at(path) == {"small": [1]}
    assert worker.add(step, copied("large", 40_000, 40_001, [*large, 1]), ())
    assert lists_at(path) == {"small": [1]}


def test_a_disk_that_is_full_is_no_failure(tmp_path: Path) -> None:
    worker = Legacy(tmp_path / "gone" / "left")
    worker.begin("life", {}, ())
    assert worker.add(1, {F: {"n": 1}}, ())


def test_a_strange_file_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "left"
    strange: list[Any] = [[], {}, "x", {"life": 1, "known": 2, "ranges": []}]
    for entry in strange:
        Journal(path).begin(entry)
        assert left_at(path, 10_000) is None
    assert unpacked(3) == 3
