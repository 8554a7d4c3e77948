"""Schedules of silent corruption in one group, and proof that they would find bugs in each rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftrun.core.agent.replacing import Replacing
from ftrun.core.agent.slot_state import SlotState
from ftrun.core.failure_kinds import HEAL
from ftrun.core.replay.alike import Unlike, unlike
from ftrun.core.replay.settling import common
from tests.sim.altered import Known, Rules, World
from tests.sim.violation import Violation

SCHEDULES, TRIES = 300, 200


def most_are_odd(ranks: Known) -> Unlike | None:
    """The ones that most are like are odd."""
    found = unlike(ranks)
    if found is None or not found.odd:
        return found
    return replace(found, odd=tuple(rank for rank in found.mates if rank not in found.odd))


def half_is_most(ranks: Known) -> Unlike | None:
    """Of two against two the last one is odd."""
    found = unlike(ranks)
    return found and replace(found, odd=found.odd or found.mates[-1:])


def newest(ranks: Known) -> int | None:
    """All resume from a step at which they differ."""
    return common([[replace(x, mark=None) for x in own] for own in ranks])


class HealsAlone(Replacing):
    """The odd one alone is replaced, from its own memory."""

    def takes(self, slot: SlotState, end: Any) -> bool:
        slot.corrupted = None
        return super().takes(slot, end)


class StaysCorrupted(Replacing):
    """Its replacement that dies before it has joined counts as corrupted too."""

    def _begin_again(self, slot: SlotState, event: Any) -> None:
        before = slot.corrupted
        super()._begin_again(slot, event)
        slot.corrupted = before

    def _mended(self, slot: SlotState, event: Any, after_s: float) -> None:
        super()._mended(slot, event, after_s)
        slot.corrupted = None


class StaysSettled(Replacing):
    """A second one is never killed."""

    def _begin_again(self, slot: SlotState, event: Any) -> None:
        before = slot.corrupted
        super()._begin_again(slot, event)
        slot.corrupted = before and (-1, "")


class SecondIsTheScripts(Replacing):
    """Another one that is odd before all have agreed again is so by the script."""

    def unlike(self, incarnation: str, found: Unlike) -> None:
        slot = self._slots.of_incarnation(incarnation)
        if slot is not None and found.agreed <= slot.agreed:
            slot.odd = found.odd
        super().unlike(incarnation, found)


class NeverTheScripts(Replacing):
    """All resume for ever from a step after which the script trains them unlike."""

    def unlike(self, incarnation: str, found: Unlike) -> None:
        slot = self._slots.of_incarnation(incarnation)
        if slot is not None:
            slot.agreed = -1
        super().unlike(incarnation, found)


class AlwaysHeals(Replacing):
    """Whatever --on-corruption says."""

    def unlike(self, incarnation: str, found: Unlike) -> None:
        self._settings = replace(self._settings, on_corruption=HEAL)
        super().unlike(incarnation, found)


class NeverHeals(Replacing):
    """A line is all that follows."""

    def unlike(self, incarnation: str, found: Unlike) -> None:
        super().unlike(incarnation, replace(found, agreed=-1))


def test_all_end_as_undisturbed_or_it_is_told_why_not() -> None:
    worlds = [World(seed) for seed in range(SCHEDULES)]
    for world in worlds:
        world.run()
    assert all(sum(getattr(x, name) for x in worlds) for name in ("resumed", "again", "told"))
    assert any(world.stopped for world in worlds)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(unlike=most_are_odd),
        Rules(unlike=half_is_most),
        Rules(common=newest),
        Rules(waits=False),
        Rules(replacing=HealsAlone),
        Rules(replacing=StaysCorrupted),
        Rules(replacing=StaysSettled),
        Rules(replacing=SecondIsTheScripts),
        Rules(replacing=NeverTheScripts),
        Rules(replacing=AlwaysHeals),
        Rules(replacing=NeverHeals),
    ],
    ids=lambda x: f"{x.unlike.__name__} {x.common.__name__} {x.waits} {x.replacing.__name__}",
)
def test_planted_bugs_are_found(rules: Rules) -> None:
    with pytest.raises(Violation):
        for seed in range(TRIES):
            World(seed, rules).run()
