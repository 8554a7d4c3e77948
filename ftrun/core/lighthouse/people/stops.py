"""Orders to agents to stop a replica at people's request. Each is sent once, unless it is void.

Not here: the requests (operators.py, drains.py), how a replica leaves (leaving.py).
"""

from __future__ import annotations

from ftrun.core import messages as m
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.events import Operation
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState


class StopOrders:
    """By slot, the order's incarnation, and whether it waits for a boundary."""

    def __init__(self, state: MembershipState, membership: Membership, agents: Agents) -> None:
        self._state = state
        self._membership = membership
        self._agents = agents
        self._asked: dict[str, tuple[str, bool]] = {}
        self._sent_to: dict[str, Agent | None] = {}  # by slot: the attachment at that time

    def forget(self, name: str) -> None:
        """The slot is to train again."""
        self._asked.pop(name, None)

    def keep_away(self, slot: Slot) -> None:
        """Ask a withdrawn replica again that has returned, or that is not a member any more."""
        name = slot.replica_id
        replica = self._state.replicas.get(name)
        if replica is not None:
            if not replica.leaving and name not in self._state.drains:
                self.ask_to_leave(replica, restart=False)
        elif slot.agent_id in self._state.outbox.agents and self.waits_for_boundary(name):
            self.send_stop(slot.agent_id, m.StopReplica(name, "", False))

    def waits_for_boundary(self, name: str) -> bool:
        """Whether the slot's agent still expects a boundary."""
        return self._asked.get(name, ("", True))[1]

    def ask_to_leave(self, replica: Replica, *, restart: bool) -> None:
        """Have it leave at a boundary or, if it is in no quorum, now."""
        name = replica.replica_id
        self._membership.leaving.drain([name])
        at_boundary = name in self._state.drains
        order = m.StopReplica(name, replica.incarnation, restart, at_boundary)
        if restart or self._asked.get(name) != (order.incarnation, at_boundary):
            self.send_stop(replica.agent_id, order)

    def send_stop(self, agent_id: str, order: m.StopReplica) -> None:
        self._asked[order.replica_id] = (order.incarnation, order.at_boundary)
        self._sent_to[order.replica_id] = self._agents.get(agent_id)
        self._state.outbox.to_agent(agent_id, order)

    def may_be_lost(self, slot: Slot) -> bool:
        """Whether the slot's agent was detached since its order was sent."""
        return self._agents.get(slot.agent_id) is not self._sent_to.get(slot.replica_id)

    def leave_now(self, operation: Operation, slot: Slot) -> None:
        """Let the replica end now.

        It was found to be in no quorum, and its agent waits for a boundary.
        """
        name, incarnation = slot.replica_id, operation.incarnation
        waits = self._asked.get(name) == (incarnation, True) and slot.dead != incarnation
        sent_to = self._sent_to.get(name)
        has_moved = sent_to is not None and sent_to.agent_id != slot.agent_id
        if waits and not has_moved and slot.agent_id in self._state.outbox.agents:
            self.send_stop(slot.agent_id, m.StopReplica(name, incarnation, True))

    def leaves(self, operation: Operation, replica: Replica | None) -> str:
        """When a replica leaves. The step is kept for the operation's last text."""
        state, name = self._state, operation.request.replica_id
        if replica is None:
            return f"Replica {name} does not train any more; its processes end."
        quorum = state.quorum if state.phase is Phase.SWITCH else None
        if quorum is not None and quorum.index(name, replica.incarnation) is None:
            operation.step = state.switch_step
        if replica.leaving:
            return f"Replica {name} has left{at_step(operation)}; its processes end."
        if operation.step is not None:
            return f"Replica {name} leaves at step {operation.step}."
        if name in state.live:
            return f"Replica {name} leaves at its next free boundary."
        if state.phase is Phase.TAKEOVER:
            return f"Replica {name} leaves, at a boundary if it is in a quorum."
        if name in state.drains:
            return f"Replica {name} leaves once a quorum stands, which may need its state."
        return f"Replica {name} is in no quorum: it ends."


def at_step(operation: Operation) -> str:
    """ " at step 7", if the step is known."""
    return "" if operation.step is None else f" at step {operation.step}"
