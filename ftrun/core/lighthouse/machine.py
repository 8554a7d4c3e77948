"""The lighthouse's decisions: ``handle(event, now) -> list[Instruction]``. Pure.

This file knows agents: their streams, heartbeats and slots. What it learns of replicas it passes on
to membership.py, whose theory of operation is in phases.py. All settings, events, instructions and
the journal's record are in events.py and can be had from here.

Rules for agents:
- A replica is as good as its agent's stream: when that ends, or is silent for
  ``heartbeat_timeout_s`` and still at a second look (suspicion.py), its replicas are lost, all in
  one change.
- A Hello is the whole truth about what an agent runs; what it does not name has ended.
- A slot has one owner; whoever starts a slot that is not his is told by AssignSlots to stop it.
- A job that is over makes room for the next one (next_job.py).

Not here: sockets, files, clocks (lighthouse/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrun.core import messages as m
from ftrun.core.lighthouse.agents import Agent
from ftrun.core.lighthouse.assignment import Assignment
from ftrun.core.lighthouse.checks import check_lighthouse
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSaid,
    AgentSaidMuch,
    CloseAgent,
    Event,
    Instruction,
    Journal,
    JournalRecord,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.next_job import NextJob, refusal
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.snapshot import snapshot
from ftrun.core.lighthouse.state import NO_SPEC, MembershipState
from ftrun.core.lighthouse.status import MembershipStatus
from ftrun.core.lighthouse.waits import Waits
from ftrun.core.messages import USAGE_CODE

__all__ = [
    "AgentAttached",
    "AgentDetached",
    "AgentSaid",
    "AgentSaidMuch",
    "CloseAgent",
    "Event",
    "Instruction",
    "Journal",
    "JournalRecord",
    "JournalState",
    "Lighthouse",
    "LighthouseSettings",
    "SendToAgent",
    "TimerFired",
]


class Lighthouse:
    """One job's authority on membership.

    ``journal``: what the last life has left, or an empty state. Then its ``epoch`` should be a
    number that no earlier life of this job can have reached (Q1).
    """

    def __init__(self, settings: LighthouseSettings, journal: JournalState, now: float) -> None:
        self._settings = settings
        self.next_job = NextJob()
        self._set_up(journal, now)
        self._handlers: dict[type, Callable[[Agent, Any], None]] = {
            m.WorkerMessage: self._on_worker,
            m.Heartbeat: self._on_heartbeat,
            m.ReplicaStarted: self._on_started,
            m.ReplicaLost: self._on_lost,
            m.ReplicaFinished: self._on_finished,
            m.AgentLeaving: self._on_agent_leaving,
            m.JobFailed: self._on_job_failed,
            m.Goodbye: self._on_goodbye,
        }

    def _set_up(self, journal: JournalState, now: float) -> None:
        """All that belongs to one job."""
        self.state = MembershipState(self._settings, journal, now)
        self.membership = Membership(self.state, journal)
        self.agents: dict[str, Agent] = {}
        self.assignment = Assignment(self.state, self.membership, self.agents, now)
        self.waits = Waits(self.state, self._gathers_until)
        self._nothing_ran = journal.quorum is None
        self._sweep_at: float | None = None
        self.state.journal()  # our epoch, before anything is said

    def _gathers_until(self) -> float | None:
        is_gathering = self.assignment.is_gathering
        return self.assignment.gathered_at() if is_gathering else None

    # ------------------------------------------------------------ what the shell asks

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event; the instructions are to be carried out in order."""
        state = self.state
        state.now = now
        if isinstance(event, AgentSaidMuch):
            self._on_messages(event)
        elif isinstance(event, AgentSaid):
            self._on_message(event.agent_id, event.message)
        elif isinstance(event, AgentAttached):
            self._on_attached(event)
        elif isinstance(event, AgentDetached):
            self._on_detached(event.agent_id, "the connection to its agent has ended")
        self._sweep()
        self._run_rules()
        return self.state.outbox.take()

    def _run_rules(self) -> None:
        """What follows from an event, when all of it is noted."""
        self._send_latecomers_home()
        self._run_membership_rules()
        self.waits.run_rules()

    def _run_membership_rules(self) -> None:
        """Slots follow the membership, and a replica that is to move is a drain of it."""
        self.membership.run_rules()
        self.assignment.run_rules()
        if self.membership.may_move:
            self.membership.run_rules()

    def next_deadline(self) -> float | None:
        """When TimerFired is due; None: never, as things are."""
        times = (
            self.membership.next_deadline(),
            self.assignment.share_at,
            self.waits.next_deadline(),
            self.next_job.next_deadline(),
            self._sweep_at,
        )
        return min((t for t in times if t is not None), default=None)

    def story(self, replica_id: str) -> list[str]:
        """What this replica and its slot went through of late, oldest first."""
        return self.state.history.story(replica_id)

    def snapshot(self, now: float) -> MembershipStatus:
        """Everything worth showing, as plain JSON."""
        return snapshot(self.state, self.agents.values(), self.waits.current(), now)

    def check(self) -> None:
        """Assert what must hold between events."""
        check_lighthouse(self.state, self.membership, self.agents, self.next_job)

    # ------------------------------------------------------------ agents come and go

    def _on_attached(self, event: AgentAttached) -> None:
        hello = event.hello
        self._on_detached(event.agent_id, "its agent has come by another stream")
        if self.next_job.begins_with(self.state, hello, is_deserted=self._is_deserted):
            self._begin_job(hello.spec)
        elif self.next_job.wants_another_run(self.state, hello):
            self._wait_for_another_run(hello)
            return
        refusal = self._refusal(event.agent_id, hello)
        if refusal:
            self.state.outbox.reject(event.agent_id, refusal)
            return
        self._admit(hello)

    def _admit(self, hello: m.Hello) -> None:
        """An agent is one of the job's."""
        state = self.state
        if state.spec is NO_SPEC:
            state.open(hello.spec)
        agent = Agent(hello.agent_id, hello.host, hello.store, hello.capacity, state.now)
        agent.is_leaving = not hello.capacity
        self.agents[agent.agent_id] = agent
        state.last_message_at[agent.agent_id] = state.now
        state.outbox.agents[agent.agent_id] = None
        if state.outcome is None:
            state.agents_seen = max(state.agents_seen, len(state.outbox.agents))
        self._sweep_by(state.now + state.spec.heartbeat_timeout_s)
        self._interrupt_first(agent.agent_id, hello)
        welcome = m.Welcome(state.attempts.epoch, state.settings.http)
        state.outbox.to_agent(agent.agent_id, welcome)
        if state.outcome is not None:
            state.outbox.to_agent(agent.agent_id, state.outcome)
        else:
            self._take_hello(agent, hello)
            if state.phase is Phase.FENCE and not hello.running:
                self.membership.forming.notice_wait(agent.agent_id)  # or it waits in silence

    # ------------------------------------------------------------ one job after the other

    @property
    def _is_deserted(self) -> bool:
        """Nobody runs any of the job, and nobody may be about to come back with some of it."""
        state = self.state
        is_empty = state.phase is Phase.EMPTY and not len(state.replicas)
        return is_empty and not self.agents and state.quorum is None

    def _begin_job(self, spec: m.JobSpec) -> None:
        """Nothing is left of the job before, but the numbers that it has used (Q1).

        Who still waits for another run of that one waits in vain.
        """
        former = self.state
        for agent_id in self.next_job.waiting:
            if former.outcome is not None:
                former.outbox.to_agent(agent_id, former.outcome)
        self.next_job.waiting.clear()
        self._set_up(JournalState(epoch=former.attempts.epoch, spec=spec), former.now)
        self.state.outbox.put_first(former.outbox.take())

    def _wait_for_another_run(self, hello: m.Hello) -> None:
        state = self.state
        agent_id, outcome = hello.agent_id, state.outcome
        assert outcome is not None
        if self.next_job.wait(state, hello):
            hellos = self.next_job.take()
            self._begin_job(hello.spec)
            for waited in hellos:
                self._admit(waited)
            return
        state.outbox.agents[agent_id] = None
        state.outbox.to_agent(agent_id, m.HeartbeatAck())  # a lighthouse is there
        here, nodes = len(self.next_job.waiting), self.next_job.wanted(state)
        text = (
            f"Job {state.spec.job_id} has ended ({outcome.reason}). {here} of {nodes} nodes are "
            f"here to run it again: it begins with the last of them, or not at all if that is not "
            f"here within {state.spec.join_timeout_s:g} s."
        )
        state.outbox.to_agent(agent_id, m.Notice("waiting", (), text))

    def _send_latecomers_home(self) -> None:
        """Too few came for another run: they hear how the last one has ended."""
        state = self.state
        for agent_id in self.next_job.late(state.now):
            if state.outcome is not None:
                state.outbox.to_agent(agent_id, state.outcome)
            state.outbox.agents.pop(agent_id, None)

    def _interrupt_first(self, agent_id: str, hello: m.Hello) -> None:
        """Whatever it runs gives up what it is in before it hears anything else.

        None of it is a member any more. It may have been isolated, and any other word would let it
        go on with a quorum that we have replaced (Q3).
        """
        state = self.state
        if hello.running and state.phase not in (Phase.TAKEOVER, Phase.ENDED):
            interrupt = m.Interrupt(state.attempts.highest)
            state.outbox.to_agent(agent_id, m.ToWorkers(hello.running, interrupt))

    def _refusal(self, agent_id: str, hello: m.Hello) -> str:
        if agent_id not in self.agents and len(self.agents) >= self.state.settings.agents_max:
            return f"this lighthouse serves {len(self.agents)} agents, and no more."
        return refusal(self.state, hello)

    def _take_hello(self, agent: Agent, hello: m.Hello) -> None:
        """What it runs, what has ended; the slots are told when that is known."""
        state = self.state
        is_of_old = bool(hello.running or hello.dead or hello.finished)
        is_of_old = is_of_old or self._has_known_another(hello)
        self._nothing_ran = self._nothing_ran and not is_of_old
        self.assignment.agent_came(agent, hello, is_of_old=is_of_old)
        for replica_id in hello.finished:
            state.slots.finish(replica_id)
        lives = {(x.replica_id, x.incarnation) for x in hello.running if not x.has_left}
        state.departed.hello(hello.store, lives)
        self._died(hello.dead)
        back = [r for x in hello.running if (r := self._start(agent, x)) is not None]
        self.assignment.agent_is_known(agent, hello)
        for replica in back:
            replica.was_interrupted = state.phase is not Phase.TAKEOVER
        state.send([replica.replica_id for replica in back], m.AskReport())
        if state.phase is Phase.TAKEOVER:
            self.membership.takeover.agent_came(self._nothing_ran)

    def _has_known_another(self, hello: m.Hello) -> bool:
        """It was in the job under an earlier lighthouse, if perhaps with no slot of its own.

        Where our journal is lost that tells that others may train on (Q3).
        """
        return hello.epoch not in (0, self.state.attempts.epoch)

    def _died(self, losses: tuple[m.Loss, ...]) -> None:
        known = [loss for loss in losses if loss.replica_id in self.state.slots]
        for loss in known:
            self.state.slots[loss.replica_id].dead = loss.incarnation
            self._note(loss.replica_id, loss)
        self.membership.lose(known, is_dead=True)

    def _start(self, agent: Agent, running: m.RunningReplica) -> Replica | None:
        """This agent runs this incarnation now; None if it may not, or we know."""
        state, name = self.state, running.replica_id
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
        former = state.replicas.at(name)
        if running.incarnation in (slot.dead, former.incarnation if former else None):
            return None
        if former is not None:
            self._died((m.Loss(name, former.incarnation, "it was started again"),))
        replica = Replica(name, running.incarnation, agent.agent_id, agent.store)
        state.replicas.add(replica)
        if running.has_left:  # it trains no more, and its slot is not free before it has ended
            replica.leaving, slot.dead = "drained", running.incarnation
            state.departed.died(name, running.incarnation)
            return None
        state.departed.started(agent.store, name, running.incarnation)
        return replica

    def _take_back(self, agent_id: str, replica_id: str) -> None:
        """The only living holder of the job's state is back: its slot is its own again."""
        self.state.slots.give(replica_id, "")
        former = self.state.replicas.at(replica_id)
        if former is not None:
            cause = "a member of the last quorum is back in its slot"
            loss = m.Loss(replica_id, former.incarnation, cause)
            self.membership.lose([loss], is_dead=False)
        self.assignment.send_slots(self.agents[agent_id])

    def _on_detached(self, agent_id: str, cause: str, is_dead: bool = False) -> None:
        state = self.state
        if agent_id in self.next_job.waiting:
            self.next_job.gone(agent_id)
            state.outbox.agents.pop(agent_id, None)
        agent = self.agents.get(agent_id)
        if agent is None or agent.gone_at is not None:
            return
        agent.gone_at = state.now
        del state.outbox.agents[agent_id]
        mine = state.replicas.of_agent(agent_id)
        where = f"{cause} (agent {agent_id}, host {agent.host})"
        losses = [m.Loss(r.replica_id, r.incarnation, where) for r in mine]
        for loss in losses:
            self._note(loss.replica_id, loss)
        self.membership.lose(losses, is_dead=is_dead)
        self._sweep_by(state.now + state.settings.reassign_grace_s)

    def _sweep_by(self, at: float) -> None:
        self._sweep_at = at if self._sweep_at is None else min(self._sweep_at, at)

    def _sweep(self) -> None:
        """Look at all agents, but only when the first of them can be overdue."""
        state = self.state
        if self._sweep_at is None or state.now < self._sweep_at:
            return
        timeout_s, grace_s = state.spec.heartbeat_timeout_s, state.settings.reassign_grace_s
        late_s = state.now - self._sweep_at
        for agent in list(self.agents.values()):
            if agent.gone_at is None and agent.silence_check.ends(
                agent.last_message_at, timeout_s, state.now, late_s
            ):
                cause = f"no heartbeat for {timeout_s:g} s"
                state.outbox.close(agent.agent_id, cause)
                self._on_detached(agent.agent_id, cause)
            if agent.gone_at is not None and state.now >= agent.gone_at + grace_s:
                self._forget(agent.agent_id)
        times = (agent.due_at(timeout_s, grace_s) for agent in self.agents.values())
        self._sweep_at = min(times, default=None)

    def _forget(self, agent_id: str) -> None:
        """It has been gone for long: its slots are free for others."""
        self.assignment.agent_gone(self.agents.pop(agent_id))
        del self.state.last_message_at[agent_id]

    # ------------------------------------------------------------ what agents say

    def _on_messages(self, event: AgentSaidMuch) -> None:
        """One after the other; what follows is looked for only where something can follow."""
        for message in event.messages:
            self._on_message(event.agent_id, message)
            if self.membership.may_move:
                self._run_membership_rules()

    def _on_message(self, agent_id: str, message: m.FromAgent) -> None:
        agent = self.agents.get(agent_id)
        if agent_id in self.next_job.waiting and isinstance(message, m.Heartbeat):
            self.state.outbox.to_agent(agent_id, m.HeartbeatAck())
        if agent is None or agent.gone_at is not None:
            return
        agent.last_message_at = self.state.last_message_at[agent.agent_id] = self.state.now
        handler = self._handlers.get(type(message))
        if handler is None:
            self.state.outbox.close(agent.agent_id, "a Hello comes first, and once")
            self._on_detached(agent.agent_id, "its agent does not keep to the protocol")
        elif self.state.phase is not Phase.ENDED or isinstance(message, m.Heartbeat):
            handler(agent, message)

    def _on_worker(self, agent: Agent, word: m.WorkerMessage) -> None:
        key = word.key
        replica = self.state.replicas.find(key.replica_id, key.incarnation)
        if replica is None or replica.agent_id != agent.agent_id:
            return
        if isinstance(word.message, m.Report):
            self.state.slots[key.replica_id].start_failure = None
        if 0 <= key.group_rank < self.state.workers:
            self._note(key.replica_id, word)
            self.membership.received(replica, key.group_rank, word.message)

    def _on_heartbeat(self, agent: Agent, heartbeat: m.Heartbeat) -> None:
        if not heartbeat.quiet:
            self.state.outbox.to_agent(agent.agent_id, m.HeartbeatAck())
        for line in heartbeat.progress:
            replica = self.state.replicas.find(line.replica_id, line.incarnation)
            if replica is not None and replica.agent_id == agent.agent_id:
                self.membership.received(replica, 0, line.progress)

    def _on_started(self, agent: Agent, started: m.ReplicaStarted) -> None:
        name = started.replica_id
        running = m.RunningReplica(name, started.incarnation)
        if self._start(agent, running) is not None:
            self.state.slots[name].restarts = started.restarts
            self._note(name, started)
            if agent.assigned is not None and name not in agent.assigned:
                self.assignment.send_slots(agent)  # it stops it: we have crossed on the way
        elif name not in self.state.slots.of(agent.agent_id):
            self.assignment.send_slots(agent)

    def _on_lost(self, agent: Agent, lost: m.ReplicaLost) -> None:
        name = lost.replica_id
        if name not in self.state.slots:
            return
        slot = self.state.slots[name]
        if slot.agent_id == agent.agent_id:
            slot.start_failure = lost.start_failure
        self._died((m.Loss(name, lost.incarnation, lost.cause, lost.killed),))
        if slot.agent_id == agent.agent_id:
            self.assignment.ended(name)
        if lost.start_failure is not None:
            self._judge_start(lost.start_failure)

    def _judge_start(self, failure: m.StartFailure) -> None:
        """End a job that never got going, if its script is to blame: once, not after all restarts.

        A wrong usage is wrong everywhere; any other failure, if it is the same in all replicas.
        """
        state = self.state
        if state.step_max > 0 or state.outcome is not None or state.slots.finished():
            return
        failures = [s.start_failure for s in state.slots]
        is_everywhere = all(f is not None and f.signature == failure.signature for f in failures)
        if not (is_everywhere or failure.exit_code == USAGE_CODE):
            return
        whose = "the replica" if len(failures) == 1 else f"all {len(failures)} replicas"
        whom = whose if is_everywhere else "the script"
        reason = f"{whom} failed before the first step: {failure.words}"
        self._end(failure.exit_code or 1, reason)

    def _on_finished(self, agent: Agent, finished: m.ReplicaFinished) -> None:
        name = finished.replica_id
        if name not in self.state.slots or self.state.slots[name].agent_id != agent.agent_id:
            return
        if self.state.slots[name].has_left:  # it ends well, but its part is not over
            self._on_lost(agent, m.ReplicaLost(name, finished.incarnation, "drained"))
            return
        self._note(name, finished)
        self.membership.ended(name, finished.incarnation)

    def _on_agent_leaving(self, agent: Agent, leaving: m.AgentLeaving) -> None:
        if not agent.is_leaving:
            mine = self.state.slots.of(agent.agent_id)
            self.assignment.agent_leaves(agent, {r.replica_id for r in leaving.running})
            self.membership.drain(mine)

    def _on_job_failed(self, agent: Agent, failed: m.JobFailed) -> None:
        self._end(failed.exit_code or 1, failed.reason)

    def _end(self, exit_code: int, reason: str) -> None:
        self.membership.switching.abandon()
        self.state.end(exit_code, reason)

    def _on_goodbye(self, agent: Agent, goodbye: m.Goodbye) -> None:
        self._on_detached(agent.agent_id, "its agent has ended", is_dead=True)
        self._forget(agent.agent_id)

    def _note(self, replica_id: str, what: object) -> None:
        self.state.history.note(self.state.now, replica_id, self.state.phase, what)
