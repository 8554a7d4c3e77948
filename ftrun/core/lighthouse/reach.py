"""Finds a node without power or network, sooner than its heartbeats are missed.

The kernel of a live machine acknowledges packets, however busy its processes are. So an agent
reports a host that does not acknowledge any more. The cause may be the network between these two,
so the lighthouse asks the suspected agent, and all others with it. The agent is lost if it has not
answered after ``probe_s``, at a second check (suspicion.py), while a peer still reports it, and
while at least half of all agents have answered: otherwise the lighthouse's own network may be down.
If no peer sends anything to a node, its heartbeats decide.

A takeover waits for members whose agents have not sent anything yet. Such an agent cannot be asked,
so it has ``attach_s`` to attach. The rest is the same, and it counts among all agents. The takeover
then knows only that it need not wait: the member may live, so it is fenced (takeover.py).

Not here: what agents see (core/agent/peer_watch.py), the consequences of a loss (machine.py).
"""

from __future__ import annotations

import math

from ftrun.core import messages as m
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.suspicion import SilenceCheck
from ftrun.core.lighthouse.takeover import Takeover

AGAIN_TIMES = 2.0
"""An agent that has answered, and is still reported, is asked again after this many ``probe_s``."""


class Reach:
    """The agents that peers do not reach. ``due``: when to call ``gone``."""

    def __init__(self, state: MembershipState, agents: Agents, takeover: Takeover) -> None:
        self.due: float | None = None
        self._state = state
        self._agents = agents
        self._takeover = takeover
        self._asked: dict[str, tuple[float, SilenceCheck]] = {}

    def reported(self, agent: Agent, hosts: tuple[str, ...]) -> None:
        agent.silent_peers = frozenset(hosts)
        self._plan()

    def gone(self) -> list[tuple[Agent, str]]:
        """The attached agents that are lost now, each with the reason.

        The takeover receives the names of those that it need not wait for any more.
        """
        state, found = self._state, []
        late_s = 0.0 if self.due is None else state.now - self.due
        for agent, witness in self._suspects():
            if agent.agent_id not in self._asked:
                continue  # it has attached after the report
            asked_at, check = self._asked[agent.agent_id]
            is_silent = not self._has_answered(agent, asked_at)
            ends = is_silent and check.ends(asked_at, self._time_for(agent), state.now, late_s)
            if ends and self._is_in_touch(asked_at):
                found.append((agent, _cause(witness)))
            elif ends or (not is_silent and state.now >= self._again_at(asked_at)):
                self._asked.pop(agent.agent_id, None)
        awaited = {agent.agent_id: cause for agent, cause in found if self._is_awaited(agent)}
        self._takeover.unreached |= awaited
        state.is_dirty |= bool(awaited)
        for agent, _ in found:
            self._asked.pop(agent.agent_id)
            agent.is_out_of_reach = True
        self._plan()
        return [(agent, cause) for agent, cause in found if not self._is_awaited(agent)]

    def _known(self) -> list[Agent]:
        """The attached agents, and by their stores' names those that have not attached yet."""
        attached = [agent for agent in self._agents.values() if agent.gone_at is None]
        hosts = {agent.host for agent in attached}
        awaited = self._takeover.awaited().items()
        return attached + [
            Agent(store, host, store, 0, -math.inf) for store, host in awaited if host not in hosts
        ]

    def _is_awaited(self, agent: Agent) -> bool:
        return agent.agent_id not in self._agents

    def _suspects(self) -> list[tuple[Agent, Agent]]:
        """Each agent that an agent on another host does not reach; with that agent."""
        known = self._known()
        witnesses = {
            host: agent for agent in known for host in agent.silent_peers if host != agent.host
        }
        return [
            (agent, witnesses[agent.host])
            for agent in known
            if agent.host in witnesses and not agent.is_out_of_reach
        ]

    def _time_for(self, agent: Agent) -> float:
        settings = self._state.settings
        return settings.attach_s if self._is_awaited(agent) else settings.probe_s

    def _has_answered(self, agent: Agent, asked_at: float) -> bool:
        return agent.last_message_at > asked_at

    def _is_in_touch(self, since: float) -> bool:
        """Whether half of the agents have sent something since: the lighthouse is not cut off."""
        known = self._known()
        heard = sum(agent.last_message_at > since for agent in known)
        return 2 * heard >= len(known)

    def _plan(self) -> None:
        """Ask agents that are suspected now; drop those that no longer are."""
        known, suspects = self._asked, [agent for agent, _ in self._suspects()]
        names, unreached = {agent.agent_id for agent in suspects}, self._takeover.unreached
        for store in unreached.keys() - names:
            del unreached[store]
        suspects = [agent for agent in suspects if agent.agent_id not in unreached]
        now = self._state.now
        self._asked = {a.agent_id: known.get(a.agent_id, (now, SilenceCheck())) for a in suspects}
        if self._asked.keys() - known.keys():
            self._state.outbox.to_all(m.AskHeartbeat())
        self.due = min(map(self._due_at, suspects), default=None)

    def _due_at(self, agent: Agent) -> float:
        asked_at, check = self._asked[agent.agent_id]
        if self._has_answered(agent, asked_at):
            return self._again_at(asked_at)
        return check.overdue_at(asked_at, self._time_for(agent))

    def _again_at(self, asked_at: float) -> float:
        return asked_at + AGAIN_TIMES * self._state.settings.probe_s


def _cause(witness: Agent) -> str:
    return (
        f"the node is out of reach: it acknowledges nothing to {witness.host}, and its agent does "
        "not answer"
    )
