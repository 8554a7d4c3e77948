"""Random lives of nodes that copy their states to each other, and proof that bugs are found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from ftrun.core.replay.alike import Unlike
from ftrun.core.replay.copying import Copying, Had
from tests.sim.replay.nodes import Node, Order, World
from tests.sim.violation import Violation

SCHEDULES = 300


class PinsEarly(Copying):
    """One node's word is enough."""

    def has(self, node: str, had: Had, now: float) -> None:
        if had.copied is not None and had.copied == self.step:
            self._waits.clear()
        super().has(node, had, now)


class PinsWhatFailed(Copying):
    """A round that one node cannot carry out counts."""

    def has(self, node: str, had: Had, now: float) -> None:
        copied = self.step if had.has_failed else had.copied
        super().has(node, replace(had, copied=copied, has_failed=False), now)


class CountsTheLost(Copying):
    """What a lost node had."""

    def gone(self, node: str) -> None:
        pass


class ForgetsThePin(Copying):
    """When all go on from a step."""

    def restore(self, step: int, now: float, number: int = 0) -> dict[int, str]:
        sources = super().restore(step, now, number)
        self.pinned = None
        return sources


class OwnStatesOnly(Copying):
    """Copies do not count."""

    def _copies(self, node: str, rank: int) -> Collection[int]:
        return ()


class NeverAgain(Copying):
    """A round that has failed is the last one."""

    def _over(self, now: float) -> None:
        self._begins_at = now


class PinsAndResumesUnlike(Copying):
    """Whether workers differ or not."""

    def _are_alike(self, step: int) -> bool:
        return True


class ComparesEarly(Copying):
    """The nodes that have reported so far."""

    def unlike(self) -> Unlike | None:
        places = self.places
        self.places = {x: y for x, y in places.items() if x in self._had}
        found = super().unlike()
        self.places = places
        return found


class MostAreOdd(Copying):
    """Those are named that most are like."""

    def unlike(self) -> Unlike | None:
        found = super().unlike()
        if found is None:
            return None
        return replace(found, odd=tuple(x for x in found.mates if x not in found.odd))


class ComparesOldReports(Copying):
    """Of states that have been dropped since."""

    def restore(self, step: int, now: float, number: int = 0) -> dict[int, str]:
        return super().restore(step, now)


class CanAlwaysLose(Copying):
    """Any node is set aside, whatever the others have."""

    def can_lose(self, node: str, ranks: Collection[int]) -> bool:
        return True


class GivesUpThePin(Node):
    """A new round is enough."""

    def pinned(self, order: Order) -> set[int]:
        return {order.step}


class KeepsLaterCopies(Node):
    """Of steps that are made again."""

    def forgets(self) -> list[dict[int, dict[int, int]]]:
        return [self.own]


MUTANTS: dict[str, tuple[type[Copying], type[Node]]] = {
    **{
        kind.__name__: (kind, Node)
        for kind in (
            PinsEarly, PinsWhatFailed, CountsTheLost, ForgetsThePin, OwnStatesOnly, NeverAgain,
            PinsAndResumesUnlike, ComparesEarly, MostAreOdd, ComparesOldReports,
            CanAlwaysLose,
        )
    },
    **{kind.__name__: (Copying, kind) for kind in (GivesUpThePin, KeepsLaterCopies)},
}  # fmt: skip


def test_a_group_goes_on_from_one_state_that_is_not_older_than_what_is_pinned() -> None:
    worlds = [World(seed) for seed in range(SCHEDULES)]
    for world in worlds:
        world.run()
    assert sum(world.pins for world in worlds) > SCHEDULES
    assert sum(world.from_copies for world in worlds) > SCHEDULES / 3
    assert sum(world.odd for world in worlds) > sum(world.aside for world in worlds) > 5


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    copying, node = MUTANTS[name]
    with pytest.raises(Violation):
        for seed in range(SCHEDULES):
            World(seed, copying, node).run()
