"""Which states a group copies from node to node, and from where it goes on without one. Pure.

Theory of operation. Each node's memory has the newest states of its own ranks. In *rounds* those of
one step are copied to another node (``keepers``), so that a node that comes for a lost one finds
them there, and all others go on from that step too.

| event                          | it follows                                                      |
|--------------------------------|-----------------------------------------------------------------|
| time                           | a round, if all nodes have the states of a step that is newer   |
|                                | than the last round's: each node keeps its own, and copies      |
| all nodes have carried it out  | its step is *pinned*: each keeps it until another one is        |
| one could not                  | the round is over                                               |
| a node is lost, or has come    | the round is over; what was known of it is forgotten            |
| no process of the group runs   | all go on from the newest step of which each rank's state is on |
|                                | some node (``step_for``, ``restore``)                           |

During a round a node keeps two steps, so at any moment there is one that all have: what was pinned
is given up only by the order of the next round, when all have the newer one. The lead's own ranks
are copied nowhere, because a group does not outlive its lead.

Not here: when workers take their states (pacing is theirs), how they travel (agent/team/).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

EVERY_S = 5.0
AGAIN_S = 0.5
"""After the end of a round, at the least."""


@dataclass(frozen=True, slots=True)
class Had:
    """The steps of which a node has the states: of its ``own`` ranks, and as ``copies`` of others.

    ``is_sound``: its ranks can go on from them.
    """

    own: Mapping[int, Collection[int]]
    copies: Mapping[int, Collection[int]] = field(default_factory=dict)
    is_sound: bool = True


def keepers(labels: Sequence[str], lead: int) -> dict[int, int]:
    """By number of a node, the number of that which keeps its copies.

    The next one of another label in the order of a ring; if all are of one label, the next one.
    """
    found = {}
    for node in range(len(labels)):
        others = [(node + step) % len(labels) for step in range(1, len(labels))]
        apart = [other for other in others if labels[other] != labels[node]]
        if node != lead and others:
            found[node] = (apart or others)[0]
    return found


@dataclass
class Copying:
    """The rounds of one incarnation of a group. Nodes are named by ids of one life each.

    ``places``: the ranks of each node, in order; ``lead``: one of them. ``step``: of the round that
    is under way, or None. ``pinned``: see the module's table.
    """

    lead: str
    places: Mapping[str, Collection[int]] = field(default_factory=dict)
    step: int | None = None
    pinned: int | None = None
    _had: dict[str, Had] = field(default_factory=dict)
    _labels: dict[str, str] = field(default_factory=dict)
    _waits: set[str] = field(default_factory=set)
    _begins_at: float = 0.0

    def formed(self, places: Mapping[str, Collection[int]], now: float) -> None:
        """The group has these nodes now."""
        if dict(places) != dict(self.places):
            self.failed(now)
        self.places = dict(places)
        self._had = {node: had for node, had in self._had.items() if node in places}

    def has(self, node: str, label: str, had: Had) -> None:
        """What a node has, as it has reported last."""
        self._had[node], self._labels[node] = had, label

    def begin(self, now: float) -> int | None:
        """The step of a round that begins now; None: none does."""
        if self.step is not None or now < self._begins_at or len(self.places) < 2:
            return None
        steps = self._in_all()
        if not steps or max(steps) <= (-1 if self.pinned is None else self.pinned):
            return None
        self.step, self._waits = max(steps), set(self.places)
        self._begins_at = now + EVERY_S
        return self.step

    def copies_of(self, node: str) -> dict[int, str]:
        """The ranks whose states this node copies in a round, and the node of each."""
        nodes = list(self.places)
        found = keepers([self._labels.get(one, "") for one in nodes], nodes.index(self.lead))
        owners = [nodes[owner] for owner, keeper in found.items() if nodes[keeper] == node]
        return {rank: owner for owner in owners for rank in self.places[owner]}

    def copied(self, node: str, step: int, now: float) -> None:
        """A node has carried out the round of this step."""
        if step != self.step:
            return
        self._waits.discard(node)
        if not self._waits:
            self.pinned, self.step = step, None
            self._begins_at = max(self._begins_at, now + AGAIN_S)

    def failed(self, now: float) -> None:
        """The round under way cannot be carried out."""
        if self.step is not None:
            self.step, self._begins_at = None, now + AGAIN_S

    def gone(self, node: str, now: float) -> None:
        """A node is lost, with all that it had."""
        self.failed(now)
        self._had.pop(node, None)

    def step_for(self, ranks: Collection[int]) -> int | None:
        """No process of the group runs: the newest step of which each rank's state is somewhere."""
        if not ranks or not all(had.is_sound for had in self._had.values()):
            return None
        return max(set.intersection(*map(self._somewhere, ranks)), default=None)

    def restore(self, step: int, now: float) -> dict[int, str]:
        """All go on from this step; by rank, the node with its state, where its own has none.

        All nodes drop what is later than the step, also copies. What they have reported before
        counts no more.
        """
        self.failed(now)
        sources = {
            rank: next(one for one in self.places if step in self._copies(one, rank))
            for node, ranks in self.places.items()
            for rank in ranks
            if step not in self._own(node, rank)
        }
        self._had.clear()
        self.pinned = None
        return sources

    def _in_all(self) -> set[int]:
        """The steps of which each node has the states of its own ranks."""
        known = [set(self._own(node, x)) for node, ranks in self.places.items() for x in ranks]
        return set.intersection(*known) if known else set()

    def _somewhere(self, rank: int) -> set[int]:
        found = (self._own(node, rank) for node in self._had)
        return set().union(*found, *(self._copies(node, rank) for node in self._had))

    def _own(self, node: str, rank: int) -> Collection[int]:
        return self._had[node].own.get(rank, ()) if node in self._had else ()

    def _copies(self, node: str, rank: int) -> Collection[int]:
        return self._had[node].copies.get(rank, ()) if node in self._had else ()
