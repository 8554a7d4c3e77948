"""Assigns slots to agents: shares them out, reassigns free ones, rebalances the load.

- At first the agents of a job are gathered, then each gets an equal part.
- When an agent leaves (on SIGTERM), other agents take over each of its slots once the replica in it
  has ended. If the agent comes back, it can get slots again.
- A late agent gets its share: one replica after the other leaves its node at a boundary that all
  have agreed on, as in a drain, and is started on the late one. Only one moves at a time, while all
  others train. Nothing moves if too few replicas would be left, or if the job does not want it.

Not here: streams and heartbeats (machine.py), the table of slots (slots.py), drains and switches
(membership.py).
"""

from __future__ import annotations

from collections.abc import Collection

from ftrun.core import messages as m
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import replicas, sentence

NO_QUORUM_CODE = 74


class Assignment:
    """Decides which agent runs which slots, and sends agents their slots.

    ``share_at``: when slots can be assigned next. ``is_shared_out``: the first assignment is done.
    """

    def __init__(
        self, state: MembershipState, membership: Membership, agents: Agents, now: float
    ) -> None:
        self.share_at: float | None = None
        self.is_shared_out = False
        self._state = state
        self._membership = membership
        self._agents = agents
        self._first_hello_at: float | None = None
        self._is_resumed = False
        self._free_from = now
        self._may_be_uneven = False
        self._had_nodes = False
        self._homeless: frozenset[str] = frozenset()
        self._spares_told: int | None = None

    # ------------------------------------------------------------ agents

    def agent_came(self, hello: m.Hello, *, is_of_old: bool) -> None:
        """An agent has attached. ``is_of_old``: it was in the job under an earlier lighthouse."""
        state = self._state
        state.groups_placed = max(state.groups_placed, hello.placed)
        if self._first_hello_at is None:
            self._first_hello_at = state.now
        if is_of_old:
            self._free_from = state.now + state.settings.reassign_grace_s
        self._is_resumed |= bool(hello.running)
        self._may_be_uneven = True

    def agent_is_known(self, agent: Agent, hello: m.Hello) -> None:
        """All replicas that the agent runs are noted: send it its own slots."""
        running = {x.replica_id for x in hello.running}
        if agent.is_leaving:
            self.agent_leaves(agent, running)
        for slot in self._state.slots.values():
            was_to_leave = slot.has_left or slot.is_withdrawn
            is_over = was_to_leave and slot.replica_id not in running
            if is_over and slot.agent_id == agent.agent_id:
                self.ended(slot.replica_id)  # it ended while its agent was away
        if hello.running or self._state.slots.of(agent.agent_id):
            self.send_slots(agent)
        else:
            self._state.reassigned.add(agent.agent_id)  # sent when the slots are shared out

    def agent_leaves(self, agent: Agent, running: Collection[str]) -> None:
        """Other agents get each of its slots once the replica in it has ended."""
        agent.is_leaving = True
        for replica_id in self._state.slots.of(agent.agent_id):
            if replica_id not in running:
                self._free(replica_id)

    def ended(self, replica_id: str) -> None:
        """The replica in a slot has ended. If it had left, another agent gets the slot.

        If it died before it left, its agent restarts it, and nothing moves.
        """
        slot = self._state.slots[replica_id]
        owner = self._agents.get(slot.agent_id)
        if owner is None:
            return
        if not (slot.has_left or owner.is_leaving or slot.is_withdrawn):
            self._may_be_uneven |= bool(slot.moves_to)
            slot.moves_to = ""
            return
        heir = None if slot.is_withdrawn else self._agents.get(slot.moves_to)
        if heir is not None and heir.gone_at is None and heir.takes_slots:
            self._state.slots.give(replica_id, heir.agent_id)
            self.send_slots(owner)
            self.send_slots(heir)
            return
        self._free(replica_id)
        # The owner may be planning a restart, or is to start the slot again and knows of a drain.
        if slot.is_withdrawn and self.is_shared_out:
            self._state.reassigned.add(owner.agent_id)
        elif not self.is_shared_out:
            self.send_slots(owner)

    def agent_gone(self, agent: Agent) -> None:
        """The agent will not come back: its slots are free."""
        for slot in self._state.slots.values():
            if slot.agent_id != agent.agent_id:
                continue
            if agent.is_leaving and not slot.is_finished:
                self._free(slot.replica_id)
            else:
                self._state.slots.give(slot.replica_id, "")

    def _free(self, replica_id: str) -> None:
        self._state.slots.give(replica_id, "")
        self._state.slots[replica_id].was_drained = True

    # ------------------------------------------------------------ sharing out

    @property
    def is_gathering(self) -> bool:
        """Whether the first assignment waits for agents, even during a new lighthouse's grace."""
        state = self._state
        has_run = state.quorum is not None or self._is_resumed
        return (
            not self.is_shared_out
            and self._first_hello_at is not None
            and not (has_run and state.phase is Phase.TAKEOVER)
            and len(state.outbox.agents) < state.nodes
        )

    def run_rules(self) -> None:
        """Assign all slots once; afterwards reassign free ones, or rebalance the load."""
        state = self._state
        self.share_at = None
        if state.phase in (Phase.TAKEOVER, Phase.ENDED) or not state.outbox.agents:
            return
        if not self.is_shared_out or state.slots.free_count:
            self._hand_on()
        else:
            self._homeless = frozenset()
            if self._may_be_uneven and state.spec.rebalance:
                self._even_out()
        if not self._had_nodes and self._is_without_nodes():
            return
        if self.is_shared_out:
            for agent_id in sorted(state.reassigned & state.outbox.agents.keys()):
                self.send_slots(self._agents[agent_id])
            state.reassigned.clear()
            if state.spec.spare_nodes and not state.slots.finished():
                self._note_spares(len(self._agents.spares()))

    def _note_spares(self, here: int) -> None:
        """Report how many of the wanted spare nodes stand by, if that has changed.

        More than are wanted may stand by.
        """
        wanted = self._state.spec.spare_nodes
        if min(here, wanted) == self._spares_told:
            return
        self._spares_told = min(here, wanted)
        text = f"{here} of {wanted} spare nodes (--spare-nodes) stand by"
        missing = " Add nodes, or the next loss costs the others room." if here < wanted else ""
        self._state.outbox.notice("spares", (), f"{text}.{missing}")

    def _is_without_nodes(self) -> bool:
        """End a job that never had nodes for ``min_replicas`` within the join timeout.

        A job that has trained once waits for nodes without a limit.
        """
        state = self._state
        if self._first_hello_at is None or not self.is_shared_out:
            return False
        placed = state.slots.open_count - state.slots.free_count
        has_run = state.quorum is not None or state.step_max > 0 or self._is_resumed
        if placed >= state.needed or has_run or state.slots.finished():
            self._had_nodes = True
            return False
        due = self._first_hello_at + state.spec.join_timeout_s
        if state.now < due:
            self.share_at = due if self.share_at is None else min(self.share_at, due)
            return False
        reason = (
            f"no quorum: {placed} of the {state.needed} replicas of --min-replicas have a node "
            f"after --join-timeout {state.spec.join_timeout_s:g} s"
        )
        self._membership.end(NO_QUORUM_CODE, reason)
        return True

    def _hand_on(self) -> None:
        state = self._state
        due = max(self._free_from, self.gathered_at())
        if state.now < due:
            self.share_at = due
            return
        self._share_out()

    def _share_out(self) -> None:
        state = self._state
        if self.is_shared_out or state.slots.free_count < state.slots.open_count:
            changed = state.slots.hand_out(self._capacities(), state.spec.spare_nodes)
        else:
            state.slots.share_out(self._capacities(), state.spec.spare_nodes)
            changed = set(state.outbox.agents)
        self.is_shared_out = self._may_be_uneven = True
        slots = state.slots.by_agent()
        for agent_id in sorted(changed):
            self.send_slots(self._agents[agent_id], tuple(slots.get(agent_id, ())))
        self._note_homeless()

    def _note_homeless(self) -> None:
        """Notice once which replicas stay down because no node has room for them.

        If every node leaves, nothing is noticed.
        """
        state = self._state
        if not self._capacities():
            return
        slots = state.slots.values()
        homeless = frozenset(s.replica_id for s in slots if s.was_drained and s.is_open)
        if homeless - self._homeless:
            verb = "waits" if len(homeless) == 1 else "wait"
            text = (
                f"{replicas(homeless)} {verb} for a node: no other has room. "
                f"{len(state.live)} of {state.spec.replicas} replicas train."
            )
            state.outbox.notice("homeless", homeless, sentence(text))
        self._homeless = homeless

    def gathered_at(self) -> float:
        """When the first assignment stops waiting for agents.

        In a resumed job the agents already had slots, so absent agents are not waited for.
        """
        state = self._state
        if self.is_shared_out or self._is_resumed or self._first_hello_at is None:
            return state.now
        wait_s = state.settings.assign_gather_s
        if len(state.outbox.agents) < state.nodes:
            wait_s = max(wait_s, state.spec.join_timeout_s)
        return self._first_hello_at + wait_s

    def _capacities(self) -> dict[str, int]:
        agents = [self._agents[agent_id] for agent_id in self._state.outbox.agents]
        agents.sort(key=lambda agent: (agent.rank is None, agent.rank or 0))
        return {agent.agent_id: agent.capacity for agent in agents if agent.takes_slots}

    def send_slots(self, agent: Agent, own: tuple[str, ...] | None = None) -> None:
        own = self._state.slots.of(agent.agent_id) if own is None else own
        agent.assigned = own
        self._state.reassigned.discard(agent.agent_id)
        self._state.outbox.to_agent(agent.agent_id, m.AssignSlots(own))

    # ------------------------------------------------------------ evening out

    def _even_out(self) -> None:
        """Move one replica if all train and the load is uneven.

        The next one moves once it is back.
        """
        state = self._state
        if not self._may_spare_one():
            return
        move = state.slots.uneven(self._capacities(), state.spec.spare_nodes)
        if move is None:
            self._may_be_uneven = False
            return
        state.slots[move.replica_id].moves_to = move.to_agent
        hosts = self._agents[move.from_agent].host, self._agents[move.to_agent].host
        text = f"Replica {move.replica_id} moves from {hosts[0]} to {hosts[1]}, to even the load."
        state.outbox.notice("moving", [move.replica_id], text)
        self._membership.leaving.drain([move.replica_id])

    def _may_spare_one(self) -> bool:
        state = self._state
        is_quiet = state.phase is Phase.STEADY and not (state.drains or state.replicas.ready)
        is_complete = len(state.live) == state.slots.open_count
        is_moving = any(slot.moves_to for slot in state.slots.values()) if is_complete else True
        return is_quiet and not is_moving and len(state.live) > state.needed
