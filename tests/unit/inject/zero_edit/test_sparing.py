"""Which steps of a script are noted."""

from __future__ import annotations

import pytest

from ftrun.base import clock
from ftrun.inject.zero_edit.sparing import SHARE, Sparing


class Script:
    """Draws once in each step of ``step_s``, which takes noting ``cost_s``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.needs = False
        self.at = 0
        self.sparing = Sparing(lambda: self.needs, lambda: self.at)
        monkeypatch.setattr(clock, "now", lambda: self.now)

    def step(self, step_s: float, cost_s: float, *, must: bool = False) -> bool:
        """Whether it was noted."""
        is_noted = self.sparing.notes(must=must)
        if is_noted:
            self.sparing.took_s += cost_s / 2
            self.sparing.took_s += cost_s / 2
        self.now += step_s
        self.at += 1
        self.sparing.is_noted = None
        return is_noted


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


def test_short_steps_are_noted_so_seldom_that_it_takes_its_share(script: Script) -> None:
    noted = sum(script.step(0.005, 0.0002) for _ in range(4_000))
    assert SHARE * 20 / 2 <= noted * 0.0002 <= SHARE * 20 * 1.05


def test_replicas_note_the_same_steps_although_each_has_a_clock_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = []
    for step_s, cost_s in ((0.005, 0.0006), (0.0052, 0.00061), (0.0048, 0.00058)):
        script = Script(monkeypatch)
        noted.append({at for at in range(4_000) if script.step(step_s, cost_s)})
    assert noted[0] == noted[1] == noted[2] and len(noted[0]) > 50


def test_long_steps_are_all_noted(script: Script) -> None:
    assert all(script.step(0.15, 0.0002) for _ in range(20))


def test_none_is_passed_while_a_place_is_needed(script: Script) -> None:
    assert script.step(0.005, 0.0002)
    assert not script.step(0.005, 0.0002)
    script.needs = True
    assert all(script.step(0.005, 0.0002) for _ in range(20))
    script.needs = False
    assert not script.step(0.005, 0.0002)


def test_the_first_draw_decides_for_its_step_but_one_that_must_be_noted_is(script: Script) -> None:
    assert script.step(0.005, 0.0002)
    assert not script.sparing.notes()
    script.needs = True
    assert not script.sparing.notes()
    assert script.sparing.notes(must=True) and script.sparing.notes()
    script.sparing.is_noted = None
    assert script.sparing.notes()
