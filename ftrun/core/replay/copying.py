"""Which states a group copies from node to node, and the step at which it resumes. Pure.

Theory of operation. Each node's memory holds the newest states of its own ranks. In a *round* the
states of one step are copied to another node (``keepers``). So a node that replaces a lost one can
fetch them there, and all other nodes resume from that step too.

| event                         | result                                                           |
|-------------------------------|------------------------------------------------------------------|
| a step is announced at which  | a round of this step begins ahead of it: each node keeps its own |
| all workers copy their states | states of the step as soon as it has them, and copies others'    |
| all nodes have carried it out | the step is *pinned*: nodes keep it until another one is pinned  |
| one node could not            | the round is over                                                |
| no process of the group runs, | the round is over, and all resume from the newest step of which  |
| and no node is missing        | each rank's state is on some node (``step_for``, ``restore``)    |

During a round a node keeps two steps, so at any moment there is one step that all nodes have. A
pinned step is dropped only at the order of the next round, when all nodes have the newer one. The
lead's own ranks are not copied, because a group does not outlive its lead. The pinned step is also
the one that is written to a disk. Once a step is chosen for that, no round begins until each node
holds it for the disk too (``is_taken``).

A step at which workers that should hold the same parameters do not (alike.py) is not pinned, and
none resumes from it.

When all resume from a step, each node also keeps the states of that step until the next round,
because a new node has no other. All nodes drop later states: their steps will be repeated, perhaps
with another result.

Not here: when workers copy their states (pacing.py), how the copies travel (agent/team/).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ftrun.core.replay.alike import Unlike, unlike
from ftrun.core.replay.settling import Generation, Mark, are_alike

EVERY_S = 5.0
AGAIN_S = 0.5
"""The shortest pause after the end of a round."""


@dataclass(frozen=True, slots=True)
class Had:
    """A node's report: the steps of which it holds states.

    ``own``: by rank of this node. ``copies``: by rank of other nodes. ``label``: nodes with one
    label are lost together. ``is_sound``: the ranks can resume from its states. ``copied``: the
    step whose round this node has carried out. ``has_failed``: it could not carry out a round.
    ``marks``: by rank and step, those of the states that have one. ``number``: the decree in force
    there.
    """

    own: Mapping[int, Collection[int]]
    copies: Mapping[int, Collection[int]] = field(default_factory=dict)
    label: str = ""
    is_sound: bool = True
    copied: int | None = None
    has_failed: bool = False
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    number: int = 0


def keepers(labels: Sequence[str], lead: int) -> dict[int, int]:
    """By number of a node, the number of the node that keeps its copies.

    That is the next node in the order of a ring that has another label; if all labels are equal,
    the next node.
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
    """The rounds of one incarnation of a group. A node is named by an id that is new at each start.

    ``places``: the ranks of each node of the group, in order; ``lead``: one of these nodes.
    ``step``: the step of the round under way, or None. ``pinned``, ``is_taken``: see the module's
    text.
    """

    lead: str
    places: Mapping[str, Collection[int]] = field(default_factory=dict)
    step: int | None = None
    pinned: int | None = None
    is_taken: bool = False
    _had: dict[str, Had] = field(default_factory=dict)
    _waits: set[str] = field(default_factory=set)
    _begins_at: float = 0.0
    _number: int = 0
    _last: dict[int, tuple[Generation, ...]] = field(default_factory=dict)

    def gone(self, node: str) -> None:
        """A node is lost, with all that it had."""
        self._had.pop(node, None)

    def has(self, node: str, had: Had, now: float) -> None:
        """A node has reported. It does so before it reports the end of a process."""
        self._had[node] = had
        if had.has_failed:
            self._over(now)
        elif had.copied is not None and had.copied == self.step:
            self._waits.discard(node)
            if not self._waits:
                self.pinned = self.step if self._are_alike(had.copied) else self.pinned
                self._over(now)

    def begin(self, announced: int, now: float) -> bool:
        """Whether the round of a step begins now.

        No worker may have reached that step yet: a node that is asked to copy a past step may
        already have overwritten its states.
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
        """The ranks whose states this node copies in a round, and the node that owns each."""
        nodes = list(self.places)
        labels = [self._had[one].label if one in self._had else "" for one in nodes]
        found = keepers(labels, nodes.index(self.lead))
        owners = [nodes[owner] for owner, keeper in found.items() if nodes[keeper] == node]
        return {rank: owner for owner in owners for rank in self.places[owner]}

    @property
    def is_sound(self) -> bool:
        """Whether the group can resume from what is in memory."""
        return all(had.is_sound for had in self._had.values())

    def at_own_nodes(self) -> int | None:
        """The newest step of which each node has its own ranks' states.

        No process of the group runs.
        """
        known = [set(self._own(node, x)) for node, own in self.places.items() for x in own]
        return self._newest(known) if known else None

    def step_for(self, ranks: Collection[int]) -> int | None:
        """The newest step of which each rank's state is on some node.

        No process of the group runs.
        """
        if not self.is_sound:
            return None
        return self._newest([*map(self._somewhere, ranks)])

    def can_lose(self, node: str, ranks: Collection[int]) -> bool:
        """Whether there is such a step without what is on this node."""
        others = {one: had for one, had in self._had.items() if one != node}
        return replace(self, _had=others).step_for(ranks) is not None

    def unlike(self) -> Unlike | None:
        """The workers of the group that should hold the same parameters and do not.

        The newest states of the last comparison count too, though they may be gone from memory.
        """
        known = {one for one, had in self._had.items() if had.number >= self._number}
        if not self.places or not self.places.keys() <= known:
            return None  # some have not reported since all resumed
        ranks = {
            rank: {x: Generation(0, x, mark=marks.get((rank, x))) for x in self._own(node, rank)}
            for node, own in self.places.items()
            for marks in (self._had[node].marks,)
            for rank in own
        }
        if not all(ranks.values()):
            return None
        found = unlike([[*ranks[x].values(), *self._last.get(x, ())] for x in sorted(ranks)])
        steps = set.intersection(*map(set, ranks.values()))
        if found is None and steps:
            self._last = {rank: (own[max(steps)],) for rank, own in ranks.items()}
        return found

    def _newest(self, known: Sequence[set[int]]) -> int | None:
        steps = set.intersection(*known)
        return max((step for step in steps if self._are_alike(step)), default=None)

    def _are_alike(self, step: int) -> bool:
        marks = (had.marks.items() for had in self._had.values())
        return are_alike(mark for known in marks for (_, of), mark in known if of == step)

    def restore(self, step: int, now: float, number: int = 0) -> dict[int, str]:
        """All resume from this step by decree ``number``, and no node of the group is missing.

        Returns:
            By rank, the node that has its state, where the rank's own node does not have it.
        """
        self._over(now)
        self._last, self._number = {}, number
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
