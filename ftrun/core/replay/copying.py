"""Which states a group copies from node to node, and from where it goes on without one. Pure.

Theory of operation. Each node's memory has the newest states of its own ranks. In *rounds* those of
one step are copied to another node (``keepers``), so that a node that comes for a lost one finds
them there, and all others go on from that step too.

| event                         | it follows                                                       |
|-------------------------------|------------------------------------------------------------------|
| a step is announced at which  | a round of this step, in time: each node keeps its own states as |
| all take their states         | soon as they are there, and copies                               |
| all nodes have carried it out | its step is *pinned*: each keeps it until another one is         |
| one could not                 | the round is over                                                |
| no process of the group runs, | the round is over, and all go on from the newest step of which   |
| and no node is missing        | each rank's state is on some node (``step_for``, ``restore``)    |

During a round a node keeps two steps, so at any moment there is one that all have: what was pinned
is given up only by the order of the next round, when all have the newer one. The lead's own ranks
are copied nowhere, because a group does not outlive its lead. The pinned step is also what goes to
a disk. No round begins from its choice until each node holds it for that, too (``is_taken``).

When all go on from a step, each node keeps the states of that one as well until the next round, as
a node that has come has no other. Later states are of steps that will be made again, perhaps with
another result: all nodes drop them.

Not here: when workers take their states (pacing.py), how they travel (agent/team/).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

EVERY_S = 5.0
AGAIN_S = 0.5
"""After the end of a round, at the least."""


@dataclass(frozen=True, slots=True)
class Had:
    """A node's report: the steps of which it has the states.

    Those of its ``own`` ranks, and ``copies`` of others'. ``label``: nodes of one are lost
    together. ``is_sound``: its ranks can go on from its states. ``copied``: the round of this step
    is carried out. ``has_failed``: one could not be.
    """

    own: Mapping[int, Collection[int]]
    copies: Mapping[int, Collection[int]] = field(default_factory=dict)
    label: str = ""
    is_sound: bool = True
    copied: int | None = None
    has_failed: bool = False


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

    ``places``: the ranks of each node of the group, in order; ``lead``: one of them. ``step``: of
    the round that is under way, or None. ``pinned``, ``is_taken``: see the module's text.
    """

    lead: str
    places: Mapping[str, Collection[int]] = field(default_factory=dict)
    step: int | None = None
    pinned: int | None = None
    is_taken: bool = False
    _had: dict[str, Had] = field(default_factory=dict)
    _waits: set[str] = field(default_factory=set)
    _begins_at: float = 0.0

    def gone(self, node: str) -> None:
        """A node is lost, with all that it had."""
        self._had.pop(node, None)

    def has(self, node: str, had: Had, now: float) -> None:
        """A node has reported, as it does before it reports the end of a process."""
        self._had[node] = had
        if had.has_failed:
            self._over(now)
        elif had.copied is not None and had.copied == self.step:
            self._waits.discard(node)
            if not self._waits:
                self.pinned = self.step
                self._over(now)

    def begin(self, announced: int, now: float) -> bool:
        """Whether the round of a step begins now, to which no worker has come so far.

        A node that is told of one that is over may have overwritten it.
        """
        is_known = self.places.keys() <= self._had.keys()
        if self.step is not None or self.is_taken or now < self._begins_at:
            return False
        if len(self.places) < 2 or not is_known:
            return False
        if announced <= (-1 if self.pinned is None else self.pinned):
            return False
        self.step, self._waits = announced, set(self.places)
        self._begins_at = now + EVERY_S
        return True

    def copies_of(self, node: str) -> dict[int, str]:
        """The ranks whose states this node copies in a round, and the node of each."""
        nodes = list(self.places)
        labels = [self._had[one].label if one in self._had else "" for one in nodes]
        found = keepers(labels, nodes.index(self.lead))
        owners = [nodes[owner] for owner, keeper in found.items() if nodes[keeper] == node]
        return {rank: owner for owner in owners for rank in self.places[owner]}

    @property
    def is_sound(self) -> bool:
        """What is in memory may be gone on from."""
        return all(had.is_sound for had in self._had.values())

    def at_own_nodes(self) -> int | None:
        """No process of the group runs: the newest step of which each node has its own states."""
        known = [set(self._own(node, x)) for node, own in self.places.items() for x in own]
        return max(set.intersection(*known), default=None) if known else None

    def step_for(self, ranks: Collection[int]) -> int | None:
        """No process of the group runs: the newest step of which each rank's state is somewhere."""
        if not self.is_sound:
            return None
        return max(set.intersection(*map(self._somewhere, ranks)), default=None)

    def restore(self, step: int, now: float) -> dict[int, str]:
        """All go on from this step, and no node of the group is missing.

        Returns:
            By rank the node with its state, where its own node has none.
        """
        self._over(now)
        lacks = (
            x for node, own in self.places.items() for x in own if step not in self._own(node, x)
        )
        sources = {
            rank: one for rank in lacks for one in self._had if step in self._copies(one, rank)
        }
        if sources or (self.pinned is not None and self.pinned > step):
            self.pinned = step
        return sources

    def _over(self, now: float) -> None:
        """No round is under way."""
        if self.step is not None:
            self.step, self._begins_at = None, max(self._begins_at, now + AGAIN_S)

    def _somewhere(self, rank: int) -> set[int]:
        found = (self._own(node, rank) for node in self._had)
        return set().union(*found, *(self._copies(node, rank) for node in self._had))

    def _own(self, node: str, rank: int) -> Collection[int]:
        return self._had[node].own.get(rank, ()) if node in self._had else ()

    def _copies(self, node: str, rank: int) -> Collection[int]:
        return self._had[node].copies.get(rank, ()) if node in self._had else ()
