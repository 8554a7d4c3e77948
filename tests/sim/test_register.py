"""Schedules of several lighthouses at one register, and proof that they would find bugs."""

from __future__ import annotations

import pytest

from tests.sim.register import World
from tests.sim.register_mutants import MUTANTS
from tests.sim.violation import Violation

SCHEDULES = 200
SCHEDULES_SLOW = 5_000
FOUND_AT = {
    "counts its deadline from the answer": 7,
    "takes over at half of the silence": 43,
    "acts after giving the register back": 218,
    "an agent follows an old epoch": 23,
}
"""The seeds to begin with, of bugs that the first few do not find."""
TRIES = 20


def explored(seeds: range) -> World:
    """The last world; every one has worked, and faults have come."""
    for seed in seeds:
        world = World(seed)
        world.run()
        assert world.leaders and world.sent
    return world


def test_one_leads_whatever_happens() -> None:
    explored(range(SCHEDULES))


@pytest.mark.slow
def test_one_leads_in_many_schedules() -> None:
    explored(range(SCHEDULES, SCHEDULES + SCHEDULES_SLOW))


def test_a_schedule_is_its_seed() -> None:
    first, second = explored(range(3, 4)), explored(range(3, 4))
    assert first.story.lines == second.story.lines


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    first = FOUND_AT.get(name, 0)
    with pytest.raises(Violation):
        for seed in range(first, first + TRIES):
            World(seed, **MUTANTS[name]).run()
