"""The records of a team's nodes: what comes in, what is decided.

Not here: the decisions (gathering.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Node:
    """A node that offers itself, by one stream. ``node_id``: of the stream, so of one life.

    ``rank``: the place that its user has given it; None: any. ``workers``: how many it is to run.
    ``label``: nodes of one label are close to each other. ``address``: at which its hands find it,
    if it leads; ``certificate``: that it shows there, "" without TLS. ``is_placed``: ``rank`` is
    its place in a group, which its user has not given.
    """

    node_id: str
    name: str
    host: str
    workers: int
    rank: int | None = None
    label: str = ""
    address: str = ""
    certificate: str = ""
    is_placed: bool = False

    def words(self) -> str:
        """``n1 (10.0.0.2, node rank 1)``."""
        rank = "" if self.rank is None or self.is_placed else f", node rank {self.rank}"
        return f"{self.name} ({self.host}{rank})"


@dataclass(frozen=True, slots=True)
class TeamRules:
    """``least`` and ``most`` nodes. ``join_timeout_s``: how long at least ``least`` may take.

    ``last_call_s``: how long others may come once ``least`` are there. ``silence_s``: after which
    a node that sends nothing is lost.
    """

    least: int
    most: int
    join_timeout_s: float
    last_call_s: float
    silence_s: float = math.inf

    def size(self) -> str:
        """In words: ``2``, ``1 to 2``."""
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Standing:
    """A node's team, as the node knows it. ``members``: the ids of its nodes, the lead's first."""

    number: int
    members: tuple[str, ...]


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class NodeCame:
    """A node has said hello. ``standing``: its team goes on, perhaps since before our life."""

    node: Node
    standing: Standing | None = None


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node's stream has ended: it died, was cut off, or has left."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodesHeard:
    """When each node that is here sent anything last, by id: one that lives does so every second.

    Sent before a ``NodeCame``, and at ``next_deadline`` in place of a ``TimerFired``.
    """

    at: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HostsSilent:
    """The kernel's word that these hosts, and no others, acknowledge nothing now."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimerFired:
    """``next_deadline`` has come."""


Event: TypeAlias = NodeCame | NodeGone | NodesHeard | HostsSilent | TimerFired

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class RefuseNode:
    """This node cannot be in the team."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoseNode:
    """A node is lost, whatever its stream says: its workers have ended.

    ``number``: its place; None: it stood by. ``ago_s``: so long nothing was heard of it.
    """

    node: Node
    number: int | None
    reason: str
    ago_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TeamFormed:
    """The team is complete: ``nodes`` by their numbers.

    ``again``: why the workers that run must begin again, because the team has another size, or its
    nodes other numbers; "": those that run, if any, go on.
    """

    nodes: tuple[Node, ...]
    again: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Too few nodes have come in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class Show:
    """A line for people."""

    text: str


Instruction: TypeAlias = RefuseNode | LoseNode | TeamFormed | GiveUp | Show
