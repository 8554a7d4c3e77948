"""Schedules of a group that recovers without replicas, and proof that they would find bugs."""

from __future__ import annotations

import pytest

from ftrun.core.replay.falls import Fall
from tests.sim.replay.mutants import MUTANTS, world
from tests.sim.violation import Violation

SCHEDULES = 300
FOUND = (4, 7, 183, 193, 282, 438, 2481, 4469, 4649, 5607)
"""Seeds that once found a fault in a rule."""


def test_a_recovery_ends_as_an_undisturbed_run_or_falls_for_a_reason() -> None:
    mends, falls = 0, set[Fall | None]()
    for seed in (*range(SCHEDULES), *FOUND):
        one = world(seed)
        one.run()
        mends += one.mends
        falls.add(one.reason)
    assert mends > SCHEDULES / 2
    assert {None, Fall.NO_GENERATION} < falls


SEEDS: dict[str, int] = {}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    with pytest.raises((Violation, AssertionError)):
        world(SEEDS[name], name).run()
