"""Schedules of one team's nodes, and proof that they would find bugs."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.core.teams.gathering import Gathering
from ftrun.core.teams.nodes import Node, TeamFormed
from tests.sim.teams import World
from tests.sim.violation import Violation

SCHEDULES = 400
TRIES = 200


class AlikeRanks(Gathering):
    """Two nodes of one rank are let in."""

    def _why_not(self, node: Node) -> str:
        return ""


class NoSpare(Gathering):
    """A node that stands by is forgotten when it is wanted."""

    def _gone(self, node_id: str, reason: str, ago_s: float = 0.0) -> None:
        spares, self._spares = self._spares, []
        super()._gone(node_id, reason, ago_s)
        self._spares = [node for node in spares if node.node_id != node_id]


class GoesOn(Gathering):
    """The workers of another size go on as they are."""

    def _form(self) -> None:
        super()._form()
        formed = self._out.pop()
        assert isinstance(formed, TeamFormed)
        self._out.append(TeamFormed(formed.nodes))


class Shuffles(Gathering):
    """A node that comes moves those that stay."""

    def _seat(self, node: Node) -> None:
        nodes = [*self.members, node]
        self._places = dict(enumerate(nodes))


class Forever(Gathering):
    """Nobody gives up."""

    def _wait(self) -> None:
        pass


class Remains(Gathering):
    """A lost node keeps its place."""

    def _gone(self, node_id: str, reason: str, ago_s: float = 0.0) -> None:
        places = dict(self._places)
        super()._gone(node_id, reason, ago_s)
        self._places = places


class NeverCloses(Gathering):
    """The last call has no end."""

    def _judge(self) -> None:
        self._closes_at = None
        super()._judge()


class Twins(Gathering):
    """A node that was cut off and comes again is another one."""

    def _formers(self, node: Node) -> list[Node]:
        return []


class Impostor(Gathering):
    """A node takes the place of one like it, whose agent is heard."""

    def _formers(self, node: Node) -> list[Node]:
        return [one for one in self._others() if (one.name, one.rank) == (node.name, node.rank)]


class Hasty(Gathering):
    """A host that was silent for a moment is lost."""

    def _lose_silent(self) -> None:
        self._silent = dict.fromkeys(self._silent, self._now)
        super()._lose_silent()


class Patient(Gathering):
    """An agent that is stopped keeps its node's place."""

    def _lose_unheard(self) -> None:
        self._looked_at = self._now


MUTANTS: dict[str, type[Gathering]] = {
    kind.__name__: kind
    for kind in (
        AlikeRanks,
        NoSpare,
        GoesOn,
        Shuffles,
        Forever,
        Remains,
        NeverCloses,
        Twins,
        Impostor,
        Hasty,
        Patient,
    )
}


def test_a_team_is_what_the_dumb_count_says() -> None:
    seen: dict[str, Any] = {"formed": 0, "gave_up": 0, "again": 0, "cut": 0}
    for seed in range(SCHEDULES):
        world = World(seed)
        world.run()
        seen["formed"] += world.formed
        seen["gave_up"] += world.gave_up
        seen["again"] += world.again
        seen["cut"] += world.cut
    assert seen["formed"] > SCHEDULES
    assert min(seen["gave_up"], seen["again"], seen["cut"]) > 10, seen


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    with pytest.raises((Violation, AssertionError)):
        for seed in range(TRIES):
            World(seed, MUTANTS[name]).run()
