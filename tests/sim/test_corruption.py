"""Schedules of silent corruption, and proof that they would find bugs in each of its rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ftrun.core.lighthouse.divergence import Divergence
from ftrun.core.messages import Mark
from tests.sim.corruption import World
from tests.sim.violation import Violation

SCHEDULES, TRIES = 60, 30


class HealsMost(Divergence):
    """The ones that most are like are replaced."""

    def _corrupted(self, step: int, odd: list[str], right: list[str]) -> bool:
        return super()._corrupted(step, right, odd)

    def _is_witness(self, name: str) -> bool:
        return True


class TrustsNewcomers(Divergence):
    """One that may have healed from a corrupted one is a witness."""

    def _is_witness(self, name: str) -> bool:
        return bool(self._witnesses)


class OddOneStays(Divergence):
    """The odd one is found, trains on, and serves newcomers."""

    def _corrupted(self, step: int, odd: list[str], right: list[str]) -> bool:
        return False


class HalfIsMost(Divergence):
    """Of two against two the lower slots are right."""

    def _corrupted(self, step: int, odd: list[str], right: list[str]) -> bool:
        self._state.replace(odd, "is corrupted")
        return True


class SomeAgree(Divergence):
    """The first two that have shown the same have agreed for all."""

    def note(self, replica: Any, progress: Any) -> None:
        super().note(replica, progress)
        for mark in progress.marks:
            self._some_agree(mark)

    def _some_agree(self, mark: Mark) -> None:
        shown = self._members(self._states[mark.step, mark.lineage, False].shown)
        names = [name for name in shown if shown[name][1] == mark.parameters]
        if len(names) > 1:
            replicas = self._state.replicas
            self._witnesses = frozenset((name, replicas[name].incarnation) for name in names)


class EndsUnseen(Divergence):
    """The last comparison is that of the last hundredth step."""

    def ended(self, replica: Any, mark: Any) -> None:
        self._state.compared = mark.lineage


class EndsByOne(Divergence):
    """All may leave once the first one has shown its end."""

    def ended(self, replica: Any, mark: Any) -> None:
        super().ended(replica, mark)
        self._state.compared = mark.lineage


class LateIsJudged(Divergence):
    """What a script has changed after its loop counts as corruption."""

    def ended(self, replica: Any, mark: Any) -> None:
        super().ended(replica, dataclasses.replace(mark, is_late=False))


class EndsWell(Divergence):
    """A job whose replicas have ended unlike ends with 0."""

    def ended(self, replica: Any, mark: Any) -> None:
        super().ended(replica, mark)
        self._state.unlike = ""


def test_a_replica_is_healed_only_by_witnesses_that_are_most() -> None:
    worlds = [World(seed) for seed in range(SCHEDULES)]
    for world in worlds:
        world.run()
    assert any(world.healed for world in worlds) and any(world.undecided for world in worlds)
    assert any(world.ended_unlike for world in worlds)


@pytest.mark.parametrize(
    "kind",
    [
        HealsMost,
        TrustsNewcomers,
        OddOneStays,
        HalfIsMost,
        SomeAgree,
        EndsUnseen,
        EndsByOne,
        LateIsJudged,
        EndsWell,
    ],
    ids=lambda x: x.__name__,
)
def test_planted_bugs_are_found(kind: type[Divergence]) -> None:
    with pytest.raises(Violation):
        for seed in range(TRIES):
            World(seed, kind).run()
