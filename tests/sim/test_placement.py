"""Random lives of the nodes of several teams, a dumb second opinion, and planted bugs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations

import pytest

from ftrun.core.teams.nodes import Node, NodeCame, NodeGone, Standing, TimerFired
from ftrun.core.teams.placement import (
    BACK_S,
    Placement,
    PlacementRules,
    TeamDissolved,
    TeamPlaced,
)
from tests.sim.violation import Violation, require

SCHEDULES = 300
EVENTS = 40
NODES_MAX = 9
JOIN_S = 60.0


@dataclass
class Life:
    """One schedule: who lives, and which teams stand in their own nodes' eyes."""

    seed: int
    kind: type[Placement]
    alive: dict[str, Node] = field(default_factory=dict)
    standing: dict[int, tuple[Node, ...]] = field(default_factory=dict)
    before: dict[int, tuple[Node, ...]] = field(default_factory=dict)
    placed: int = 0

    def run(self) -> int:
        """Returns how many teams were placed."""
        draws = random.Random(self.seed)
        self.teams, self.size = draws.randint(1, 3), draws.randint(1, 4)
        labels = draws.choice([[""], ["a", "b"], ["a", "b", "c"]])
        self.now = 0.0
        self.placement = self.kind(PlacementRules(self.teams, self.size), 0.0)
        for count in range(EVENTS):
            event: NodeCame | NodeGone
            if draws.random() < 0.05:
                self._another_lighthouse(draws)
                continue
            if self.alive and (draws.random() < 0.4 or len(self.alive) == NODES_MAX):
                gone = self.alive.pop(draws.choice(sorted(self.alive)))
                event = NodeGone(gone.node_id, "it is gone")
            else:
                node = Node(f"id{count:02}", f"n{count}", "h", 1, None, draws.choice(labels))
                self.alive[node.node_id] = node
                event = NodeCame(node)
            self._tell(event)
            self._count()
        return self.placed

    def _another_lighthouse(self, draws: random.Random) -> None:
        """All come to one that knows nothing, but for those that were lost meanwhile."""
        lost = [name for name in self.alive if draws.random() < 0.1]
        for name in lost:
            del self.alive[name]
        whole = {n: x for n, x in self.standing.items() if all(y.node_id in self.alive for y in x)}
        rules = PlacementRules(self.teams, self.size, NODES_MAX + 1, 0, JOIN_S)
        self.placement = self.kind(rules, self.now)
        self.before.clear()
        alive = self.standing.items()
        self.standing = {n: x for n, x in alive if any(y.node_id in self.alive for y in x)}
        for node in sorted(self.alive.values(), key=lambda x: x.node_id):
            number = next((n for n, x in self.standing.items() if node in x), None)
            known = None
            if number is not None:
                known = Standing(number, tuple(x.node_id for x in self.standing[number]))
            self._tell(NodeCame(node, known))
        require(len(whole) == len(self.standing) or bool(lost), "teams", "one was dissolved")
        self.now += JOIN_S if not self.standing else BACK_S
        self._tell(TimerFired())
        for number, nodes_ in whole.items():
            require(self.standing[number] == nodes_, "teams", f"{self.seed}: {number} has moved")
        self._count()

    def _tell(self, event: NodeCame | NodeGone | TimerFired) -> None:
        for instruction in self.placement.handle(event, self.now):
            in_teams = {node for nodes in self.standing.values() for node in nodes}
            idle = [node for node in self.alive.values() if node not in in_teams]
            match instruction:
                case TeamDissolved(number, left, _):
                    had = self.standing.get(number, ())
                    lost = [node for node in had if node.node_id not in self.alive]
                    require(bool(lost), "teams", f"{self.seed}: team {number} had lost nobody")
                    self.before[number] = self.standing.pop(number)
                    kept = tuple(node for node in self.before[number] if node not in lost)
                    require(left == kept, "teams", f"{self.seed}: others are left of it")
                case TeamPlaced(number, nodes):
                    self.placed += 1
                    is_new = number not in self.standing
                    require(is_new, "teams", f"{self.seed}: {number} stands already")
                    _judge(self.seed, nodes, idle, self.size, self.before.pop(number, ()))
                    self.standing[number] = nodes
        self.placement.check()

    def _count(self) -> None:
        for number, nodes in self.standing.items():
            is_whole = all(node.node_id in self.alive for node in nodes)
            require(is_whole, "teams", f"{self.seed}: team {number} has a lost node")
        expected = min(self.teams, len(self.alive) // self.size)
        require(
            len(self.standing) == expected, "teams", f"{self.seed}: {len(self.standing)} of them"
        )
        require(self.placement.teams == dict(sorted(self.standing.items())), "teams", "unlike")


def run(seed: int, kind: type[Placement] = Placement) -> int:
    """One schedule; returns how many teams were placed."""
    return Life(seed, kind).run()


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


def _take(free: dict[str, list[Node]], nodes: list[Node]) -> list[Node]:
    for node in nodes:
        free[node.label].remove(node)
    return nodes


class Scattered(Placement):
    """Labels mean nothing."""

    def _choose(self, free, count):  # type: ignore[no-untyped-def]
        return _take(free, [x for nodes in free.values() for x in nodes][-count:])


class Largest(Placement):
    """The label with the most room is used up first."""

    def _choose(self, free, count):  # type: ignore[no-untyped-def]
        name = max(free, key=lambda name: len(free[name]))
        others = [x for label, nodes in free.items() if label != name for x in nodes]
        return _take(free, (free[name] + others)[:count])


class Keeps(Placement):
    """What is left of a team stays bound to it."""

    def _dissolve(self, number, left, reason):  # type: ignore[no-untyped-def]
        super()._dissolve(number, left, reason)
        for node in left:
            del self._idle[node.node_id]


class Moves(Placement):
    """A team that has lost a node is placed as if it had never been."""

    def _again(self, before, free):  # type: ignore[no-untyped-def]
        return super()._again((), free)


class Remains(Placement):
    """A lost node that was idle is placed."""

    def _lost(self, node_id, reason):  # type: ignore[no-untyped-def]
        node = self._idle.get(node_id)
        super()._lost(node_id, reason)
        if node is not None:
            self._idle[node.node_id] = node
            self._arrivals[node.node_id] = 0


class Forgets(Placement):
    """Teams that stand are not taken over."""

    def _takes_over(self, node, standing):  # type: ignore[no-untyped-def]
        return False


class Hurries(Placement):
    """Nobody waits until the nodes of teams that stand have come back."""

    def _have_gathered(self, until):  # type: ignore[no-untyped-def]
        return True


class Halves(Placement):
    """A team that has not come back as a whole is waited for, and its nodes with it."""

    def _dissolve(self, number, left, reason):  # type: ignore[no-untyped-def]
        if reason != "not all of its nodes have come back":
            super()._dissolve(number, left, reason)


MUTANTS = {
    kind.__name__: kind
    for kind in (Scattered, Largest, Keeps, Moves, Remains, Forgets, Hurries, Halves)
}


def test_teams_are_where_trying_all_places_puts_them() -> None:
    placed = sum(run(seed) for seed in range(SCHEDULES))
    assert placed > SCHEDULES


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    with pytest.raises((Violation, AssertionError)):
        for seed in range(SCHEDULES):
            run(seed, MUTANTS[name])
