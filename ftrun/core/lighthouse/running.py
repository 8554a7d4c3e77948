"""The incarnations that run on the agents: how they begin, die and end, as agents report it.

Rules:
- A Hello is complete: an incarnation of the agent's that it does not name has ended.
- A slot has one owner: an agent that starts another agent's slot is sent AssignSlots, by which it
  stops it.

Not here: streams and heartbeats (machine.py), the consequences for the quorum (membership.py).
"""

from __future__ import annotations

from ftrun.core import failure_kinds as kinds
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.books.facts import Lost, Started
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.assignment import Assignment
from ftrun.core.lighthouse.common_error import CommonError
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import EARLY, HAS_ENDED, IDLE, Absence, Slot
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.telling import tell
from ftrun.core.messages import USAGE_CODE

UNJOINED = "it has ended before it had joined the others"
UNTRAINED = "its script has ended with exit code 0"


class Running:
    """Passes on what agents report of replicas.

    ``nothing_ran``: neither the journal nor any agent knows of a replica that has run.
    """

    def __init__(
        self,
        state: MembershipState,
        membership: Membership,
        assignment: Assignment,
        agents: Agents,
    ) -> None:
        self.nothing_ran = True
        self._state = state
        self._membership = membership
        self._assignment = assignment
        self._agents = agents
        self._common_error = CommonError(state)

    def take_hello(self, agent: Agent, hello: m.Hello) -> None:
        """Note the agent's replicas and those that have ended; then send it its slots."""
        state = self._state
        is_of_old = bool(hello.running or hello.dead or hello.finished)
        is_of_old = is_of_old or self._has_known_another(hello)
        self.nothing_ran = self.nothing_ran and not is_of_old
        self._assignment.agent_came(hello, is_of_old=is_of_old)
        for replica_id in hello.finished:
            state.slots.finish(replica_id)
        lives = {(x.replica_id, x.incarnation) for x in hello.running if not x.has_left}
        state.departed.hello(hello.store, lives)
        self._died(hello.dead)
        back = [r for x in hello.running if (r := self._start(agent, x)) is not None]
        for kept in hello.kept:
            self._keep(agent, kept)
        self._assignment.agent_is_known(agent, hello)
        for replica in back:
            state.facts.append(Started(replica.replica_id, replica.incarnation))
            replica.was_interrupted = state.phase is not Phase.TAKEOVER
        state.send([replica.replica_id for replica in back], m.AskReport())
        if state.phase is Phase.TAKEOVER:
            self._membership.takeover.agent_came(self.nothing_ran)

    def _has_known_another(self, hello: m.Hello) -> bool:
        """Whether the agent was in the job under an earlier lighthouse, even without a slot.

        If our journal is lost, such an agent is the sign that others may train on (Q3).
        """
        return hello.epoch not in (0, self._state.attempts.epoch)

    def _died(self, losses: tuple[m.Loss, ...]) -> None:
        known = [loss for loss in losses if loss.replica_id in self._state.slots]
        for loss in known:
            self._state.slots[loss.replica_id].dead = loss.incarnation
            self._state.changed.add(loss.replica_id)
            self._state.record(loss.replica_id, loss)
        self._membership.losses.lose(known, is_dead=True)

    def _start(self, agent: Agent, running: m.RunningReplica) -> Replica | None:
        """Add an incarnation that the agent runs. None if it may not run it, or it is known."""
        state, name = self._state, running.replica_id
        if name not in state.slots:
            return None
        slot = state.slots[name]
        wanted = state.phase is Phase.FENCE and state.departed.contains(name, running.incarnation)
        if wanted and slot.agent_id not in ("", agent.agent_id):
            self._take_back(slot.agent_id, name)
        if slot.is_finished or slot.agent_id not in ("", agent.agent_id):
            return None
        if slot.agent_id != agent.agent_id:
            state.slots.give(name, agent.agent_id)
        slot.has_left = running.has_left
        former = state.replicas.get(name)
        if running.incarnation in (slot.dead, former.incarnation if former else None):
            return None
        if former is not None:
            self._died((m.Loss(name, former.incarnation, "it was restarted"),))
        replica = Replica(name, running.incarnation, agent.agent_id, agent.store)
        state.replicas.add(replica)
        slot.last = running.incarnation
        if running.has_left:  # it trains no more, but its slot is not free until it ends
            replica.leaving, slot.dead = m.LeaveReason.DRAINED, running.incarnation
            state.departed.died(name, running.incarnation)
            return None
        state.departed.started(agent.store, name, running.incarnation)
        return replica

    def _keep(self, agent: Agent, kept: m.KeptSlot) -> None:
        """A slot stays with the agent that is about to start it again, unless it is another's.

        It may have been given to another while this agent was away: a member of the last quorum
        runs there, or may, if the journal is lost. Then only a start decides.
        """
        state, name = self._state, kept.replica_id
        slot = state.slots.get(name)
        if slot is None or not slot.is_open or slot.agent_id not in ("", agent.agent_id):
            return
        members = () if state.quorum is None else state.quorum.members
        is_elsewhere = any(x.replica_id == name and x.store != agent.store for x in members)
        is_unknown = state.quorum is None and state.phase is Phase.TAKEOVER
        if slot.agent_id == "" and not (is_elsewhere or is_unknown):
            state.slots.give(name, agent.agent_id)
        if slot.agent_id == agent.agent_id:
            slot.restarts, slot.restarts_left = kept.restarts, kept.restarts_left

    def _take_back(self, agent_id: str, replica_id: str) -> None:
        """Give a slot back to a member of the last quorum, which may hold the job's only state."""
        self._state.slots.give(replica_id, "")
        former = self._state.replicas.get(replica_id)
        if former is not None:
            cause = "a member of the last quorum is back in its slot"
            loss = m.Loss(replica_id, former.incarnation, cause)
            self._membership.losses.lose([loss], is_dead=False)
        self._assignment.send_slots(self._agents[agent_id])

    def on_started(self, agent: Agent, started: m.ReplicaStarted) -> None:
        name = started.replica_id
        running = m.RunningReplica(name, started.incarnation)
        known = self._state.replicas.find(name, started.incarnation)
        if known is not None:  # a worker of it is replaced
            known.mends = started.mends
            self._state.slots[name].restarts = started.restarts
            self._state.slots[name].restarts_left = started.restarts_left
        elif started.mends:
            pass  # it has been given up meanwhile
        elif self._start(agent, running) is not None:
            self._state.slots[name].restarts = started.restarts
            self._state.slots[name].restarts_left = started.restarts_left
            self._state.record(name, started)
            self._state.facts.append(Started(name, started.incarnation))
            self._state.slots[name].restart_at = None
            self._state.slots[name].is_back()
            if agent.assigned is not None and name not in agent.assigned:
                self._assignment.send_slots(agent)  # it stops it: the two messages have crossed
        elif name not in self._state.slots.of(agent.agent_id):
            self._assignment.send_slots(agent)

    def on_lost(self, agent: Agent, lost: m.ReplicaLost) -> None:
        name = lost.replica_id
        if name not in self._state.slots:
            return
        slot = self._state.slots[name]
        if slot.agent_id == agent.agent_id:
            slot.start_failure = lost.start_failure
        if lost.kind:  # a failure
            tell(self._state, Lost(agent.agent_id, agent.host, lost))
        is_watched = lost.raised is not None or self._common_error.is_watching
        reason = self._common_error.lost(lost) if is_watched else ""
        if reason and lost.raised is not None:
            self._membership.end(lost.raised.exit_code, reason, kinds.BY_SCRIPT)
            return
        self._died((m.Loss(name, lost.incarnation, lost.cause, lost.killed),))
        if slot.agent_id == agent.agent_id:
            self._assignment.ended(name)
        if lost.start_failure is not None:
            self._judge_start(lost.start_failure)

    def _judge_start(self, failure: m.StartFailure) -> None:
        """End a job that never began to train, if its script is to blame: at once, without
        restarts.

        A usage error is to blame in any replica; any other failure, if it is the same in all
        replicas.
        """
        state = self._state
        if state.step_max > 0 or state.outcome is not None or state.slots.finished():
            return
        failures = [s.start_failure for s in state.slots.values()]
        is_everywhere = all(f is not None and f.signature == failure.signature for f in failures)
        if not (is_everywhere or failure.exit_code == USAGE_CODE):
            return
        whose = "the replica" if len(failures) == 1 else f"all {len(failures)} replicas"
        whom = whose if is_everywhere else "the script"
        reason = f"{whom} failed before the first step: {failure.words}"
        self._membership.end(failure.exit_code or 1, reason, kinds.BY_SCRIPT)

    def on_finished(self, agent: Agent, finished: m.ReplicaFinished) -> None:
        name = finished.replica_id
        if name not in self._state.slots:
            return
        slot = self._state.slots[name]
        if slot.agent_id in ("", agent.agent_id):
            self._note_absence(slot, finished)
        if slot.agent_id != agent.agent_id or slot.is_finished:
            return
        if self._state.slots[name].has_left:  # it ends well, but its part is not over
            self.on_lost(agent, m.ReplicaLost(name, finished.incarnation, "drained"))
            return
        self._state.record(name, finished)
        replica = self._state.replicas.find(name, finished.incarnation)
        if finished.unjoined and replica is not None and self._others_train(name):
            self._state.outbox.restart(replica, UNJOINED)
            return
        self._membership.leaving.ended(name, finished.incarnation)

    def _note_absence(self, slot: Slot, finished: m.ReplicaFinished) -> None:
        """Its script has ended well, but without what its peers do. It may be started again."""
        if slot.absence is not None:
            return
        name = slot.replica_id
        if finished.early is not None:
            self._state.slots.go_without(Absence(name, finished.early, HAS_ENDED, EARLY))
        elif finished.idle and not slot.has_trained:
            self._state.slots.go_without(Absence(name, self._state.step_max, UNTRAINED, IDLE))

    def _others_train(self, name: str) -> bool:
        """Whether some other replica trains, and is not at the end of its script."""
        state = self._state
        others = [state.replicas.get(other) for other in state.live if other != name]
        return any(
            other is not None
            and other.leaving is None
            and (other.progress is None or other.progress.phase is not Activity.ENDING)
            for other in others
        )
