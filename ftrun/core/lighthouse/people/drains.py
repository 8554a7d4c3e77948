"""``ftrun drain``: of a replica, of a node, of the whole job.

Not here: the other commands (operators.py), how a replica leaves (leaving.py).
"""

from __future__ import annotations

from ftrun.core import messages as m
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.events import Operation
from ftrun.core.lighthouse.people.answers import (
    CONFLICT,
    NOT_FOUND,
    WAITS_FOR_AGENTS,
    Answers,
    Refused,
    counted,
)
from ftrun.core.lighthouse.people.stops import StopOrders
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import replicas


class Drains:
    """Carries drains out, and follows each of them to its end."""

    def __init__(
        self, state: MembershipState, agents: Agents, answers: Answers, stops: StopOrders
    ) -> None:
        self._state = state
        self._agents = agents
        self._answers = answers
        self._stops = stops

    def drain(self, operation: Operation) -> None:
        """Begin the drain.

        Raises:
            Refused: there is no such replica or node, or too few would be left.
        """
        request = operation.request
        if not request.replica_id:
            self._drain_agents(operation)
            return
        slot = self._answers.slot(request.replica_id)
        name = slot.replica_id
        if slot.is_withdrawn and not slot.agent_id:
            self._answers.end(operation, f"Replica {name} is drained already.")
            return
        is_new = not slot.is_withdrawn
        if is_new:
            self._check_enough_stay(slot)
            self._state.slots.withdraw(name)
            slot.moves_to = ""
        self._state.journal()
        if is_new:
            text = f"Replica {name} is drained: `ftrun drain`."
            self._state.outbox.notice("operator", [name], text)
        replica = self._state.replicas.get(name)
        if replica is not None:
            self._stops.ask_to_leave(replica, restart=False)
        else:  # its agent knows what still ends, or waits for its restart
            self._stops.send_stop(slot.agent_id, m.StopReplica(name, "", False))

    def _check_enough_stay(self, slot: Slot) -> None:
        state = self._state
        others = [s for s in state.slots.values() if s.is_open and s is not slot]
        if not others:
            raise Refused(
                CONFLICT,
                f"replica {slot.replica_id} is the last one: without it the job would stand. To "
                "end the job in order, drain it without naming a replica",
            )
        if len(others) < state.least:
            left = counted(len(others), "replica")
            of_script = state.least > state.spec.min_replicas
            who = "the script's min_replica_size" if of_script else "--min-replicas"
            raise Refused(
                CONFLICT,
                f"{left} would be left, and {who} asks for {state.least}: "
                "training would stand. To replace one, use `ftrun restart`",
            )

    def _drain_agents(self, operation: Operation) -> None:
        """Ask one node's agent to leave, or all of them."""
        node = operation.request.node
        attached = [agent for agent in self._agents.values() if agent.gone_at is None]
        found = [agent for agent in attached if not node or _is_named(agent, node)]
        if not found:
            if not attached:
                raise Refused(CONFLICT, "no agent is here")
            here = ", ".join(f"{_host_name(agent)} ({agent.host})" for agent in attached[:20])
            raise Refused(NOT_FOUND, f"no agent of this job runs on {node!r}: there is {here}")
        operation.agents = {agent.agent_id for agent in found}
        self._state.journal()
        where = f"node {node}" if node else "the whole job"
        self._state.outbox.notice("operator", (), f"`ftrun drain` of {where}.")
        for agent in found:
            self._state.outbox.to_agent(agent.agent_id, m.DrainAgent("ftrun drain"))

    def follow(self, operation: Operation) -> None:
        """Show the progress, or end the operation."""
        request = operation.request
        if not request.replica_id:
            self._follow_agents(operation)
            return
        state, name = self._state, request.replica_id
        slot, replica = state.slots[name], state.replicas.get(name)
        if slot.is_finished:
            self._answers.end(operation, f"Replica {name} had come to its end.")
        elif not slot.is_withdrawn:
            self._answers.end(
                operation, f"Replica {name} was asked for again meanwhile.", failed=True
            )
        elif not slot.agent_id:
            at = f" at step {operation.step}" if operation.step is not None else ""
            live = replicas(state.live)
            verb = "goes" if len(state.live) == 1 else "go"
            rest = f" {live[:1].upper()}{live[1:]} {verb} on." if state.live else ""
            self._answers.end(operation, f"Replica {name} has left{at}.{rest}")
        else:
            self._answers.show(operation, self._stops.leaves(operation, replica))

    def _follow_agents(self, operation: Operation) -> None:
        left = [a for a in self._agents.values() if a.agent_id in operation.agents]
        running = [agent for agent in left if agent.gone_at is None]
        if operation.is_resumed and not running:
            self._answers.show(operation, WAITS_FOR_AGENTS)
        elif running:
            count = len(running)
            verb = "leaves" if count == 1 else "leave"
            text = f"{counted(count, 'agent')} {verb}, with all replicas at their next boundary."
            self._answers.show(operation, text)
        else:
            node = operation.request.node
            text = f"Node {node} has left." if node else "All agents have left."
            self._answers.end(operation, text)
            self._state.journal()  # otherwise a later lighthouse would drain the next run

    def again(self, operation: Operation) -> None:
        """Send the order again: agents that return to a restarted lighthouse may not have received
        it.
        """
        request = operation.request
        operation.is_resumed = not request.replica_id and self._answers.may_come_back()
        if request.replica_id:
            return  # its slot is withdrawn, so it is asked to leave anyway
        for agent in self._agents.values():
            is_meant = not request.node or _is_named(agent, request.node)
            is_meant = is_meant and agent.is_back and agent.gone_at is None
            if is_meant and agent.agent_id not in operation.agents:
                operation.agents.add(agent.agent_id)
                if not agent.is_leaving:
                    self._state.outbox.to_agent(agent.agent_id, m.DrainAgent("ftrun drain"))


def _host_name(agent: Agent) -> str:
    """The name of an agent's machine: its id without the random end."""
    return agent.agent_id.rpartition("-")[0] or agent.agent_id


def _is_named(agent: Agent, name: str) -> bool:
    return name in (agent.agent_id, _host_name(agent), agent.host)
