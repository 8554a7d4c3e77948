"""People's requests to a running job: drain, restart, kill, stacks. Each is an operation.

Rules:
- ``drain`` withdraws a slot: its replica leaves at a boundary that all have agreed on, and the slot
  is not assigned until ``restart``. A restarted lighthouse knows that from its journal.
- ``restart`` drains a replica whose slot stays with its agent, or restores a withdrawn slot.
- ``kill`` and ``stack`` are carried out by the agent; a kill is healed like any other death.
- ``drain`` without a replica asks agents to leave, as SIGTERM to each of them does.
- A request that is repeated changes nothing more; its operation ends with the first one's. With the
  same id it is the same operation.
- A restarted lighthouse continues what it has acknowledged, once its agents have reported the
  outcome so far. Orders that may be lost are sent again, to the same incarnation only.

Not here: drains (drains.py), orders to stop (stops.py), which requests are known
(operation_table.py), how a replica leaves (leaving.py), what its agent does
(core/agent/supervisor.py), the routes (lighthouse/web.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.core import messages as m
from ftrun.core.ids import WorkerKey, replica_order
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.events import Operation, Request
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.people.answers import (
    CONFLICT,
    WAITS_FOR_AGENTS,
    Answers,
    Refused,
    counted,
)
from ftrun.core.lighthouse.people.drains import Drains
from ftrun.core.lighthouse.people.stops import StopOrders
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import sentence

STACKS_MAX = 512
"""The most workers whose stacks are taken at once. For more, people ask replica by replica."""
STACKS_TIMEOUT_S = 5.0


class Operators:
    """Carries requests out, and follows each of them to its end."""

    def __init__(self, state: MembershipState, membership: Membership, agents: Agents) -> None:
        self._state = state
        self._table = state.operations
        self._answers = Answers(state)
        self._stops = StopOrders(state, membership, agents)
        self._drains = Drains(state, agents, self._answers, self._stops)
        self._commands: dict[str, Callable[[Operation], None]] = {
            "drain": self._drains.drain,
            "restart": self._restart,
            "kill": self._kill,
            "stack": self._stack,
        }
        self._rules: dict[str, Callable[[Operation], None]] = {
            "drain": self._drains.follow,
            "restart": self._follow_restart,
            "kill": self._follow_kill,
            "stack": self._follow_stack,
        }
        self._again: dict[str, Callable[[Operation], None]] = {
            "drain": self._drains.again,
            "restart": self._restart_again,
            "kill": self._kill_again,
        }

    def get(self, number: int, request_id: str = "") -> Operation | None:
        """The operation with this number or, if there is none, of the request with this id."""
        return self._table.get(number) or self._table.asked_as(request_id)

    def ask(self, number: int, request: Request) -> None:
        """Begin an operation. A refused one ends at once.

        While too many are under way it is not even noted, and ``get`` does not find it.
        """
        known = self._table.asked_as(request.request_id)
        if known is not None and known.request == request:
            return  # perhaps an earlier lighthouse received it
        operation = Operation(number, request)
        if not self._table.add(operation):
            return
        operation.is_held = known is None and self._agent_may_come_back(request)
        if operation.is_held:
            self._state.journal()
        else:
            self._begin(operation, is_known=known is not None)

    def _begin(self, operation: Operation, *, is_known: bool = False) -> None:
        operation.is_held = False
        try:
            if is_known:
                raise Refused(CONFLICT, "another request has had this request_id")
            if self._state.phase is Phase.ENDED:
                raise Refused(CONFLICT, "the job has ended")
            self._commands[operation.request.command](operation)
        except Refused as refusal:
            operation.refused = refusal.code
            self._answers.end(operation, sentence(f"{refusal}."), failed=True)

    def run_rules(self) -> None:
        """Ask withdrawn replicas to leave, also those that have returned; follow the operations."""
        state = self._state
        if state.phase not in (Phase.TAKEOVER, Phase.ENDED):
            for name in state.slots.withdrawn:
                self._stops.keep_away(state.slots[name])
        for operation in self._table.under_way():
            if (operation.is_resumed or operation.is_held) and self._is_early(operation):
                self._answers.show(operation, WAITS_FOR_AGENTS)
                continue
            if operation.is_held:
                self._begin(operation)
            if not operation.has_ended:
                self._follow(operation)

    def _agent_may_come_back(self, request: Request) -> bool:
        """Whether the agent that the request is about may still return to a restarted
        lighthouse.
        """
        state, name = self._state, request.replica_id
        if state.phase is Phase.ENDED or not self._answers.may_come_back():
            return False
        if not name:
            return not state.outbox.agents
        return name in state.slots and not state.slots[name].agent_id

    def _is_early(self, operation: Operation) -> bool:
        """True if the outcome of a request to an earlier lighthouse is not known yet."""
        state, name = self._state, operation.request.replica_id
        if state.phase is Phase.ENDED:
            return False
        if state.phase is Phase.TAKEOVER or not len(state.slots):
            return True
        if name in state.slots and state.slots[name].is_finished:
            return False
        return self._agent_may_come_back(operation.request)

    def next_deadline(self) -> float | None:
        """When stacks are answered as they are, or when agents are not waited for any more."""
        under_way = self._table.under_way()
        times = [x.deadline for x in under_way if x.deadline is not None]
        if any(x.is_resumed or x.is_held for x in under_way) and self._answers.may_come_back():
            times.append(self._answers.back_by)
        return min(times, default=None)

    def agent_came(self, agent: Agent) -> None:
        """Send again what the agent's former stream may have lost."""
        for operation in self._table.under_way():
            if operation.is_resumed or operation.is_held:
                continue
            request = operation.request
            replica = self._state.replicas.find(request.replica_id, operation.incarnation)
            is_here = replica is not None and replica.agent_id == agent.agent_id
            if request.command == "kill" and is_here:
                self._kill_again(operation)
            elif request.command == "restart" and operation.is_owed:
                self._restart_owed(operation, agent)
            elif agent.agent_id in operation.agents and not agent.is_leaving:
                self._state.outbox.to_agent(agent.agent_id, m.DrainAgent("ftrun drain"))

    def on_stacks(self, _agent: Agent, taken: m.WorkerStacks) -> None:
        operation = self._table.get(taken.request)
        if operation is not None and taken.key in operation.wanted:
            operation.wanted.discard(taken.key)
            operation.stacks[taken.key] = taken.text

    # ------------------------------------------------------------ restart

    def _restart(self, operation: Operation) -> None:
        state = self._state
        slot = self._answers.slot(operation.request.replica_id)
        name = slot.replica_id
        replica = state.replicas.get(name)
        operation.is_owed = bool(slot.agent_id) and slot.agent_id not in state.outbox.agents
        if slot.is_withdrawn:
            state.slots.restore(name)
            self._stops.forget(name)
            if slot.agent_id and replica is not None:
                operation.incarnation = replica.incarnation
            state.journal()
            if slot.agent_id:  # if it still leaves, it starts again then
                slot.moves_to = slot.agent_id
                at_boundary = name in state.drains
                order = m.StopReplica(name, operation.incarnation, True, at_boundary)
                self._stops.send_stop(slot.agent_id, order)
            state.outbox.notice(
                "operator", [name], f"Replica {name} starts again: `ftrun restart`."
            )
            return
        if not slot.agent_id:
            raise Refused(CONFLICT, f"replica {name} waits for a node: none has room for it")
        if replica is not None:
            operation.incarnation = replica.incarnation
            operation.was_live = name in state.live
        state.journal()
        state.outbox.notice("operator", [name], f"Replica {name} is restarted: `ftrun restart`.")
        if replica is None:
            self._stops.send_stop(slot.agent_id, m.StopReplica(name, "", True))
            return
        slot.moves_to = slot.moves_to or slot.agent_id
        self._stops.ask_to_leave(replica, restart=True)

    def _restart_owed(self, operation: Operation, agent: Agent) -> None:
        """The agent is back, and still holds the order before, which may be a drain."""
        slot = self._state.slots[operation.request.replica_id]
        if slot.agent_id != agent.agent_id:
            return
        operation.is_owed = False
        replica = self._state.replicas.get(slot.replica_id)
        if slot.is_finished or slot.is_withdrawn:
            return
        operation.incarnation = replica.incarnation if replica is not None else ""
        if replica is None or replica.leaving:
            order = m.StopReplica(slot.replica_id, operation.incarnation, True)
            self._stops.send_stop(slot.agent_id, order)
        else:
            slot.moves_to = slot.moves_to or slot.agent_id
            self._stops.ask_to_leave(replica, restart=True)

    def _restart_again(self, operation: Operation) -> None:
        """The order may be lost: send it again if the same incarnation is there."""
        operation.is_resumed = False
        slot = self._state.slots[operation.request.replica_id]
        replica = self._state.replicas.get(slot.replica_id)
        if slot.is_finished or slot.is_withdrawn or replica is None:
            return
        operation.incarnation = operation.incarnation or (
            replica.incarnation if replica.leaving else ""
        )
        if replica.incarnation == operation.incarnation:
            slot.moves_to = slot.moves_to or slot.agent_id
            if replica.leaving:
                order = m.StopReplica(slot.replica_id, replica.incarnation, True)
                self._stops.send_stop(slot.agent_id, order)
            else:
                self._stops.ask_to_leave(replica, restart=True)

    def _follow_restart(self, operation: Operation) -> None:
        state, name = self._state, operation.request.replica_id
        slot, replica = state.slots[name], state.replicas.get(name)
        if slot.is_finished:
            self._answers.end(operation, f"Replica {name} had come to its end.")
        elif slot.is_withdrawn:
            self._answers.end(operation, f"Replica {name} was drained meanwhile.", failed=True)
        elif replica is not None and replica.incarnation == operation.incarnation:
            operation.was_live |= name in state.live  # asked while a new lighthouse gathered
            if not replica.leaving and name not in state.drains:
                self._stops.ask_to_leave(replica, restart=True)  # it was lost and is back
            elif self._stops.may_be_lost(slot):  # its agent may know of an earlier drain only
                at_boundary = self._stops.waits_for_boundary(name)
                order = m.StopReplica(name, replica.incarnation, True, at_boundary)
                self._stops.send_stop(slot.agent_id, order)
            self._answers.show(
                operation, f"{self._stops.leaves(operation, replica)} Then it starts again."
            )
        elif replica is None:
            self._stops.leave_now(operation, slot)
            self._answers.show(operation, f"Replica {name} starts again.")
        elif name in state.live:
            self._answers.end(operation, f"Replica {name} trains again{_left_at(operation)}.")
        elif not operation.was_live and operation.incarnation:
            self._answers.end(operation, f"Replica {name} runs again{_left_at(operation)}.")
        else:
            self._answers.show(operation, f"Replica {name} has restarted, and joins its peers.")

    # ------------------------------------------------------------ kill

    def _kill(self, operation: Operation) -> None:
        replica, ranks = self._answers.running(operation)
        operation.incarnation = replica.incarnation
        self._state.journal()
        who = _who(operation.request)
        self._state.outbox.notice(
            "operator", [replica.replica_id], f"{who} is killed: `ftrun kill`."
        )
        kill = m.KillWorkers(replica.replica_id, replica.incarnation, ranks)
        self._state.outbox.to_agent(replica.agent_id, kill)

    def _kill_again(self, operation: Operation) -> None:
        operation.is_resumed = False
        request = operation.request
        replica = self._state.replicas.find(request.replica_id, operation.incarnation)
        if replica is not None:
            everyone = tuple(range(self._state.workers))
            ranks = everyone if request.group_rank is None else (request.group_rank,)
            kill = m.KillWorkers(replica.replica_id, replica.incarnation, ranks)
            self._state.outbox.to_agent(replica.agent_id, kill)

    def _follow_kill(self, operation: Operation) -> None:
        who = _who(operation.request)
        name = operation.request.replica_id
        replica = self._state.replicas.get(name)
        if replica is not None and replica.incarnation == operation.incarnation:
            restarts = self._state.slots[name].restarts
            operation.restarts = restarts if operation.restarts is None else operation.restarts
            if operation.restarts == restarts:
                self._answers.show(operation, f"{who} is being killed.")
            else:
                self._answers.end(operation, f"{who} is dead, and was replaced in its group.")
        else:
            self._answers.end(operation, f"{who} is dead. Its agent treats that as any failure.")

    # ------------------------------------------------------------ stacks

    def _stack(self, operation: Operation) -> None:
        state = self._state
        if operation.request.replica_id:
            replica, ranks = self._answers.running(operation)
            targets = [(replica, ranks)]
        else:
            everyone = tuple(range(state.workers))
            in_order = sorted(state.replicas.values(), key=lambda r: replica_order(r.replica_id))
            targets = [(replica, everyone) for replica in in_order]
        if not targets:
            raise Refused(CONFLICT, "no replica runs now")
        by_agent: dict[str, list[WorkerKey]] = {}
        for replica, ranks in targets:
            keys = [WorkerKey(replica.replica_id, replica.incarnation, rank) for rank in ranks]
            by_agent.setdefault(replica.agent_id, []).extend(keys)
        operation.wanted = {key for keys in by_agent.values() for key in keys}
        if len(operation.wanted) > STACKS_MAX:
            count = len(operation.wanted)
            raise Refused(
                CONFLICT, f"{count} workers run, and {STACKS_MAX} answer at once: name a replica"
            )
        operation.deadline = state.now + STACKS_TIMEOUT_S
        for agent_id, keys in by_agent.items():
            state.outbox.to_agent(agent_id, m.AskStacks(operation.number, tuple(keys)))

    def _follow_stack(self, operation: Operation) -> None:
        missing = len(operation.wanted)
        late = operation.deadline is not None and self._state.now >= operation.deadline
        if missing and not late:
            return
        count = len(operation.stacks)
        text = f"Stacks of {counted(count, 'worker')}."
        if missing:
            text += f" {missing} did not answer within {STACKS_TIMEOUT_S:g} s."
        self._answers.end(operation, text, failed=not count)

    # ------------------------------------------------------------ all of them

    def _follow(self, operation: Operation) -> None:
        outcome, name = self._state.outcome, operation.request.replica_id
        if outcome is None and name and name not in self._state.slots:
            self._answers.end(operation, f"The job has no replica {name} any more.", failed=True)
            return
        if operation.is_resumed and outcome is None:
            self._again[operation.request.command](operation)
        if outcome is None:
            self._rules[operation.request.command](operation)
        else:
            failed = bool(operation.request.replica_id)
            self._answers.end(operation, f"The job has ended: {outcome.reason}.", failed=failed)


def _who(request: Request) -> str:
    if request.group_rank is None:
        return f"Replica {request.replica_id}"
    return f"Worker {request.replica_id}.{request.group_rank}"


def _left_at(operation: Operation) -> str:
    return "" if operation.step is None else f"; it left at step {operation.step}"
