"""All plain values that a script reaches."""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

import pytest

from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.survey import survey


class Slotted:
    __slots__ = ("n", "unset")

    def __init__(self) -> None:
        self.n = 3


class Counts:
    made = 7

    def __init__(self) -> None:
        self.slotted, self.many, self.again = Slotted(), [{"x": (1, 2.5)}], self
        self.rank = 1


def test_values_wherever_they_are() -> None:
    counts, plain, numbers = Counts(), "text", count()
    found = {path.partition(" ")[2]: x for path, x in survey([sys._getframe()]).items()}
    assert found == {
        "counts.slotted.n": 3,
        "counts.many[0][x][0]": 1,
        "counts.many[0][x][1]": 2.5,
        "Counts.made": 7,
        "plain": "text",
    }
    assert (counts, plain, numbers) is not None


def test_it_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRACKED", 10)
    table: dict[int, Any] = {x: [x] * 5 for x in range(100)}
    assert len(survey([sys._getframe()])) == 10
    assert table
