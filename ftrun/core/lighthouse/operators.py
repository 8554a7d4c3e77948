"""People's requests to a running job: drain, restart, kill, stacks. Each is an operation.

Rules:
- ``drain`` withdraws a slot: its replica leaves at a boundary that all have agreed on, and nobody
  gets the slot until ``restart``. A lighthouse that is restarted knows that from its journal.
- ``restart`` drains a replica whose slot stays with its agent, or gives a withdrawn slot back.
- ``kill`` and ``stack`` are carried out by the agent; a kill is healed as any other death.
- ``drain`` without a replica asks agents to leave, as SIGTERM to each of them does.
- A request that is repeated changes nothing more; its operation ends with the first one's.

Not here: how a replica leaves (leaving.py), what its agent does (core/agent/supervisor.py), the
routes (lighthouse/web.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.core import messages as m
from ftrun.core.ids import WorkerKey, replica_order
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.events import Operation, Request
from ftrun.core.lighthouse.history import replicas, sentence
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState

OPERATIONS_MAX = 256
STACKS_MAX = 512
"""The most workers whose stacks are taken at once; more are asked for replica by replica."""
STACKS_TIMEOUT_S = 5.0
NOT_FOUND, CONFLICT = 404, 409


class Refused(Exception):
    """A request that cannot be carried out; ``code``: the HTTP status of the answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Operators:
    """Carries requests out, and follows each of them to its end."""

    def __init__(self, state: MembershipState, membership: Membership, agents: Agents) -> None:
        self._state = state
        self._membership = membership
        self._agents = agents
        self._operations: dict[int, Operation] = {}
        self._asked: dict[str, tuple[str, bool]] = {}  # by slot: incarnation, at_boundary
        self._commands: dict[str, Callable[[Operation], None]] = {
            "drain": self._drain,
            "restart": self._restart,
            "kill": self._kill,
            "stack": self._stack,
        }
        self._rules: dict[str, Callable[[Operation], None]] = {
            "drain": self._follow_drain,
            "restart": self._follow_restart,
            "kill": self._follow_kill,
            "stack": self._follow_stack,
        }

    def __len__(self) -> int:
        return len(self._operations)

    def get(self, number: int) -> Operation | None:
        """The operation with this number, if it is still known."""
        return self._operations.get(number)

    def ask(self, number: int, request: Request) -> None:
        """Begin an operation; one that is refused has ended at once.

        While too many are under way it is not even noted, and ``get`` does not know it.
        """
        operation = Operation(number, request)
        if not self._make_room():
            return
        self._operations[number] = operation
        try:
            if self._state.phase is Phase.ENDED:
                raise Refused(CONFLICT, "the job has ended")
            self._commands[request.command](operation)
        except Refused as refusal:
            operation.refused = refusal.code
            self._end(operation, sentence(f"{refusal}."), failed=True)

    def run_rules(self) -> None:
        """Ask withdrawn replicas to leave, also those that came back; follow the operations."""
        state = self._state
        if state.phase not in (Phase.TAKEOVER, Phase.ENDED):
            for name in state.slots.withdrawn:
                self._keep_away(state.slots[name])
        for operation in self._operations.values():
            if not operation.has_ended:
                self._follow(operation)

    def _keep_away(self, slot: Slot) -> None:
        """A withdrawn replica that came back, or that is no member any more, is asked again."""
        name = slot.replica_id
        replica = self._state.replicas.at(name)
        if replica is not None:
            if not replica.leaving and name not in self._state.drains:
                self._ask_to_leave(replica, restart=False)
        elif slot.agent_id in self._state.outbox.agents and self._waits_for_boundary(name):
            self._send_stop(slot.agent_id, m.StopReplica(name, "", False))

    def _waits_for_boundary(self, name: str) -> bool:
        """Whether the slot's agent still believes that a boundary comes."""
        return self._asked.get(name, ("", True))[1]

    def next_deadline(self) -> float | None:
        """When the first request for stacks is answered with what there is."""
        times = [x.deadline for x in self._operations.values() if not x.has_ended and x.deadline]
        return min(times, default=None)

    def on_stacks(self, agent: Agent, taken: m.WorkerStacks) -> None:
        """One worker's stacks have come from its agent."""
        operation = self._operations.get(taken.request)
        if operation is not None and taken.key in operation.wanted:
            operation.wanted.discard(taken.key)
            operation.stacks[taken.key] = taken.text

    # ------------------------------------------------------------ drain

    def _drain(self, operation: Operation) -> None:
        request = operation.request
        if not request.replica_id:
            self._drain_agents(operation)
            return
        slot = self._slot(request.replica_id)
        name = slot.replica_id
        if slot.is_withdrawn and not slot.agent_id:
            self._end(operation, f"Replica {name} is drained already.")
            return
        if not slot.is_withdrawn:
            self._check_enough_stay(slot)
            self._state.slots.withdraw(name)
            slot.moves_to = ""
            self._state.journal()
            text = f"Replica {name} is drained: `ftrun drain`."
            self._state.outbox.notice("operator", [name], text)
        replica = self._state.replicas.at(name)
        if replica is not None:
            self._ask_to_leave(replica, restart=False)
        else:  # its agent knows whether it still ends, or waits for its restart
            self._send_stop(slot.agent_id, m.StopReplica(name, "", False))

    def _check_enough_stay(self, slot: Slot) -> None:
        state = self._state
        others = [s for s in state.slots if s.is_open and s is not slot]
        if not others:
            raise Refused(
                CONFLICT,
                f"replica {slot.replica_id} is the last one: without it the job would stand. To "
                "end the job in order, drain it without naming a replica",
            )
        if len(others) < state.spec.min_replicas:
            left = _counted(len(others), "replica")
            raise Refused(
                CONFLICT,
                f"{left} would be left, and --min-replicas asks for {state.spec.min_replicas}: "
                "training would stand. To replace one, use `ftrun restart`",
            )

    def _ask_to_leave(self, replica: Replica, *, restart: bool) -> None:
        name = replica.replica_id
        self._membership.drain([name])
        at_boundary = name in self._state.drains
        order = m.StopReplica(name, replica.incarnation, restart, at_boundary)
        if restart or self._asked.get(name) != (order.incarnation, at_boundary):
            self._send_stop(replica.agent_id, order)

    def _send_stop(self, agent_id: str, order: m.StopReplica) -> None:
        self._asked[order.replica_id] = (order.incarnation, order.at_boundary)
        self._state.outbox.to_agent(agent_id, order)

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
        where = f"node {node}" if node else "the whole job"
        self._state.outbox.notice("operator", (), f"`ftrun drain` of {where}.")
        for agent in found:
            self._state.outbox.to_agent(agent.agent_id, m.DrainAgent("ftrun drain"))

    def _follow_drain(self, operation: Operation) -> None:
        request = operation.request
        if not request.replica_id:
            self._follow_agents(operation)
            return
        state, name = self._state, request.replica_id
        slot, replica = state.slots[name], state.replicas.at(name)
        if slot.is_finished:
            self._end(operation, f"Replica {name} had come to its end.")
        elif not slot.is_withdrawn:
            self._end(operation, f"Replica {name} was asked for again meanwhile.", failed=True)
        elif not slot.agent_id:
            at = f" at step {operation.step}" if operation.step is not None else ""
            live = replicas(state.live)
            verb = "goes" if len(state.live) == 1 else "go"
            rest = f" {live[:1].upper()}{live[1:]} {verb} on." if state.live else ""
            self._end(operation, f"Replica {name} has left{at}.{rest}")
        else:
            self._show(operation, self._leaves(operation, replica))

    def _leaves(self, operation: Operation, replica: Replica | None) -> str:
        """When a replica leaves; the step is kept for the sentence at its end."""
        state, name = self._state, operation.request.replica_id
        if replica is None:
            return f"Replica {name} does not train any more; its processes end."
        quorum = state.quorum if state.phase is Phase.SWITCH else None
        if quorum is not None and quorum.index(name, replica.incarnation) is None:
            operation.step = state.switch_step
        if replica.leaving:
            return f"Replica {name} has left{_at(operation)}; its processes end."
        if operation.step is not None:
            return f"Replica {name} leaves at step {operation.step}."
        if name in state.live:
            return f"Replica {name} leaves at its next free boundary."
        return f"Replica {name} is in no quorum: it ends."

    def _follow_agents(self, operation: Operation) -> None:
        left = [a for a in self._agents.values() if a.agent_id in operation.agents]
        running = [agent for agent in left if agent.gone_at is None]
        if running:
            count = len(running)
            verb = "leaves" if count == 1 else "leave"
            text = f"{_counted(count, 'agent')} {verb}, with all replicas at their next boundary."
            self._show(operation, text)
            return
        node = operation.request.node
        self._end(operation, f"Node {node} has left." if node else "All agents have left.")

    # ------------------------------------------------------------ restart

    def _restart(self, operation: Operation) -> None:
        state = self._state
        slot = self._slot(operation.request.replica_id)
        name = slot.replica_id
        replica = state.replicas.at(name)
        if slot.is_withdrawn:
            state.slots.restore(name)
            state.journal()
            self._asked.pop(name, None)
            if slot.agent_id:  # it leaves still: then it starts again
                operation.incarnation = "" if replica is None else replica.incarnation
                slot.moves_to = slot.agent_id
                at_boundary = name in state.drains
                order = m.StopReplica(name, operation.incarnation, True, at_boundary)
                self._send_stop(slot.agent_id, order)
            state.outbox.notice(
                "operator", [name], f"Replica {name} starts again: `ftrun restart`."
            )
            return
        if not slot.agent_id:
            raise Refused(CONFLICT, f"replica {name} waits for a node: none has room for it")
        state.outbox.notice("operator", [name], f"Replica {name} is restarted: `ftrun restart`.")
        if replica is None:
            self._send_stop(slot.agent_id, m.StopReplica(name, "", True))
            return
        operation.incarnation = replica.incarnation
        operation.was_live = name in state.live
        slot.moves_to = slot.moves_to or slot.agent_id
        self._ask_to_leave(replica, restart=True)

    def _follow_restart(self, operation: Operation) -> None:
        state, name = self._state, operation.request.replica_id
        slot, replica = state.slots[name], state.replicas.at(name)
        if slot.is_finished:
            self._end(operation, f"Replica {name} had come to its end.")
        elif slot.is_withdrawn:
            self._end(operation, f"Replica {name} was drained meanwhile.", failed=True)
        elif replica is not None and replica.incarnation == operation.incarnation:
            if not replica.leaving and name not in state.drains:
                self._ask_to_leave(replica, restart=True)  # it was lost and is back
            self._show(operation, f"{self._leaves(operation, replica)} Then it starts again.")
        elif replica is None:
            self._leave_now(operation, slot)
            self._show(operation, f"Replica {name} starts again.")
        elif name in state.live:
            self._end(operation, f"Replica {name} trains again{_left_at(operation)}.")
        elif not operation.was_live and operation.incarnation:
            self._end(operation, f"Replica {name} runs again{_left_at(operation)}.")
        else:
            self._show(operation, f"Replica {name} has started again, and joins its peers.")

    def _leave_now(self, operation: Operation, slot: Slot) -> None:
        """It was in no quorum, as turned out (a takeover), and its agent waits for a boundary."""
        name, incarnation = slot.replica_id, operation.incarnation
        waits = self._asked.get(name) == (incarnation, True) and slot.dead != incarnation
        if waits and slot.agent_id in self._state.outbox.agents:
            self._send_stop(slot.agent_id, m.StopReplica(name, incarnation, True))

    # ------------------------------------------------------------ kill

    def _kill(self, operation: Operation) -> None:
        replica, ranks = self._running(operation)
        operation.incarnation = replica.incarnation
        who = _who(operation.request)
        self._state.outbox.notice(
            "operator", [replica.replica_id], f"{who} is killed: `ftrun kill`."
        )
        kill = m.KillWorkers(replica.replica_id, replica.incarnation, ranks)
        self._state.outbox.to_agent(replica.agent_id, kill)

    def _follow_kill(self, operation: Operation) -> None:
        who = _who(operation.request)
        replica = self._state.replicas.at(operation.request.replica_id)
        if replica is not None and replica.incarnation == operation.incarnation:
            self._show(operation, f"{who} is being killed.")
        else:
            self._end(operation, f"{who} is dead. Its agent treats that as any failure.")

    # ------------------------------------------------------------ stacks

    def _stack(self, operation: Operation) -> None:
        state = self._state
        if operation.request.replica_id:
            replica, ranks = self._running(operation)
            targets = [(replica, ranks)]
        else:
            everyone = tuple(range(state.workers))
            in_order = sorted(state.replicas, key=lambda r: replica_order(r.replica_id))
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
        text = f"Stacks of {_counted(count, 'worker')}."
        if missing:
            text += f" {missing} did not answer within {STACKS_TIMEOUT_S:g} s."
        self._end(operation, text, failed=not count)

    # ------------------------------------------------------------ all of them

    def _slot(self, replica_id: str) -> Slot:
        slots = self._state.slots
        if replica_id not in slots:
            last = len(slots) - 1
            known = f"0 to {last}" if last > 0 else "0 only" if last == 0 else "none yet"
            raise Refused(NOT_FOUND, f"the job has no replica {replica_id!r}: it has {known}")
        if slots[replica_id].is_finished:
            raise Refused(CONFLICT, f"replica {replica_id} has finished")
        return slots[replica_id]

    def _running(self, operation: Operation) -> tuple[Replica, tuple[int, ...]]:
        """The replica of a request and the ranks that it means."""
        request, workers = operation.request, self._state.workers
        slot = self._slot(request.replica_id)
        replica = self._state.replicas.at(slot.replica_id)
        if replica is None:
            raise Refused(CONFLICT, f"replica {slot.replica_id} does not run now")
        if request.group_rank is None:
            return replica, tuple(range(workers))
        if request.group_rank >= workers:
            raise Refused(
                NOT_FOUND,
                f"replica {slot.replica_id} has no worker {request.group_rank}: it has "
                f"{workers} of them, from 0 on",
            )
        return replica, (request.group_rank,)

    def _follow(self, operation: Operation) -> None:
        outcome = self._state.outcome
        if outcome is None:
            self._rules[operation.request.command](operation)
        else:
            failed = bool(operation.request.replica_id)
            self._end(operation, f"The job has ended: {outcome.reason}.", failed=failed)

    def _show(self, operation: Operation, text: str) -> None:
        if operation.text != text:
            operation.text = text
            self._state.outbox.operation_changed(operation.number)

    def _end(self, operation: Operation, text: str, *, failed: bool = False) -> None:
        operation.has_ended, operation.has_failed = True, failed
        operation.text = text
        self._state.outbox.operation_changed(operation.number)

    def _make_room(self) -> bool:
        """Forget the oldest operation that has ended, if there are too many; False: none has."""
        if len(self._operations) < OPERATIONS_MAX:
            return True
        ended = (number for number, x in self._operations.items() if x.has_ended)
        oldest = next(ended, None)
        if oldest is not None:
            del self._operations[oldest]
        return oldest is not None


def _who(request: Request) -> str:
    if request.group_rank is None:
        return f"Replica {request.replica_id}"
    return f"Worker {request.replica_id}.{request.group_rank}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _at(operation: Operation) -> str:
    return "" if operation.step is None else f" at step {operation.step}"


def _left_at(operation: Operation) -> str:
    return "" if operation.step is None else f"; it left at step {operation.step}"


def _host_name(agent: Agent) -> str:
    """The name of an agent's machine: its id without the random end."""
    return agent.agent_id.rpartition("-")[0] or agent.agent_id


def _is_named(agent: Agent, name: str) -> bool:
    return name in (agent.agent_id, _host_name(agent), agent.host)
