"""Which nodes make which team, where a job has several teams of equal size.

Theory of operation. Nodes come and go; a team has ``size`` of them, or none. Whenever nodes are
idle and a team is without, it is placed:

| what                            | where                                                          |
|---------------------------------|----------------------------------------------------------------|
| a team that has lost a node     | on those that it had, in their places, and others beside them  |
| another one, one label suffices | on the label with the fewest idle nodes that suffice           |
| else                            | on as few labels as possible                                   |
| within a label                  | on nodes that follow each other: by rank, then by arrival      |

A lost node dissolves its team and no other: the rest of it is idle at once, and may be placed in
the same breath. A team that stands is never moved.

Not here: one team of any size (gathering.py), streams, what a team does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core.teams.nodes import Node, NodeCame, NodeGone


@dataclass(frozen=True, slots=True)
class TeamPlaced:
    """These nodes are team ``number``, in this order."""

    number: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TeamDissolved:
    """A node of team ``number`` is lost; ``idle``: those that are left of it."""

    number: int
    idle: tuple[Node, ...]
    reason: str


Instruction: TypeAlias = TeamPlaced | TeamDissolved


class Placement:
    """See the module's table. ``teams`` of ``size`` nodes each."""

    def __init__(self, teams: int, size: int) -> None:
        self._size = size
        self._open = set(range(teams))
        self._teams: dict[int, tuple[Node, ...]] = {}
        self._before: dict[int, tuple[Node, ...]] = {}
        self._idle: dict[str, Node] = {}
        self._arrivals: dict[str, int] = {}
        self._count = 0

    def handle(self, event: NodeCame | NodeGone) -> list[Instruction]:
        """Take one event and return what has become of the teams, in order."""
        out: list[Instruction] = []
        if isinstance(event, NodeCame):
            self._count += 1
            self._arrivals[event.node.node_id] = self._count
            self._idle[event.node.node_id] = event.node
        else:
            out += self._lost(event)
        return out + self._place()

    @property
    def idle(self) -> tuple[Node, ...]:
        """The nodes that are in no team, in order."""
        return tuple(sorted(self._idle.values(), key=self._order))

    def check(self) -> None:
        """Assert what must hold between events."""
        everybody = [node.node_id for nodes in self._teams.values() for node in nodes]
        everybody += self._idle
        assert len(set(everybody)) == len(everybody)
        assert set(everybody) == set(self._arrivals)
        assert all(len(nodes) == self._size for nodes in self._teams.values())
        assert not self._open & set(self._teams)
        assert not self._open or len(self._idle) < self._size

    def _lost(self, event: NodeGone) -> list[Instruction]:
        self._arrivals.pop(event.node_id, None)
        self._idle.pop(event.node_id, None)
        for number, nodes in self._teams.items():
            left = tuple(node for node in nodes if node.node_id != event.node_id)
            if len(left) < len(nodes):
                self._before[number] = self._teams.pop(number)
                self._open.add(number)
                self._idle.update((node.node_id, node) for node in left)
                return [TeamDissolved(number, left, event.reason)]
        return []

    def _place(self) -> list[Instruction]:
        """Place the first team that has none, one that had nodes before the others.

        After one event there are never nodes for two: fewer than a team's were idle before.
        """
        if not self._open or len(self._idle) < self._size:
            return []
        number = min(self._open, key=lambda one: (one not in self._before, one))
        nodes = self._again(self._before.pop(number, ()))
        for node in nodes:
            del self._idle[node.node_id]
        self._open.discard(number)
        self._teams[number] = nodes
        return [TeamPlaced(number, nodes)]

    def _again(self, before: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes of a team that had these: who is idle of them stays in its place."""
        kept = [node if node.node_id in self._idle else None for node in before]
        stay = [node for node in kept if node is not None]
        others = [node for node in self.idle if node not in stay]
        labels = {node.label for node in stay}
        beside = [node for node in others if node.label in labels]
        lacking = self._size - len(stay)
        if len(beside) >= lacking:
            others = beside
        new = iter(self._choose(others, lacking))
        return tuple(node or next(new) for node in kept or [None] * self._size)

    def _choose(self, nodes: Iterable[Node], count: int) -> list[Node]:
        """``count`` of these: on as few labels as possible, and close to each other."""
        labels: dict[str, list[Node]] = {}
        for node in nodes:
            labels.setdefault(node.label, []).append(node)
        chosen: list[Node] = []
        while len(chosen) < count:
            lacking = count - len(chosen)
            fits = [name for name in labels if len(labels[name]) >= lacking]
            if fits:
                name = min(fits, key=lambda name: (len(labels[name]), name))
                chosen += self._run(labels.pop(name), lacking)
            else:
                name = max(labels, key=lambda name: (len(labels[name]), name))
                chosen += labels.pop(name)
        return chosen

    def _run(self, nodes: list[Node], count: int) -> list[Node]:
        """``count`` nodes that follow each other as closely as possible, the first such."""
        starts = range(len(nodes) - count + 1)
        at = min(starts, key=lambda at: self._spread(nodes[at], nodes[at + count - 1]))
        return nodes[at : at + count]

    def _spread(self, first: Node, last: Node) -> int:
        if first.rank is None or last.rank is None:
            return self._arrivals[last.node_id] - self._arrivals[first.node_id]
        return last.rank - first.rank

    def _order(self, node: Node) -> tuple[bool, int, int]:
        return (node.rank is None, node.rank or 0, self._arrivals[node.node_id])
