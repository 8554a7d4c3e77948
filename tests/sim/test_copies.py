"""Random lives of nodes that copy their states to each other, and proof that bugs are found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

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

    def restore(self, step: int, now: float) -> dict[int, str]:
        sources = super().restore(step, now)
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


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    copying, node = MUTANTS[name]
    with pytest.raises(Violation):
        for seed in range(SCHEDULES):
            World(seed, copying, node).run()
