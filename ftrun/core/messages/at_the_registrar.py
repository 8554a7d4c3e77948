"""Messages between a node and the lighthouse's registrar, for groups that span several nodes.

Every node keeps a stream to the registrar. The registrar decides which nodes make a replica group.
These nodes then talk to each other (in_a_team.py), and the lighthouse sees the agent of the first
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core.messages.from_agent import JobSpec
from ftrun.core.messages.to_agent import EndJob, Notice, Rejected, Welcome
from ftrun.core.version import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A node that offers itself, the first message of its stream.

    ``node_id``: names this life of its agent. ``node``: its name, for people. ``host``: its
    address; ``address``, ``certificate``: of the server for its hands, if it leads. ``workers``:
    how many it should run. ``rank``: its number, if it has one. ``label``: shared by nodes that are
    close to each other. ``expected``: how many nodes the job waits for at first; ``spares``: how
    many should stand by. ``team``, ``members``: its present team, assigned by another life of the
    lighthouse.
    """

    node_id: str
    node: str
    host: str
    address: str
    certificate: str
    workers: int
    rank: int | None
    label: str
    spec: JobSpec
    expected: int
    spares: int
    team: int | None = None
    members: tuple[str, ...] = ()
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A lead has lost the node with this id, whether or not the registrar has lost it too."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TeamPlace:
    """The node is number ``place`` of team ``team``; 0 leads it, the others are its hands.

    ``members``: the ids of all its nodes, in order. ``host``: the lead's; ``address``,
    ``certificate``: of the lead's server. ``placed``: the number of teams that have their nodes.
    """

    team: int
    place: int
    members: tuple[str, ...]
    host: str
    address: str
    certificate: str
    placed: int = 0


@dataclass(frozen=True, slots=True)
class NodeFree:
    """The node is in no team, or not in its former one any more."""

    reason: str


FromNode: TypeAlias = NodeHello | MemberGone
ToNode: TypeAlias = Welcome | TeamPlace | NodeFree | Notice | EndJob | Rejected
