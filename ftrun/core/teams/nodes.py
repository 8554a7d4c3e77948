"""The records of a team's nodes: events and instructions.

Not here: the decisions (gathering.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Node:
    """A node that offers itself on a stream.

    ``node_id``: names this stream, so one life of the node.

    ``rank``: the place that its user has stated; None: any. ``workers``: how many it should run.
    ``label``: nodes with one label are close to each other. ``address``: where its hands connect,
    if it leads; ``certificate``: of that server, "" without TLS. ``is_placed``: ``rank`` is its
    place in a group, not stated by its user.
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
    """The rules by which a team of ``least`` to ``most`` nodes forms.

    ``join_timeout_s``: the limit until at least ``least`` have joined. ``last_call_s``: how long
    others may join once ``least`` have. ``silence_s``: a node that sends nothing for this time is
    lost.
    """

    least: int
    most: int
    join_timeout_s: float
    last_call_s: float
    silence_s: float = math.inf

    def size(self) -> str:
        """The range in words: ``2``, ``1 to 2``."""
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Standing:
    """A node's team, as the node knows it. ``members``: the ids of its nodes, the lead's first."""

    number: int
    members: tuple[str, ...]


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class NodeCame:
    """A node has sent its hello.

    ``standing``: its team exists, perhaps since before this lighthouse.
    """

    node: Node
    standing: Standing | None = None


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node's stream has ended: it died, was cut off, or has left."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodesHeard:
    """By id of a present node, the time of its last message: a live one sends every second.

    Sent before a ``NodeCame``, and at ``next_deadline`` in place of a ``TimerFired``.
    """

    at: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HostsSilent:
    """By the kernel's counts these hosts, and no others, acknowledge nothing now."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeAltered:
    """The node, or a device of it, has altered the parameters of these ranks.

    ``is_copied``: all can resume without what is in its memory.
    """

    node_id: str
    ranks: tuple[int, ...]
    is_copied: bool


@dataclass(frozen=True, slots=True)
class TimerFired:
    """``next_deadline`` has passed."""


Event: TypeAlias = NodeCame | NodeGone | NodesHeard | HostsSilent | NodeAltered | TimerFired

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class RefuseNode:
    """This node cannot be in the team."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoseNode:
    """A node is lost, whatever the state of its stream: its workers have ended.

    ``number``: its place; None: it stood by. ``ago_s``: the time since its last message.
    """

    node: Node
    number: int | None
    reason: str
    ago_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TeamFormed:
    """The team is complete: ``nodes`` by their numbers.

    ``again``: why running workers must restart: the team has another size, or its nodes have other
    numbers; "": running workers continue.
    """

    nodes: tuple[Node, ...]
    again: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Too few nodes have joined in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class Show:
    """A line for people."""

    text: str


Instruction: TypeAlias = RefuseNode | LoseNode | TeamFormed | GiveUp | Show
