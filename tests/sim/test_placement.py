"""Random lives of the nodes of several teams, a dumb second opinion, and planted bugs."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from ftrun.core.teams.nodes import Node, NodeCame, NodeGone
from ftrun.core.teams.placement import Placement, TeamDissolved, TeamPlaced
from tests.sim.violation import Violation, require

SCHEDULES = 300
EVENTS = 40
NODES_MAX = 9


def run(seed: int, kind: type[Placement] = Placement) -> int:
    """One schedule; returns how many teams were placed."""
    draws = random.Random(seed)
    teams, size = draws.randint(1, 3), draws.randint(1, 4)
    labels = draws.choice([[""], ["a", "b"], ["a", "b", "c"]])
    placement = kind(teams, size)
    alive: dict[str, Node] = {}
    standing: dict[int, tuple[Node, ...]] = {}
    before: dict[int, tuple[Node, ...]] = {}
    placed = 0
    for count in range(EVENTS):
        event: NodeCame | NodeGone
        if alive and (draws.random() < 0.4 or len(alive) == NODES_MAX):
            gone = alive.pop(draws.choice(sorted(alive)))
            event = NodeGone(gone.node_id, "it is gone")
        else:
            node = Node(f"id{count:02}", f"n{count}", "h", 1, None, draws.choice(labels))
            alive[node.node_id] = node
            event = NodeCame(node)
        for instruction in placement.handle(event):
            in_teams = {node for nodes in standing.values() for node in nodes}
            idle = [node for node in alive.values() if node not in in_teams]
            match instruction:
                case TeamDissolved(number, left, _):
                    lost = [node for node in standing.get(number, ()) if node.node_id not in alive]
                    require(bool(lost), "teams", f"{seed}: team {number} had lost nobody")
                    before[number] = standing.pop(number)
                    kept = tuple(node for node in before[number] if node not in lost)
                    require(left == kept, "teams", f"{seed}: others are left of it")
                case TeamPlaced(number, nodes):
                    placed += 1
                    require(number not in standing, "teams", f"{seed}: {number} stands already")
                    _judge(seed, nodes, idle, size, before.pop(number, ()))
                    standing[number] = nodes
        placement.check()
        for number, nodes in standing.items():
            is_whole = all(node.node_id in alive for node in nodes)
            require(is_whole, "teams", f"{seed}: team {number} has a lost node")
        expected = min(teams, len(alive) // size)
        require(len(standing) == expected, "teams", f"{seed}: {len(standing)}, not {expected}")
    return placed


def _judge(
    seed: int, nodes: tuple[Node, ...], idle: list[Node], size: int, before: tuple[Node, ...]
) -> None:
    """What is true of each choice, by trying all of them."""
    words = f"{seed}: {[(node.name, node.label) for node in nodes]}"
    require(len({*nodes}) == size and {*nodes} <= {*idle}, "teams", f"{words}: not idle")
    stay = [node for node in before if node in idle]
    for at, node in enumerate(before):
        require(node not in idle or nodes[at] == node, "teams", f"{words}: one has moved")
    if stay:
        return
    fewest = min(len({node.label for node in some}) for some in combinations(idle, size))
    require(len({node.label for node in nodes}) == fewest, "labels", f"{words}: on too many")
    if fewest > 1:
        return
    own = nodes[0].label
    suffice = [label for label in {x.label for x in idle} if _count(idle, label) >= size]
    least = min(_count(idle, label) for label in suffice)
    require(_count(idle, own) == least, "labels", f"{words}: a smaller label suffices")
    arrivals = sorted(int(node.node_id[2:]) for node in idle if node.label == own)
    taken = sorted(int(node.node_id[2:]) for node in nodes)
    at = arrivals.index(taken[0])
    require(arrivals[at : at + size] == taken, "order", f"{words}: they do not follow")


def _count(nodes: list[Node], label: str) -> int:
    return sum(node.label == label for node in nodes)


class Scattered(Placement):
    """Labels mean nothing."""

    def _choose(self, nodes, count):  # type: ignore[no-untyped-def]
        return list(nodes)[:count]


class Largest(Placement):
    """The label with the most room is used up first."""

    def _choose(self, nodes, count):  # type: ignore[no-untyped-def]
        nodes = list(nodes)
        name = max({x.label for x in nodes}, key=lambda label: _count(nodes, label))
        own = [x for x in nodes if x.label == name]
        return (own + [x for x in nodes if x.label != name])[:count]


class Keeps(Placement):
    """What is left of a team stays bound to it."""

    def _lost(self, event):  # type: ignore[no-untyped-def]
        out = super()._lost(event)
        for one in out:
            for node in one.idle if isinstance(one, TeamDissolved) else ():
                del self._idle[node.node_id]
        return out


class Moves(Placement):
    """A team that has lost a node is placed as if it had never been."""

    def _again(self, before):  # type: ignore[no-untyped-def]
        return super()._again(())


class Remains(Placement):
    """A lost node that was idle is placed."""

    def _lost(self, event):  # type: ignore[no-untyped-def]
        node = self._idle.get(event.node_id)
        out = super()._lost(event)
        if node is not None:
            self._idle[node.node_id] = node
            self._arrivals[node.node_id] = 0
        return out


MUTANTS = {kind.__name__: kind for kind in (Scattered, Largest, Keeps, Moves, Remains)}


def test_teams_are_where_trying_all_places_puts_them() -> None:
    placed = sum(run(seed) for seed in range(SCHEDULES))
    assert placed > SCHEDULES


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    with pytest.raises((Violation, AssertionError)):
        for seed in range(SCHEDULES):
            run(seed, MUTANTS[name])
