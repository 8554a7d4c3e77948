"""Which nodes make which team, in a job of several teams of equal size.

Theory of operation. Nodes join and leave; a team has ``size`` of them, or none. At first nodes
*gather*: until all expected ones have joined, or the time is up, no team is placed. Spare nodes are
waited for only for a moment. From then on, whenever enough nodes are idle and a team has none, it
is placed:

| what                            | where                                                          |
|---------------------------------|----------------------------------------------------------------|
| a team that has lost a node     | on its former nodes, in their places, and others beside them   |
| another one, one label suffices | on the label with the fewest idle nodes that suffice           |
| else                            | on as few labels as possible                                   |
| within a label                  | on nodes that follow each other: by rank, then by arrival      |

A lost node dissolves its team and no other. The other nodes of the team are idle at once, and may
be placed in the same event. A complete team is never moved.

Teams train on without the lighthouse. A node that joins with a team was placed by an earlier life:
while nodes gather, its team is taken over as it is, once all its nodes have joined. If a team is
not complete by the end of the gathering, its nodes are idle.

Not here: one team of any size (gathering.py), streams, what a team does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.base.words import first_of
from ftrun.core.teams.nodes import Node, NodeCame, NodeGone, Show, Standing, TimerFired

BACK_S = 10.0
"""How long the nodes of existing teams may take to join a new lighthouse."""
LAST_CALL_S = 3.0
"""How long spare nodes may take to join, once all others have."""
REMIND_FIRST_S = 5.0
REMIND_S = 30.0


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """The rules for placing ``nodes`` nodes into ``teams`` teams of ``size`` nodes.

    ``spares``: how many of the nodes stand by. ``join_timeout_s``: the limit for all of them at
    first.
    """

    teams: int
    size: int
    nodes: int = 1
    spares: int = 0
    join_timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TeamPlaced:
    """These nodes are team ``number``, in this order."""

    number: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TeamDissolved:
    """A node of team ``number`` is lost; ``idle``: the remaining nodes of the team."""

    number: int
    idle: tuple[Node, ...]
    reason: str


Instruction: TypeAlias = TeamPlaced | TeamDissolved | Show


class Placement:
    """See the module's table."""

    def __init__(self, rules: PlacementRules, now: float) -> None:
        self._rules = rules
        self._size = rules.size
        self._open = set(range(rules.teams))
        self._teams: dict[int, tuple[Node, ...]] = {}
        self._number: dict[str, int] = {}
        self._before: dict[int, tuple[Node, ...]] = {}
        self._back: dict[int, dict[str, Node | None]] = {}
        self._back_in: dict[str, int] = {}
        self._idle: dict[str, Node] = {}
        self._arrivals: dict[str, int] = {}
        self._count = 0
        self._began = now
        self._gathers_until: float | None = now + rules.join_timeout_s
        self._has_called = False
        self._reminds_at = now + REMIND_FIRST_S
        self._shown = ""
        self._out: list[Instruction] = []
        self._now = now

    def handle(self, event: NodeCame | NodeGone | TimerFired, now: float) -> list[Instruction]:
        """Handle one event and return the changes of teams, in order."""
        self._now, self._out = now, []
        match event:
            case NodeCame(node, standing):
                self._came(node, standing)
            case NodeGone(node_id, reason):
                self._lost(node_id, reason)
            case _:
                assert isinstance(event, TimerFired)
        self._judge()
        return self._out

    def next_deadline(self) -> float | None:
        """When to send ``TimerFired``; None: there is no deadline."""
        if self._gathers_until is None:
            return None
        return min(self._gathers_until, self._reminds_at)

    @property
    def idle(self) -> tuple[Node, ...]:
        """The nodes that are in no team, in order."""
        return tuple(sorted(self._idle.values(), key=self._order))

    @property
    def teams(self) -> dict[int, tuple[Node, ...]]:
        """The complete teams, by number."""
        return dict(sorted(self._teams.items()))

    def team_of(self, node_id: str) -> int | None:
        """The number of the team that the node is in; None: it is in no team."""
        return self._number.get(node_id)

    def team_with(self, node_id: str) -> tuple[Node, ...]:
        """The nodes of the team that the node is in; empty: the node is in no team."""
        number = self._number.get(node_id)
        return () if number is None else self._teams[number]

    def is_idle(self, node_id: str) -> bool:
        """Whether the node has joined, and is in no team."""
        return node_id in self._idle

    def check(self) -> None:
        """Assert what must hold between events."""
        of_teams = {node.node_id: n for n, nodes in self._teams.items() for node in nodes}
        assert self._number == of_teams
        assert self._back_in == {name: n for n, back in self._back.items() for name in back}
        everybody = [node.node_id for nodes in self._teams.values() for node in nodes]
        everybody += [name for back in self._back.values() for name, node in back.items() if node]
        everybody += self._idle
        assert len(set(everybody)) == len(everybody)
        assert set(everybody) == set(self._arrivals)
        assert all(len(nodes) == self._size for nodes in self._teams.values())
        assert not self._open & set(self._teams)
        is_gathering = self._gathers_until is not None
        assert is_gathering or not self._back
        assert is_gathering or not self._open or len(self._idle) < self._size

    # ------------------------------------------------------------ nodes

    def _came(self, node: Node, standing: Standing | None) -> None:
        self._count += 1
        self._arrivals[node.node_id] = self._count
        if standing is None or not self._takes_over(node, standing):
            self._idle[node.node_id] = node

    def _takes_over(self, node: Node, standing: Standing) -> bool:
        """Note a node of an existing team. Returns False if that team does not exist any more."""
        number, members = standing.number, standing.members
        is_like = tuple(self._back.get(number, members)) == members
        fits = len(set(members)) == self._size and node.node_id in members
        is_elsewhere = any(self._back_in.get(name, number) != number for name in members)
        is_free = number in self._open and not is_elsewhere
        if self._gathers_until is None or not (is_like and fits and is_free):
            return False
        back = self._back.setdefault(number, dict.fromkeys(members))
        self._back_in.update(dict.fromkeys(members, number))
        back[node.node_id] = node
        self._gathers_until = min(self._gathers_until, self._began + BACK_S)
        found = tuple(one for one in back.values() if one is not None)
        if len(found) == self._size:
            for name in self._back.pop(number):
                del self._back_in[name]
            self._stand(number, found)
        return True

    def _lost(self, node_id: str, reason: str) -> None:
        self._arrivals.pop(node_id, None)
        self._idle.pop(node_id, None)
        if node_id in self._back_in:
            self._back[self._back_in[node_id]][node_id] = None
        if node_id in self._number:
            number = self._number[node_id]
            nodes = self._before[number] = self._teams.pop(number)
            for node in nodes:
                del self._number[node.node_id]
            left = tuple(node for node in nodes if node.node_id != node_id)
            self._dissolve(number, left, reason)

    def _stand(self, number: int, nodes: tuple[Node, ...]) -> None:
        self._open.discard(number)
        self._teams[number] = nodes
        self._number.update((node.node_id, number) for node in nodes)

    def _dissolve(self, number: int, left: tuple[Node, ...], reason: str) -> None:
        self._open.add(number)
        self._idle.update((node.node_id, node) for node in left)
        self._out.append(TeamDissolved(number, left, reason))

    # ------------------------------------------------------------ teams

    def _judge(self) -> None:
        """Place as many teams as possible, once the nodes have gathered."""
        if self._gathers_until is not None and not self._have_gathered(self._gathers_until):
            self._remind(self._gathers_until)
            return
        self._gathers_until = None
        for number, back in sorted(self._back.items()):
            self._before[number] = tuple(n or Node(name, "", "", 0) for name, n in back.items())
            left = tuple(node for node in back.values() if node is not None)
            self._dissolve(number, left, "not all of its nodes have come back")
        self._back.clear()
        self._back_in.clear()
        if self._open and len(self._idle) >= self._size:
            self._place()
        self._tell()

    def _have_gathered(self, until: float) -> bool:
        if self._now >= until:
            return True
        there, rules = len(self._arrivals), self._rules
        if there >= rules.nodes - rules.spares and not self._has_called:
            self._has_called = True
            self._gathers_until = min(until, self._now + LAST_CALL_S)
        return there >= rules.nodes and not self._back

    def _place(self) -> None:
        """Place the teams that have no nodes; teams that had nodes before come first."""
        free: dict[str, list[Node]] = {}
        for node in self.idle:
            free.setdefault(node.label, []).append(node)
        for number in sorted(self._open, key=lambda one: (one not in self._before, one)):
            if len(self._idle) < self._size:
                return
            nodes = self._again(self._before.pop(number, ()), free)
            for node in nodes:
                del self._idle[node.node_id]
            self._stand(number, nodes)
            self._out.append(TeamPlaced(number, nodes))

    def _again(self, before: tuple[Node, ...], free: dict[str, list[Node]]) -> tuple[Node, ...]:
        """The nodes of a team that had ``before``: each of those that is idle keeps its place."""
        kept = [self._idle.get(node.node_id) for node in before]
        stay = [node for node in kept if node is not None]
        for node in stay:
            free[node.label].remove(node)
        lacking = self._size - len(stay)
        beside = {node.label: free[node.label] for node in stay}
        suffices = sum(map(len, beside.values())) >= lacking
        new = iter(self._choose(beside if suffices else free, lacking))
        return tuple(node or next(new) for node in kept or [None] * self._size)

    def _choose(self, free: dict[str, list[Node]], count: int) -> list[Node]:
        """Take ``count`` of these nodes: on as few labels as possible, and close to each other."""
        chosen: list[Node] = []
        while len(chosen) < count:
            lacking = count - len(chosen)
            fits = [name for name in free if len(free[name]) >= lacking]
            if fits:
                name = min(fits, key=lambda name: (len(free[name]), name))
                at = self._run(free[name], lacking)
            else:
                name = max(free, key=lambda name: (len(free[name]), name))
                at = 0
            chosen += free[name][at : at + lacking]
            del free[name][at : at + lacking]
        return chosen

    def _run(self, nodes: list[Node], count: int) -> int:
        """The first index at which ``count`` nodes follow each other as closely as possible."""
        best, at = math.inf, 0
        for start in range(len(nodes) - count + 1):
            spread = self._spread(nodes[start], nodes[start + count - 1])
            if spread < best:
                best, at = spread, start
            if spread == count - 1:
                break  # in a job of 10,000 nodes nearly always at once
        return at

    def _spread(self, first: Node, last: Node) -> int:
        if first.rank is None or last.rank is None:
            return self._arrivals[last.node_id] - self._arrivals[first.node_id]
        return last.rank - first.rank

    def _order(self, node: Node) -> tuple[bool, int, int]:
        return (node.rank is None, node.rank or 0, self._arrivals[node.node_id])

    # ------------------------------------------------------------ for people

    def _remind(self, until: float) -> None:
        if self._now >= self._reminds_at:
            self._reminds_at = self._now + REMIND_S
            self._out.append(
                Show(
                    f"{len(self._arrivals)} of {self._rules.nodes} nodes have come: "
                    f"{self._names()}. Replica groups get their nodes when all are there, or "
                    f"in {until - self._now:.0f} s (--join-timeout)."
                )
            )

    def _names(self) -> str:
        return first_of([node.name for node in self.idle])

    def _tell(self) -> None:
        """Report what is missing, if that has changed."""
        teams, spares, idle = self._rules.teams, self._rules.spares, self.idle
        text = ""
        if self._open:
            lacks = self._size - len(idle)
            beside = f" beside {self._names()}" if idle else ""
            text = (
                f"{len(self._teams)} of {teams} replica groups have their {self._size} nodes. The "
                f"next one waits for {lacks} more{beside}."
            )
        elif spares:
            text = f"{len(idle)} of {spares} spare nodes (--spare-nodes) stand by."
            if len(idle) < spares:
                text += " Add nodes, or the next loss costs the job a replica group."
        if text and text != self._shown:
            self._out.append(Show(text))
        self._shown = text
