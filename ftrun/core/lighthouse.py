"""The lighthouse's decisions: ``handle(event, now) -> list[Instruction]``. Pure.

This file knows agents: their streams, heartbeats and slots. What it learns of replicas it passes on
to membership.py, whose theory of operation is in phases.py. All settings, events, instructions and
the journal's record are in lighthouse_events.py and can be had from here.

Rules for agents:
- A replica is as good as its agent's stream: when that ends, or is silent for
  ``heartbeat_timeout_s`` and still at a second look (patience.py), its replicas are lost, all in
  one change.
- A Hello is the whole truth about what an agent runs; what it does not name has ended.
- A slot has one owner; whoever starts a slot that is not his is told by AssignSlots to stop it.

Not here: sockets, files, clocks (lighthouse/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from ftrun.core import messages as m
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse_events import (
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
from ftrun.core.membership import Membership
from ftrun.core.patience import Patience
from ftrun.core.phases import Phase
from ftrun.core.roster import Replica
from ftrun.core.snapshot import check_lighthouse, snapshot
from ftrun.core.stage import NO_SPEC, Stage

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


@dataclass(slots=True)
class Agent:
    """One node's agent. ``gone_at``: when its stream ended; None while it is attached.

    ``told``: the slots that it was last told to be its own; None before it was told any.
    """

    agent_id: str
    host: str
    store: str
    capacity: int
    heard_at: float
    gone_at: float | None = None
    told: tuple[str, ...] | None = None
    patience: Patience = field(default_factory=Patience)

    def due_at(self, timeout_s: float, grace_s: float) -> float:
        """When to look at it: whether it still speaks, or whether its slots are free for others."""
        if self.gone_at is not None:
            return self.gone_at + grace_s
        return self.patience.overdue_at(self.heard_at, timeout_s)


class Lighthouse:
    """One job's authority on membership.

    ``journal``: what the last life has left, or an empty state. Then its ``epoch`` should be a
    number that no earlier life of this job can have reached (Q1).
    """

    def __init__(self, settings: LighthouseSettings, journal: JournalState, now: float) -> None:
        self.stage = Stage(settings, journal, now)
        self.membership = Membership(self.stage, journal)
        self.agents: dict[str, Agent] = {}
        self._first_hello_at: float | None = None
        self._is_shared_out = False
        self._nothing_ran = journal.quorum is None
        self._free_from = now
        self._is_resumed = False
        self._share_at: float | None = None
        self._sweep_at: float | None = None
        self._said: dict[type, Callable[[Agent, Any], None]] = {
            m.WorkerMessage: self._on_worker,
            m.Heartbeat: self._on_heartbeat,
            m.ReplicaStarted: self._on_started,
            m.ReplicaLost: self._on_lost,
            m.ReplicaFinished: self._on_finished,
            m.DrainReplicas: self._on_drain,
            m.JobFailed: self._on_job_failed,
            m.Goodbye: self._on_goodbye,
        }
        self.stage.journal()  # our epoch, before anything is said

    # ------------------------------------------------------------ what the shell asks

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event; the instructions are to be carried out in order."""
        stage = self.stage
        stage.now = now
        if isinstance(event, AgentSaidMuch):
            self._on_said_much(event)
        elif isinstance(event, AgentSaid):
            self._on_said(event.agent_id, event.message)
        elif isinstance(event, AgentAttached):
            self._on_attached(event)
        elif isinstance(event, AgentDetached):
            self._on_detached(event.agent_id, "the connection to its agent has ended")
        self._sweep()
        self.membership.settle()
        self._assign()
        return stage.outbox.take()

    def next_deadline(self) -> float | None:
        """When TimerFired is due; None: never, as things are."""
        times = (self.membership.next_deadline(), self._share_at, self._sweep_at)
        return min((t for t in times if t is not None), default=None)

    def story(self, replica_id: str) -> list[str]:
        """What this replica and its slot went through of late, oldest first."""
        return self.stage.chronicle.story(replica_id)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Everything worth showing, as plain JSON."""
        return snapshot(self, now)

    def check(self) -> None:
        """Assert what must hold between events."""
        check_lighthouse(self)

    # ------------------------------------------------------------ agents come and go

    def _on_attached(self, event: AgentAttached) -> None:
        stage, hello = self.stage, event.hello
        self._on_detached(event.agent_id, "its agent has come by another stream")
        refusal = self._refusal(event.agent_id, hello)
        if refusal:
            stage.outbox.reject(event.agent_id, refusal)
            return
        if stage.spec is NO_SPEC:
            stage.open(hello.spec)
        agent = Agent(event.agent_id, hello.host, hello.store, hello.capacity, stage.now)
        self.agents[agent.agent_id] = agent
        stage.heard_at[agent.agent_id] = stage.now
        stage.outbox.agents[agent.agent_id] = None
        self._sweep_by(stage.now + stage.spec.heartbeat_timeout_s)
        self._interrupt_first(agent.agent_id, hello)
        welcome = m.Welcome(stage.numbering.epoch, stage.settings.http)
        stage.outbox.to_agent(agent.agent_id, welcome)
        if stage.outcome is not None:
            stage.outbox.to_agent(agent.agent_id, stage.outcome)
        else:
            self._take_hello(agent, hello)

    def _interrupt_first(self, agent_id: str, hello: m.Hello) -> None:
        """Whatever it runs gives up what it is in before it hears anything else.

        None of it is a member any more. It may have been isolated, and any other word would let it
        go on with a quorum that we have replaced (Q3).
        """
        stage = self.stage
        if hello.running and stage.phase not in (Phase.TAKEOVER, Phase.ENDED):
            interrupt = m.Interrupt(stage.numbering.highest)
            stage.outbox.to_agent(agent_id, m.ToWorkers(hello.running, interrupt))

    def _refusal(self, agent_id: str, hello: m.Hello) -> str:
        spec = self.stage.spec
        if hello.spec.job_id != spec.job_id and spec is not NO_SPEC:
            return (
                f"this lighthouse serves job {spec.job_id}, not {hello.spec.job_id}. Start another "
                "lighthouse with a --state-dir of its own, or give the --job-id of this one."
            )
        if hello.spec != spec and spec is not NO_SPEC:
            names = [f.name for f in fields(spec)]
            told = ", ".join(
                f"{name} {value} (here {ours})"
                for name in names
                if (value := getattr(hello.spec, name)) != (ours := getattr(spec, name))
            )
            return f"this agent was started with other options than the job: {told}."
        if agent_id not in self.agents and len(self.agents) >= self.stage.settings.agents_max:
            return f"this lighthouse serves {len(self.agents)} agents, and no more."
        return ""

    def _take_hello(self, agent: Agent, hello: m.Hello) -> None:
        """What it runs, what has ended; the slots are told when that is known."""
        stage = self.stage
        if self._first_hello_at is None:
            self._first_hello_at = stage.now
        if hello.running or hello.dead or hello.finished or self._has_known_another(hello):
            self._nothing_ran = False
            self._free_from = stage.now + stage.settings.reassign_grace_s
        self._is_resumed |= bool(hello.running)
        stage.slots.finish(hello.finished, "finished")
        stage.fence.hello(hello.store, {(x.replica_id, x.incarnation) for x in hello.running})
        self._died(hello.dead)
        back = [r for x in hello.running if (r := self._start(agent, x)) is not None]
        if self._is_shared_out or hello.running:
            self._tell_slots(agent.agent_id)
        for replica in back:
            replica.was_interrupted = stage.phase is not Phase.TAKEOVER
        stage.tell([replica.replica_id for replica in back], m.AskReport())
        if stage.phase is Phase.TAKEOVER:
            self.membership.takeover.agent_came(self._nothing_ran)

    def _has_known_another(self, hello: m.Hello) -> bool:
        """It was in the job under an earlier lighthouse, if perhaps with no slot of its own.

        Where our journal is lost that tells that others may train on (Q3).
        """
        return hello.epoch not in (0, self.stage.numbering.epoch)

    def _died(self, losses: tuple[m.Loss, ...]) -> None:
        known = [loss for loss in losses if loss.replica_id in self.stage.slots]
        for loss in known:
            self.stage.slots[loss.replica_id].dead = loss.incarnation
            self._note(loss.replica_id, loss)
        self.membership.lose(known, is_dead=True)

    def _start(self, agent: Agent, running: m.RunningReplica) -> Replica | None:
        """This agent runs this incarnation now; None if it may not, or we know."""
        stage, name = self.stage, running.replica_id
        if name not in stage.slots:
            return None
        slot = stage.slots[name]
        wanted = stage.phase is Phase.FENCE and stage.fence.holds(name, running.incarnation)
        if wanted and slot.agent_id not in ("", agent.agent_id):
            self._take_back(slot.agent_id, name)
        if slot.end or slot.agent_id not in ("", agent.agent_id):
            return None
        stage.slots.give(name, agent.agent_id)
        former = stage.roster.at(name)
        if running.incarnation in (slot.dead, former.incarnation if former else None):
            return None
        if former is not None:
            self._died((m.Loss(name, former.incarnation, "it was started again"),))
        stage.fence.started(agent.store, name, running.incarnation)
        replica = Replica(name, running.incarnation, agent.agent_id, agent.store)
        stage.roster.add(replica)
        return replica

    def _take_back(self, agent_id: str, replica_id: str) -> None:
        """The only living holder of the job's state is back: its slot is its own again."""
        self.stage.slots.give(replica_id, "")
        former = self.stage.roster.at(replica_id)
        if former is not None:
            cause = "a member of the last quorum is back in its slot"
            loss = m.Loss(replica_id, former.incarnation, cause)
            self.membership.lose([loss], is_dead=False)
        self._tell_slots(agent_id)

    def _on_detached(self, agent_id: str, cause: str, is_dead: bool = False) -> None:
        stage = self.stage
        agent = self.agents.get(agent_id)
        if agent is None or agent.gone_at is not None:
            return
        agent.gone_at = stage.now
        del stage.outbox.agents[agent_id]
        mine = stage.roster.of_agent(agent_id)
        where = f"{cause} (agent {agent_id}, host {agent.host})"
        losses = [m.Loss(r.replica_id, r.incarnation, where) for r in mine]
        for loss in losses:
            self._note(loss.replica_id, loss)
        self.membership.lose(losses, is_dead=is_dead)
        self._sweep_by(stage.now + stage.settings.reassign_grace_s)

    def _sweep_by(self, at: float) -> None:
        self._sweep_at = at if self._sweep_at is None else min(self._sweep_at, at)

    def _sweep(self) -> None:
        """Look at all agents, but only when the first of them can be overdue."""
        stage = self.stage
        if self._sweep_at is None or stage.now < self._sweep_at:
            return
        timeout_s, grace_s = stage.spec.heartbeat_timeout_s, stage.settings.reassign_grace_s
        late_s = stage.now - self._sweep_at
        for agent in list(self.agents.values()):
            if agent.gone_at is None and agent.patience.ends(
                agent.heard_at, timeout_s, stage.now, late_s
            ):
                cause = f"no heartbeat for {timeout_s:g} s"
                stage.outbox.close(agent.agent_id, cause)
                self._on_detached(agent.agent_id, cause)
            if agent.gone_at is not None and stage.now >= agent.gone_at + grace_s:
                self._forget(agent.agent_id)
        times = (agent.due_at(timeout_s, grace_s) for agent in self.agents.values())
        self._sweep_at = min(times, default=None)

    def _forget(self, agent_id: str) -> None:
        """It has been gone for long: its slots are free for others."""
        del self.agents[agent_id]
        del self.stage.heard_at[agent_id]
        self.stage.slots.release(agent_id)

    # ------------------------------------------------------------ slots

    def _assign(self) -> None:
        """Share the slots out at first; afterwards hand on those that are free."""
        stage = self.stage
        self._share_at = None
        if stage.phase in (Phase.TAKEOVER, Phase.ENDED) or not stage.outbox.agents:
            return
        if self._is_shared_out and stage.slots.free_count == 0:
            return
        due = max(self._free_from, self._gathered_at())
        if stage.now < due:
            self._share_at = due
            return
        if self._is_shared_out or stage.slots.free_count < stage.slots.open_count:
            told = stage.slots.hand_out(self._capacities())
        else:
            stage.slots.share_out(self._capacities())
            told = set(stage.outbox.agents)
        self._is_shared_out = True
        slots = stage.slots.by_agent()
        for agent_id in sorted(told):
            self._tell_slots(agent_id, tuple(slots.get(agent_id, ())))

    def _gathered_at(self) -> float:
        """When the first assignment need not wait for further agents.

        A job that runs has had its own under an earlier lighthouse: who is not back is gone.
        """
        stage = self.stage
        if self._is_shared_out or self._is_resumed or self._first_hello_at is None:
            return stage.now
        wait_s = stage.settings.assign_gather_s
        if len(stage.outbox.agents) < stage.spec.nodes:
            wait_s = max(wait_s, stage.spec.join_timeout_s)
        return self._first_hello_at + wait_s

    def _capacities(self) -> dict[str, int]:
        return {name: self.agents[name].capacity for name in self.stage.outbox.agents}

    def _tell_slots(self, agent_id: str, own: tuple[str, ...] | None = None) -> None:
        own = self.stage.slots.of(agent_id) if own is None else own
        self.agents[agent_id].told = own
        self.stage.outbox.to_agent(agent_id, m.AssignSlots(own))

    # ------------------------------------------------------------ what agents say

    def _on_said_much(self, event: AgentSaidMuch) -> None:
        """One after the other; what follows is looked for only where something can follow."""
        for message in event.messages:
            self._on_said(event.agent_id, message)
            if self.membership.may_move:
                self.membership.settle()
                self._assign()

    def _on_said(self, agent_id: str, message: m.FromAgent) -> None:
        agent = self.agents.get(agent_id)
        if agent is None or agent.gone_at is not None:
            return
        agent.heard_at = self.stage.heard_at[agent.agent_id] = self.stage.now
        handler = self._said.get(type(message))
        if handler is None:
            self.stage.outbox.close(agent.agent_id, "a Hello comes first, and once")
            self._on_detached(agent.agent_id, "its agent does not keep to the protocol")
        elif self.stage.phase is not Phase.ENDED or isinstance(message, m.Heartbeat):
            handler(agent, message)

    def _on_worker(self, agent: Agent, word: m.WorkerMessage) -> None:
        key = word.key
        replica = self.stage.roster.find(key.replica_id, key.incarnation)
        if replica is None or replica.agent_id != agent.agent_id:
            return
        if 0 <= key.group_rank < self.stage.workers:
            self._note(key.replica_id, word)
            self.membership.heard(replica, key.group_rank, word.message)

    def _on_heartbeat(self, agent: Agent, heartbeat: m.Heartbeat) -> None:
        if not heartbeat.quiet:
            self.stage.outbox.to_agent(agent.agent_id, m.HeartbeatAck())
        for line in heartbeat.progress:
            replica = self.stage.roster.find(line.replica_id, line.incarnation)
            if replica is not None and replica.agent_id == agent.agent_id:
                self.membership.heard(replica, 0, line.progress)

    def _on_started(self, agent: Agent, started: m.ReplicaStarted) -> None:
        running = m.RunningReplica(started.replica_id, started.incarnation)
        if self._start(agent, running) is not None:
            self.stage.slots[started.replica_id].restarts = started.restarts
            self._note(started.replica_id, started)
            if agent.told is not None and started.replica_id not in agent.told:
                self._tell_slots(agent.agent_id)  # it stops it: we have crossed on the way
        elif started.replica_id not in self.stage.slots.of(agent.agent_id):
            self._tell_slots(agent.agent_id)

    def _on_lost(self, agent: Agent, lost: m.ReplicaLost) -> None:
        if lost.replica_id in self.stage.slots:
            self._died((m.Loss(lost.replica_id, lost.incarnation, lost.cause),))

    def _on_finished(self, agent: Agent, finished: m.ReplicaFinished) -> None:
        name = finished.replica_id
        if name in self.stage.slots and self.stage.slots[name].agent_id == agent.agent_id:
            self._note(name, finished)
            self.membership.ended(name, finished.incarnation)

    def _on_drain(self, agent: Agent, drain: m.DrainReplicas) -> None:
        names = sorted((n for n in drain.replica_ids if n in self.stage.slots), key=replica_order)
        before = {self.stage.slots[name].agent_id for name in names}
        self.membership.drain(names)
        for agent_id in sorted(before - {"", agent.agent_id}):
            self._tell_slots(agent_id)  # those in no quorum stop now

    def _on_job_failed(self, agent: Agent, failed: m.JobFailed) -> None:
        self.membership.switching.abandon()
        self.stage.end(failed.exit_code or 1, failed.reason)

    def _on_goodbye(self, agent: Agent, goodbye: m.Goodbye) -> None:
        self._on_detached(agent.agent_id, "its agent has ended", is_dead=True)
        self._forget(agent.agent_id)

    def _note(self, replica_id: str, what: object) -> None:
        self.stage.chronicle.note(self.stage.now, replica_id, self.stage.phase, what)
