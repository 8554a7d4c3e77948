"""The lighthouse's decisions: ``handle(event, now) -> list[Instruction]``. Pure.

This file handles agents: their streams and heartbeats. What they report of replicas goes to
running.py, what workers report to membership.py; the theory of operation is in phases.py. Settings,
events, instructions and the journal's record are defined in events.py and exported here too.

Rules for agents (running.py has those for their replicas):
- All replicas of an agent are lost, in one change, when its stream ends, or when it is silent for
  ``heartbeat_timeout_s`` and at a second check (suspicion.py), or when its node is out of reach
  (reach.py).
- A job that is over makes room for the next one (next_job.py).

Not here: sockets, files, clocks (lighthouse/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrun.base.errors import assert_never
from ftrun.core import messages as m
from ftrun.core.activity import NOT_ITS_OWN, Activity
from ftrun.core.books.books import Books
from ftrun.core.books.facts import AgentCame, Fact, Failed, Healed, NodeLost, StoodStill
from ftrun.core.books.records import AccountRecord
from ftrun.core.lighthouse import events as e
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.assignment import Assignment
from ftrun.core.lighthouse.checks import check_lighthouse
from ftrun.core.lighthouse.giving_up import GivingUp
from ftrun.core.lighthouse.glance import Glances
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.next_job import NextJob, outcome_of, refusal
from ftrun.core.lighthouse.people.operators import Operators
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.presence import Presence
from ftrun.core.lighthouse.reach import Reach
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.running import Running
from ftrun.core.lighthouse.set_aside import SetAside
from ftrun.core.lighthouse.snapshot import Facts, snapshot
from ftrun.core.lighthouse.state import NO_SPEC, MembershipState
from ftrun.core.lighthouse.status import MembershipStatus
from ftrun.core.lighthouse.telling import seen, tell
from ftrun.core.lighthouse.waits import Waits
from ftrun.core.version import unlike_version

ANOTHER_JOB = "another job has begun, and no replica of this one was left: what followed is unknown"
CUT_OFF = (
    "no agent was heard for a while, so this lighthouse was cut off from all of them. No replica "
    "is lost by that. The lighthouse starts over, and takes over what it finds."
)
ANSWERS = frozenset({m.Built, m.Promised, m.InForce})
"""Messages that the books do not need: two of three at a death."""
TAKEN_AT_THE_END = (m.Heartbeat, m.FailureEvidence)
"""Messages that are accepted from agents of a job that has ended."""


class Lighthouse:
    """One job's authority on membership.

    ``journal``: the record that the lighthouse's last life has written, or an empty state. The
    ``epoch`` of an empty one should be a number that no earlier life of this job can have reached
    (Q1). ``account``: the last life's, if there is one; no decision depends on it.
    """

    def __init__(
        self,
        settings: e.LighthouseSettings,
        journal: e.JournalState,
        now: float,
        account: AccountRecord | None = None,
    ) -> None:
        self._settings = settings
        self.next_job = NextJob()
        self._set_up(journal, now, account)

    def _set_up(
        self, journal: e.JournalState, now: float, account: AccountRecord | None = None
    ) -> None:
        """Create all that belongs to one job."""
        self.state = MembershipState(self._settings, journal, now)
        self.membership = Membership(self.state, journal)
        self.agents = Agents(self.state)
        self.reach = Reach(self.state, self.agents, self.membership.takeover)
        self.books = Books(now, self._settings.changes_max, account)
        self.glances = Glances(self.state, self.books.account)
        self.assignment = Assignment(self.state, self.membership, self.agents, now)
        self.presence = Presence(self.state)
        self.waits = Waits(self.membership, self.assignment, self.presence)
        self.running = Running(self.state, self.membership, self.assignment, self.agents)
        self.operators = Operators(self.state, self.membership, self.agents)
        self.running.nothing_ran = journal.quorum is None
        self.aside = SetAside(self.state, self.agents, self.assignment)
        self.giving_up = GivingUp(
            self.state, self.membership, self.assignment, self.agents, self.aside
        )
        self._handlers: dict[type, Callable[[Agent, Any], None]] = {
            m.WorkerMessage: self._on_worker,
            m.Heartbeat: self._on_heartbeat,
            m.ReplicaStarted: self.running.on_started,
            m.ReplicaLost: self.running.on_lost,
            m.FailureEvidence: self._on_evidence,
            m.ReplicaFinished: self.running.on_finished,
            m.AgentLeaving: self._on_agent_leaving,
            m.JobFailed: self._on_job_failed,
            m.ReplicaGivenUp: self.giving_up.on_given_up,
            m.Goodbye: self._on_goodbye,
            m.WorkerStacks: self.operators.on_stacks,
            m.PeersSilent: self._on_peers_silent,
        }
        self.state.journal()  # our epoch, before anything is sent
        self._tell()

    # ------------------------------------------------------------ what the shell asks

    def handle(self, event: e.Event, now: float) -> list[e.Instruction]:
        """Take one event; the instructions are to be carried out in order."""
        state = self.state
        state.now = now
        if self.agents.is_deaf and self._hears_again(event):
            state.outbox.begin_again(CUT_OFF)
            return state.outbox.take()
        match event:
            case e.AgentSent():
                self._on_messages(event)
            case e.AgentAttached():
                self._on_attached(event)
            case e.AgentDetached(agent_id):
                if not self.agents.becomes_deaf():
                    self._on_detached(agent_id, "the connection to its agent has ended")
            case e.OperatorAsked(number, request):
                self.operators.ask(number, request)
            case e.TimerFired():
                pass  # the rules run after every event
            case _:
                assert_never(event)
        if self.reach.due is not None and now >= self.reach.due:
            self._lose_unreached()
        if self.agents.check_at is not None and now >= self.agents.check_at:
            self._sweep()
        if not self.agents.is_deaf:
            self._run_rules()
        self._tell()
        if self.state.ended_at == now:
            self._account_for_the_end()
        for record in self.books.settle(now):
            self.state.outbox.save(record)
        return self.state.outbox.take()

    def _hears_again(self, event: e.Event) -> bool:
        return isinstance(event, e.AgentAttached | e.AgentSent) and self.agents.hears_again(
            event.agent_id
        )

    def _tell(self, *more: Fact) -> None:
        """Send the books what has happened and changed since the last call, and then ``more``."""
        state = self.state
        tell(state, *more)
        for record in self.books.take(state.facts, state.now):
            state.outbox.save(record)
        state.facts.clear()

    def _account_for_the_end(self) -> None:
        """The job ends in this event: add the account of its time to its agents' message."""
        outcome, account = self.state.outcome, self.books.account
        if outcome is not None and outcome.account is None and account.is_open:
            lost = self.books.incidents.steps_lost()
            self.state.account_for(account.of_job(self.state.now, lost))

    def _run_rules(self) -> None:
        """Apply the rules, once all of an event is noted.

        Rules for rare conditions run only while there is such a condition.
        """
        state = self.state
        if self.next_job.waiting:
            self.next_job.send_home(state)
        all_leave = bool(self.agents) and all(agent.is_leaving for agent in self.agents.values())
        if self.membership.leaving.gathered_at is not None:
            self.membership.leaving.drain_gathered(are_all_here=all_leave)
        self._run_membership_rules()
        if all_leave:
            self.membership.end_if_deserted()
        if self.giving_up.unanswered or self.membership.leaving.early:
            self.giving_up.run_rules()
        if state.operations.are_under_way or state.slots.withdrawn:
            self.operators.run_rules()
        if self.membership.may_move:
            self._run_membership_rules()
        if not self.presence.is_idle:
            self.presence.run_rules()
        self.waits.run_rules()

    def _run_membership_rules(self) -> None:
        """Membership, then slots: moving a replica to another agent begins with a drain."""
        self.membership.run_rules()
        if self.state.slots.free_count:
            self.aside.take_back()
        self.assignment.run_rules()
        if self.membership.may_move:
            self.membership.run_rules()

    def next_deadline(self) -> float | None:
        """When TimerFired is due next; None: not before another event."""
        if self.agents.is_deaf:
            return self.agents.check_at
        times = (
            self.membership.next_deadline(),
            self.assignment.share_at,
            self.waits.next_deadline(),
            self.next_job.next_deadline(),
            self.agents.check_at,
            self.reach.due,
            self.operators.next_deadline(),
            self.presence.next_deadline(),
            self.books.incidents.gone_at,
        )
        return min((t for t in times if t is not None), default=None)

    @property
    def leaving(self) -> int:
        """How many of the attached agents leave: all, once the job has ended."""
        is_over = self.state.outcome is not None
        return sum(is_over or self.agents[agent_id].is_leaving for agent_id in self.attached())

    def attached(self) -> list[str]:
        """The agents of this job whose streams are open."""
        return [agent_id for agent_id, agent in self.agents.items() if agent.gone_at is None]

    def story(self, replica_id: str) -> list[str]:
        """The last events of this replica and its slot, oldest first."""
        return self.state.story(replica_id)

    def snapshot(self, now: float) -> MembershipStatus:
        return snapshot(
            Facts(
                self.state,
                self.agents,
                self.books,
                self.waits.current(),
                self.membership.standstill.hung(now),
            ),
            now,
        )

    def operation(self, number: int, request_id: str = "") -> e.Operation | None:
        """The state of a request, by its number or its id; None: it is not known."""
        return self.operators.get(number, request_id)

    def check(self) -> None:
        """Assert what must hold between events."""
        check_lighthouse(self.state, self.membership, self.agents, self.next_job)
        self.books.check(seen(self.state, slot) for slot in self.state.slots.values())

    # ------------------------------------------------------------ agents come and go

    def _on_attached(self, event: e.AgentAttached) -> None:
        hello = event.hello
        self._on_detached(event.agent_id, "its agent has come by another stream", is_back=True)
        unlike = unlike_version(hello.version, "this agent")
        if unlike:
            self.state.outbox.reject(event.agent_id, unlike)
            return
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
        state = self.state
        if state.spec is NO_SPEC:
            state.open(hello.spec)
        state.facts.append(AgentCame(hello.age_s, hello.incidents))
        agent = Agent(hello.agent_id, hello.host, hello.store, hello.capacity, state.now)
        agent.is_leaving = not hello.capacity
        agent.rank = hello.rank
        agent.is_back = hello.epoch not in (0, state.attempts.epoch)
        for former in self.agents.succeeded_by(agent):
            self._forget(former)
        self.agents.attach(agent)
        if state.attempts.outrun_epoch(hello.epoch):  # otherwise the agent would not follow us
            state.journal()
        self._interrupt_first(agent.agent_id, hello)
        welcome = m.Welcome(state.attempts.epoch, state.settings.http)
        state.outbox.to_agent(agent.agent_id, welcome)
        if state.outcome is not None:
            state.outbox.to_agent(agent.agent_id, state.outcome)
        else:
            self.running.take_hello(agent, hello)
            self.operators.agent_came(agent)
            if state.phase is Phase.FENCE and not hello.running:
                self.membership.forming.notice_wait(agent.agent_id)  # else its user sees no reason

    # ------------------------------------------------------------ one job after the other

    @property
    def _is_deserted(self) -> bool:
        """Whether no replica of the job runs, and none can be about to come back."""
        state = self.state
        is_empty = state.phase is Phase.EMPTY and not len(state.replicas)
        return is_empty and not self.agents and state.quorum is None

    def _begin_job(self, spec: m.JobSpec) -> None:
        """Begin another job. Of the former one only the used numbers stay (Q1).

        Agents that still wait for another run of the former job are sent its outcome.
        """
        former = self.state
        for agent_id in self.next_job.waiting:
            former.outbox.to_agent(agent_id, outcome_of(former))
        self.next_job.waiting.clear()
        for record in self.books.abandon(ANOTHER_JOB, former.now):
            former.outbox.save(record)
        last = self.books.incidents.last_number if former.spec.job_id == spec.job_id else 0
        self._set_up(e.JournalState(epoch=former.attempts.epoch, spec=spec), former.now)
        self.books.incidents.go_on_after(last)
        self.state.outbox.put_first(former.outbox.take())

    def _wait_for_another_run(self, hello: m.Hello) -> None:
        if not self.next_job.wait(self.state, hello):
            return
        hellos = self.next_job.take()
        self._begin_job(hello.spec)
        for waited in hellos:
            self._admit(waited)

    def _interrupt_first(self, agent_id: str, hello: m.Hello) -> None:
        """Interrupt all replicas of a new agent, before it is sent anything else.

        None of them is a member any more. They may have been isolated, and any other message would
        let them resume a quorum that has been replaced (Q3).
        """
        state = self.state
        if hello.running and state.phase not in (Phase.TAKEOVER, Phase.ENDED):
            interrupt = m.Interrupt(state.attempts.highest)
            state.outbox.to_agent(agent_id, m.ToWorkers(hello.running, interrupt))

    def _refusal(self, agent_id: str, hello: m.Hello) -> str:
        if agent_id not in self.agents and len(self.agents) >= self.state.settings.agents_max:
            return f"this lighthouse serves {len(self.agents)} agents, and no more."
        return refusal(self.state, hello) or self.agents.why_apart(agent_id, hello.host)

    def _on_detached(
        self, agent_id: str, cause: str, is_dead: bool = False, is_back: bool = False
    ) -> None:
        """The stream is over.

        ``is_dead``: its agent has ended. ``is_back``: the agent has another one.
        """
        state = self.state
        if agent_id in self.next_job.waiting:
            self.next_job.gone(agent_id)
            state.outbox.agents.pop(agent_id, None)
        agent = self.agents.detach(agent_id)
        if agent is None:
            return
        mine = state.replicas.of_agent(agent_id)
        where = f"{cause} (agent {agent_id}, host {agent.host})"
        losses = [m.Loss(r.replica_id, r.incarnation, where) for r in mine]
        for loss in losses:
            self.state.record(loss.replica_id, loss)
        if losses and not (is_dead or is_back) and state.outcome is None:  # otherwise it is no loss
            self._tell(NodeLost(agent.agent_id, agent.host, tuple(losses)))
        self.membership.losses.lose(losses, is_dead=is_dead)

    def _sweep(self) -> None:
        """Declare silent agents lost, and free the slots of those that were detached for long."""
        cause = f"no heartbeat for {self.state.spec.heartbeat_timeout_s:g} s"
        for agent in self.agents.silent():
            self._give_up(agent.agent_id, cause)
        for agent_id in self.agents.long_gone():
            self._forget(agent_id)
        self.agents.plan_check()

    def _lose_unreached(self) -> None:
        """Declare the agents lost whose nodes are out of reach. They are not waited for."""
        for agent, cause in self.reach.gone():
            self._give_up(agent.agent_id, cause)

    def _give_up(self, agent_id: str, cause: str) -> None:
        self.state.outbox.close(agent_id, f"it has given this node up: {cause}")
        self._on_detached(agent_id, cause)

    def _forget(self, agent_id: str) -> None:
        self.assignment.agent_gone(self.agents.forget(agent_id))

    # ------------------------------------------------------------ messages of agents

    def _on_messages(self, event: e.AgentSent) -> None:
        """Handle messages in order; run the rules in between if one may have changed something."""
        for number, message in enumerate(event.messages):
            if number and self.membership.may_move:
                self._run_membership_rules()
            self._on_message(event.agent_id, message)

    def _on_message(self, agent_id: str, message: m.FromAgent) -> None:
        agent = self.agents.get(agent_id)
        if agent_id in self.next_job.waiting and isinstance(message, m.Heartbeat):
            self.state.outbox.to_agent(agent_id, m.HeartbeatAck())
        if agent is None or agent.gone_at is not None:
            return
        agent.last_message_at = self.state.last_message_at[agent_id] = self.state.now
        self.agents.heard_at = self.state.now
        handler = self._handlers.get(type(message))
        if handler is None:
            self.state.outbox.close(agent.agent_id, "a Hello comes first, and once")
            self._on_detached(agent.agent_id, "its agent does not keep to the protocol")
        elif self.state.phase is not Phase.ENDED or isinstance(message, TAKEN_AT_THE_END):
            handler(agent, message)

    def _on_worker(self, agent: Agent, word: m.WorkerMessage) -> None:
        key = word.key
        replica = self.state.replicas.find(key.replica_id, key.incarnation)
        if replica is None or replica.agent_id != agent.agent_id:
            return
        if isinstance(word.message, m.Report):
            self.state.slots[key.replica_id].start_failure = None
        if 0 <= key.group_rank < self.state.workers:
            self.state.record(key.replica_id, word)
            if type(word.message) not in ANSWERS or self.state.phase is Phase.TAKEOVER:
                self.state.changed.add(key.replica_id)
            if isinstance(word.message, m.Present):
                if word.message.ended is not None and key.group_rank == 0:
                    self.membership.divergence.ended(replica, word.message.ended)
                self.presence.on_present(replica, key.group_rank, word.message)
                return
            if isinstance(word.message, m.Healed):
                self.state.facts.append(Healed(key.replica_id, word.message))
            self.membership.received(replica, key.group_rank, word.message)

    def _on_heartbeat(self, agent: Agent, heartbeat: m.Heartbeat) -> None:
        if not heartbeat.quiet:
            glance = self.glances.now() if heartbeat.wants_glance else None
            ack = m.HeartbeatAck(glance, self.membership.divergence.agreed)
            self.state.outbox.to_agent(agent.agent_id, ack)
        for line in heartbeat.progress:
            replica = self.state.replicas.find(line.replica_id, line.incarnation)
            if replica is not None and replica.agent_id == agent.agent_id:
                self._on_progress(replica, line.progress)
                if agent.failures and line.progress.phase not in NOT_ITS_OWN:
                    self.aside.progressed(agent, line.progress.step)
        for facts in heartbeat.workers:
            self._on_facts(agent, facts)

    def _on_facts(self, agent: Agent, facts: m.WorkerFacts) -> None:
        key = facts.key
        replica = self.state.replicas.find(key.replica_id, key.incarnation)
        is_its_own = replica is not None and replica.agent_id == agent.agent_id
        if replica is not None and is_its_own and key.group_rank < self.state.workers:
            replica.facts[key.group_rank] = (self.state.now - facts.age_s, facts)

    def _on_progress(self, replica: Replica, progress: m.Progress) -> None:
        name = replica.replica_id
        self.state.slots[name].has_trained |= progress.steps > 0
        self.membership.received(replica, 0, progress)
        self.state.changed.add(name)
        if progress.phase is Activity.STOPPED:
            self.state.facts.append(StoodStill(name, progress.since_s))

    def _on_evidence(self, agent: Agent, evidence: m.FailureEvidence) -> None:
        self._tell(Failed(agent.agent_id, agent.host, evidence))
        if evidence.replica_id in self.state.slots:
            slot = self.state.slots[evidence.replica_id]
            slot.ended = evidence.incarnation
            if evidence.restart_in_s:
                slot.restart_at = self.state.now + evidence.restart_in_s
        self.state.changed.add(evidence.replica_id)
        self.aside.failed(agent, evidence)

    def _on_agent_leaving(self, agent: Agent, leaving: m.AgentLeaving) -> None:
        if not agent.is_leaving:
            self.assignment.agent_leaves(agent, {r.replica_id for r in leaving.running})
            self.membership.leaving.gather(agent.agent_id)

    def _on_job_failed(self, _agent: Agent, failed: m.JobFailed) -> None:
        self.membership.end(failed.exit_code or 1, failed.reason, failed.kind)

    def _on_peers_silent(self, agent: Agent, silent: m.PeersSilent) -> None:
        self.reach.reported(agent, silent.hosts)

    def _on_goodbye(self, agent: Agent, _goodbye: m.Goodbye) -> None:
        self._on_detached(agent.agent_id, "its agent has ended", is_dead=True)
        self._forget(agent.agent_id)
