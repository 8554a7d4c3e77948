"""The nodes of a job whose replica groups are larger than a node, and their streams.

Every node connects here first, and is assigned to lead a group, to be a hand of another node, or to
wait. The agents of the leads also connect to the lighthouse, as all agents do. Assignment continues
until the job has its outcome. Then the nodes that are in no group are informed.

Not here: which nodes make a group (core/teams/placement.py), messages between its nodes
(agent/team/), the agents' part (shell.py).
"""

from __future__ import annotations

import logging
from typing import Any

from ftrun.base import clock
from ftrun.base.timer import DeadlineTimer
from ftrun.core import messages as m
from ftrun.core.teams.nodes import Node, NodeCame, NodeGone, Show, Standing, TimerFired
from ftrun.core.teams.placement import Placement, PlacementRules, TeamDissolved, TeamPlaced
from ftrun.core.version import unlike_version
from ftrun.lighthouse.shell import Shell
from ftrun.protocol.serving import Host, Session

STOPS = "the lighthouse stops"

log = logging.getLogger(__name__)


class Registrar(Host):
    """Serves one life of a lighthouse. A run of the job begins with the first node that
    connects."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._placement: Placement | None = None
        self._nodes: dict[str, Node] = {}
        self._sessions: dict[str, Session] = {}
        self._wanted: Any = None
        self._earlier: m.EndJob | None = None
        self._is_closed = False
        self._are_home = False
        self._timer = DeadlineTimer(lambda: self._handle(TimerFired()))
        shell.looked, shell.closed = self._look, self.agent_closed
        shell.idle_nodes = self._idle

    def close(self) -> None:
        """End all streams. The nodes reconnect to whichever lighthouse leads then."""
        self._is_closed = True
        self._timer.close()
        for session in self._sessions.values():
            session.close(STOPS)

    # ------------------------------------------------------------ streams

    def attached(self, session: Session, hello: m.NodeHello) -> None:
        """A node has connected, perhaps by a new stream while its old one is still open."""
        if self._is_closed:
            session.close(STOPS)
            return
        wanted = (hello.spec, hello.workers, hello.expected, hello.spares)
        reason = unlike_version(hello.version, "this node")
        if not reason and self._placement is None:
            self._begin(hello)
            self._wanted = wanted
        if not reason and wanted != self._wanted:
            reason = "its options are not those of the job's other nodes: give the same everywhere"
        if reason:
            log.warning("node %s is refused: %s", hello.node, reason)
            session.send(m.Rejected(reason))
            session.close(reason)
            return
        if self._outcome is not None:
            self._send_home(session, self._outcome)
            return
        session.send(self._shell.welcome)
        former = self._sessions.get(hello.node_id)
        self._sessions[hello.node_id] = session
        if former is not None:
            former.close("the node has come by another stream")
        else:
            self._come(hello)
        if former is not None or hello.team is not None:
            self._tell_again(hello)

    def received(self, session: Session, *messages: Any) -> None:
        """A lead has reported the loss of a node of its group."""
        for message in messages:
            if isinstance(message, m.MemberGone) and self._placement is not None:
                ids = [node.node_id for node in self._placement.team_with(message.node_id)]
                if session.peer_id in ids[:1] and message.node_id in ids[1:]:
                    self._cut(message.node_id, message.reason)

    def agent_closed(self, team: int | None, reason: str) -> None:
        """The lighthouse has lost the agent of a group's lead, perhaps long before its stream
        here."""
        if self._placement is not None and team in self._placement.teams:
            self._cut(self._placement.teams[team][0].node_id, reason)

    def _cut(self, node_id: str, reason: str) -> None:
        """Count a node as lost now. If it lives, it reconnects."""
        session = self._sessions.get(node_id)
        if session is not None:
            self.detached(session, reason)

    def detached(self, session: Session, reason: str) -> None:
        """A node's stream has ended: it is lost, unless it has connected by another one."""
        session.close(reason)
        if self._sessions.get(session.peer_id) is not session:
            return
        del self._sessions[session.peer_id]
        node = self._nodes.pop(session.peer_id)
        if not self._is_closed:
            log.info("node %s has gone: %s", node.words(), reason)
            self._handle(NodeGone(node.node_id, f"node {node.words()} is gone ({reason})"))
        if not self._sessions:
            self._placement = None
            self._timer.set(None)

    def _begin(self, hello: m.NodeHello) -> None:
        spec = hello.spec
        rules = PlacementRules(
            spec.replicas,
            max(1, spec.workers_per_replica // max(1, hello.workers)),
            hello.expected,
            hello.spares,
            spec.join_timeout_s,
        )
        self._placement = Placement(rules, clock.now())
        self._earlier = self._shell.outcome
        self._are_home = False

    def _come(self, hello: m.NodeHello) -> None:
        node = Node(
            hello.node_id, hello.node, hello.host, hello.workers, hello.rank, hello.label,
            hello.address, hello.certificate,
        )  # fmt: skip
        self._nodes[node.node_id] = node
        standing = None if hello.team is None else Standing(hello.team, hello.members)
        log.info("node %s has come%s", node.words(), "" if standing is None else ", in its team")
        self._handle(NodeCame(node, standing))

    # ------------------------------------------------------------ teams

    def _handle(self, event: NodeCame | NodeGone | TimerFired) -> None:
        if self._placement is None:
            return
        if self._outcome is not None:
            self._look(event.node_id if isinstance(event, NodeGone) else None)
            return
        orders: dict[str, m.ToNode] = {}
        for instruction in self._placement.handle(event, clock.now()):
            match instruction:
                case TeamPlaced(number, nodes):
                    log.info("group of nodes %d: %s", number, ", ".join(x.words() for x in nodes))
                    orders.update(self._places(number, nodes))
                case TeamDissolved(number, idle, reason):
                    log.info("group of nodes %d is no more: %s", number, reason)
                    orders.update({node.node_id: m.NodeFree(reason) for node in idle})
                case Show(text):
                    self._show(text)
        for node_id, order in orders.items():
            self._tell(node_id, order)
        self._timer.set(self._placement.next_deadline())
        self._look()

    def _tell_again(self, hello: m.NodeHello) -> None:
        """Repeat what was sent on a reconnected node's former stream, which may be lost."""
        assert self._placement is not None
        number = self._placement.team_of(hello.node_id)
        if number is not None:
            nodes = self._placement.teams[number]
            self._tell(hello.node_id, self._places(number, nodes)[hello.node_id])
        elif hello.team is not None and self._placement.is_idle(hello.node_id):
            self._tell(hello.node_id, m.NodeFree("its group of nodes is no more"))

    @property
    def _outcome(self) -> m.EndJob | None:
        """How this run has ended; None: it has not ended."""
        outcome = self._shell.outcome
        return None if outcome is self._earlier else outcome

    def _look(self, gone: str | None = None) -> None:
        """Once the job has ended, stop placing nodes and inform those without a lead.

        Groups get the job's end from their leads. Nodes in no group, and nodes whose lead has gone
        first, are informed here. ``gone``: a node that has gone after the end.
        """
        outcome = self._outcome
        if self._placement is None or outcome is None:
            return
        if not self._are_home:
            self._are_home = True
            whole = [nodes for nodes in self._placement.teams.values()
                     if all(node.node_id in self._sessions for node in nodes)]  # fmt: skip
            left = self._sessions.keys() - {node.node_id for nodes in whole for node in nodes}
        else:
            left = {node.node_id for node in self._placement.team_with(gone or "")}
        for session in [self._sessions[name] for name in left if name in self._sessions]:
            if session.closing is None:
                self._send_home(session, outcome)

    def _send_home(self, session: Session, outcome: m.EndJob) -> None:
        session.send(outcome)
        session.close("the job has ended")

    def _show(self, text: str) -> None:
        """Show people a line, at the nodes that wait or, if none waits, at the leads."""
        assert self._placement is not None
        leads = [nodes[0] for nodes in self._placement.teams.values()]
        for number, node in enumerate(self._placement.idle or leads):
            self._tell(node.node_id, m.Notice("nodes", (), text, elsewhere=number > 0))

    def _idle(self) -> list[str]:
        """The names of the nodes that are in no group, for people."""
        return [] if self._placement is None else [x.words() for x in self._placement.idle]

    def _places(self, number: int, nodes: tuple[Node, ...]) -> dict[str, m.TeamPlace]:
        assert self._placement is not None
        lead, ids = nodes[0], tuple(node.node_id for node in nodes)
        door, placed = (lead.host, lead.address, lead.certificate), len(self._placement.teams)
        return {
            name: m.TeamPlace(number, place, ids, *door, placed) for place, name in enumerate(ids)
        }

    def _tell(self, node_id: str, message: m.ToNode) -> None:
        session = self._sessions.get(node_id)
        if session is not None:
            session.send(message)
