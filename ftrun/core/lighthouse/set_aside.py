"""Sets a node aside when replicas keep dying on it and other nodes can take its slots.

A node's failures are counted while none of its replicas makes progress, and for ``WINDOW_S`` at
most. The node is set aside after ``FAILURES_MAX`` of them, or at once when its ``--health-check``
fails or a replica's parameters were corrupted on it (divergence.py). It then gets no more slots,
and each of its slots whose replica is dead goes to another node. That node must have room, and must
have had no failure: an error of the script would only move on. If there is no such node, nothing
changes: the agent keeps restarting, and the lighthouse reports it. Of the only node it reports
corruption alone.

A node that was set aside comes back as a new agent, or when a slot is free and no other node is
left. Not here: restarts on the same node (core/agent/restarts.py), slots of agents that leave
(assignment.py), a replica that its agent gives up (giving_up.py).
"""

from __future__ import annotations

from ftrun.core import failure_kinds as kinds
from ftrun.core.books.facts import Moved
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.assignment import Assignment
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import replicas, sentence
from ftrun.core.messages import FailureEvidence

FAILURES_MAX = 3
WINDOW_S = 600.0
_UNWELL = {
    kinds.UNHEALTHY: "its --health-check fails",
    kinds.CORRUPTION: "it has altered a replica's parameters",
}


class SetAside:
    """Judges nodes by the failures that their agents report."""

    def __init__(self, state: MembershipState, agents: Agents, assignment: Assignment) -> None:
        self._state = state
        self._agents = agents
        self._assignment = assignment

    def failed(self, agent: Agent, evidence: FailureEvidence) -> None:
        """A replica of this agent has failed, or its node is unhealthy."""
        found = {worker.kind for worker in evidence.workers}
        is_final = evidence.verdict in kinds.ENDING_VERDICTS
        if self._state.phase is Phase.ENDED or is_final or found <= kinds.CONSEQUENCES:
            return
        unwell = next((_UNWELL[kind] for kind in _UNWELL if kind in found), "")
        if evidence.has_step and evidence.step > agent.failed_at_step:
            agent.failures.clear()  # it has trained since the last failure
        agent.failed_at_step = self._state.step_max
        agent.failures.append(self._state.now)
        recent = [at for at in agent.failures if at > self._state.now - WINDOW_S]
        if unwell or len(recent) >= FAILURES_MAX or agent.is_aside:
            self._move(agent, unwell or self._words(recent))

    def progressed(self, agent: Agent, step: int) -> None:
        if step > agent.failed_at_step:
            agent.failures.clear()

    def take_back(self) -> None:
        """Let nodes that were set aside take slots again if a slot is free and no other is left.

        A node whose stream has ended counts as long as it may come back.
        """
        state = self._state
        if state.phase in (Phase.TAKEOVER, Phase.ENDED):
            return
        if any(agent.takes_slots for agent in self._agents.values()):
            return
        free = [s.replica_id for s in state.slots.values() if s.is_open and not s.agent_id]
        for agent in self._agents.values():
            if agent.is_aside and not agent.is_leaving:
                agent.is_aside = False
                agent.failures.clear()
                text = (
                    f"{replicas(free)} go to {agent.host}, which was set aside: no other is left."
                )
                state.outbox.notice("aside", free, sentence(text))

    def _words(self, recent: list[float]) -> str:
        return f"its replicas have failed {len(recent)} times without a new step in between"

    def _move(self, agent: Agent, why: str) -> None:
        state = self._state
        mine = state.slots.of(agent.agent_id)
        moved = [name for name in mine if self._is_free(name) and self.give(name)]
        if not moved:
            self._note_no_room(agent, why)
            return
        agent.is_aside = True
        text = f"{replicas(moved)} to another node: {agent.host} is set aside, because {why}."
        state.facts += [Moved(name, text) for name in moved]
        state.outbox.notice("aside", moved, sentence(text))

    def _is_free(self, replica_id: str) -> bool:
        """Whether no process of the slot lives, of any incarnation (Q4)."""
        state = self._state
        return state.replicas.get(replica_id) is None and state.slots[replica_id].nothing_runs

    def give(self, replica_id: str) -> bool:
        """Give a slot to the node with the most room that has had no failure."""
        state = self._state
        slot = state.slots[replica_id]
        owner = self._agents.get(slot.agent_id)
        runs = state.slots.by_agent()
        room = {
            agent_id: agent.capacity - len(runs.get(agent_id, ()))
            for agent_id in state.outbox.agents
            if (agent := self._agents[agent_id]).takes_slots and not agent.failures
        }
        for agent_id in slot.given_up_at:
            room.pop(agent_id, None)
        heir = max(room, key=lambda agent_id: room[agent_id], default="")
        if not heir or room[heir] <= 0 or heir == slot.agent_id:
            return False
        state.slots.give(replica_id, heir)
        if owner is not None:
            self._assignment.send_slots(owner)
        self._assignment.send_slots(self._agents[heir])
        return True

    def _note_no_room(self, agent: Agent, why: str) -> None:
        is_alone = len(self._agents) == 1
        is_told = why == _UNWELL[kinds.CORRUPTION] and self._state.spec.replicas > 1
        if agent.is_unplaced or agent.is_aside or (is_alone and not is_told):
            return
        agent.is_unplaced = True
        text = (
            f"{agent.host} would be set aside, because {why}, but no other node has room and no "
            "failures: it tries again within its --max-restarts."
        )
        self._state.outbox.notice("aside", self._state.slots.of(agent.agent_id), sentence(text))
