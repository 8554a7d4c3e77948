"""One life of the lighthouse's process: lighthouse/shell.py and server.py without gRPC.

It can die between any two instructions. Its disk is the world's, and outlives it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ftrun.core import failure_kinds as kinds
from ftrun.core import messages as m
from ftrun.core.books.records import AccountRecord, SaveAccount, SaveIncident
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSent,
    BeginAgain,
    CloseAgent,
    Event,
    Instruction,
    Journal,
    JournalState,
    LighthouseSettings,
    OperationChanged,
    OperatorAsked,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.phases import Phase
from tests.sim.actor import JOIN_TIMEOUT_S, SETTINGS, Actor, Crashed
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.network import Stream
    from tests.sim.node import Agent
    from tests.sim.world import World

TIMER_DELAY_MIN_S = 0.001
TAKEN_OVER_S = 2.5
"""By then a takeover waits for no node without power: 0.6 s until a peer has come and reported the
node, 0.84 s for its agent to come, and the rest for the reports of all others."""


class LighthouseProcess(Actor):
    """Feeds the core and carries out its instructions, in order."""

    name = role = "lighthouse"

    def __init__(self, world: World, settings: LighthouseSettings = SETTINGS) -> None:
        super().__init__()
        self.world = world
        self._settings = settings
        self.streams: list[Stream] = []  # includes streams without a Hello yet
        self.sessions: dict[str, Stream] = {}
        self._mends: set[str] = set()  # incarnations that agents have reported
        self._timer = 0
        self._timer_at: float | None = None

    def start(self, disk: JournalState) -> None:
        """Begin with the journal on disk."""
        world = self.world
        world.note(self.name, "starts", disk)
        world.invariants.takeover_began(world.now, self._settings.takeover_grace_s, disk.quorum)
        account = None
        if world.account is not None:
            document, written_at = world.account
            account = AccountRecord(document, world.now - written_at)
        self.core = Lighthouse(self._settings, disk, world.now, account)
        self._account, self._began_at = account, world.now
        self.core.books.incidents.take_over(world.records.earlier(world.now))
        world.at(0.0, self, self.feed, TimerFired())

    def crash(self) -> None:
        """Die: streams break, unsent messages are lost, the disk stays."""
        if self.alive:
            self._end()
            delay_s = self.world.rng.choice((0.01, 0.3, 1.5, 5.0))
            self.world.at(delay_s, None, self.world.start_lighthouse)

    def crash_with_its_node(self, lost: Agent) -> None:
        """Die with a node; another lighthouse takes over, with a grace so long that its effect
        shows."""
        if self.alive:
            self._end()
            self.world.at(0.9, None, self._is_succeeded, lost)

    def _is_succeeded(self, lost: Agent) -> None:
        world = self.world
        if world.lighthouse is self:
            new = world.lighthouse = LighthouseProcess(
                world, replace(SETTINGS, takeover_grace_s=4.0)
            )
            new.start(world.disk)
            world.at(TAKEN_OVER_S, new, new.has_taken_over, lost)

    def has_taken_over(self, lost: Agent) -> None:
        """Assert that it no longer waits for the lost node, unless other faults happened (N1)."""
        is_off = lost.host.agent is lost and not lost.alive
        have_others_left = any(host.over for host in self.world.hosts)
        if is_off and not have_others_left and self.world.faults.done == ["lose_first_node"]:
            waits = self.core.state.phase is Phase.TAKEOVER
            require(not waits, "N1", f"the takeover waits still for {lost.agent_id}")

    def has_lost(self, agent_id: str) -> None:
        """Assert that it has given up this agent, unless other faults happened (N1)."""
        if self.world.faults.done != ["power_off"]:
            return
        agent = self.core.agents.get(agent_id)
        is_lost = agent is None or agent.gone_at is not None
        require(is_lost, "N1", f"{agent_id} has no power, and is attached still")

    def _begin_again(self) -> None:
        """Restart like the process: its streams end, and the next life begins at once.

        Raises:
            Crashed: this life has ended.
        """
        self._end()
        self.world.at(0.0, None, self.world.start_lighthouse)
        raise Crashed

    def _end(self) -> None:
        self.alive = False
        self.world.note(self.name, "dies")
        for host in self.world.hosts:
            host.excuse("the lighthouse died")
        for stream in self.streams:
            stream.cut()

    def feed(self, event: Event) -> None:
        """Handle one event, its instructions, and the one timer."""
        world = self.world
        world.note(self.name, "event", event)
        for message in event.messages if isinstance(event, AgentSent) else ():
            if isinstance(message, m.ReplicaStarted):
                (self._mends.add if message.mends else self._mends.discard)(message.incarnation)
        instructions = self.core.handle(event, world.now)
        self.core.check()
        self._check_account()
        if world.coverage is not None:
            world.coverage.phases[self.core.state.phase.value] += 1
        for instruction in instructions:
            if isinstance(instruction, SaveAccount):
                self._keep(instruction)
                continue
            self.before_instruction(instruction)
            self._carry_out(instruction)
        self._arm()

    def _check_account(self) -> None:
        """A1 over the lighthouse's lives: an account that is resumed includes the gap between
        them."""
        books, record = self.core.books.account, self._account
        if record is None or not books.is_open:
            return
        self._account = None
        wall = books.now(self.world.now) - books.ledger.began
        since = record.document["wall"]
        if not record.document["has_ended"]:
            since += round((record.age_s + self.world.now - self._began_at) * 1e6)
        assert not books.was_restored or abs(wall - since) <= 5, f"A1: {wall} µs, not {since}"

    def _keep(self, instruction: SaveAccount) -> None:
        """Write the account whenever it is due; no other process sees it."""
        document = json.loads(json.dumps(instruction.document))
        self.world.account = (document, self.world.now)

    def _carry_out(self, instruction: Instruction) -> None:
        world = self.world
        world.note(self.name, "does", instruction)
        match instruction:
            case Journal(record):
                self._journal(record)
                world.invariants.quorums.closed = frozenset(record.withdrawn)
                if record.quorum is not None and record.switch_step is not None:
                    world.invariants.switch_confirmed(record.quorum, record.switch_step)
            case SendToAgent(agent_id, message):
                self._send(agent_id, message)
            case SaveIncident(agents, record, _, document):
                assert document["is_open"] == record.is_open
                world.records.write(document, world.now)
                for agent_id in agents:
                    session = self.sessions.get(agent_id)
                    if session is not None:
                        world.at(0.0, session.agent, session.agent.recorded, record)
            case OperationChanged(number):
                operation = self.core.operation(number)
                if operation is not None and operation.refused:  # it changed nothing
                    world.acknowledged.pop(operation.request.request_id, None)
            case BeginAgain():
                self._begin_again()
            case CloseAgent(agent_id, _):
                stream = self.sessions.get(agent_id)
                if stream is not None:
                    self._strike(stream)
                    stream.cut(lossy=False)

    def _journal(self, record: JournalState) -> None:
        """Write the record to disk, or end the process before it sends what follows.

        Raises:
            Crashed: the process has ended.
        """
        had_ended = self.world.disk.outcome is not None
        if not self.world.write_disk(record):
            self.crash()
            raise Crashed
        if had_ended and record.outcome is None:  # the next job, about which no request was made
            self.world.acknowledged.clear()

    def _send(self, agent_id: str, message: m.ToAgent) -> None:
        world = self.world
        if isinstance(message, m.ToWorkers):
            departed = self.core.state.departed.unaccounted()
            removed = [(member.replica_id, member.incarnation) for member in departed]
            world.invariants.lighthouse_sent(world.now, message.message, removed)
            world.faults.heard(world, message.message)
        elif isinstance(message, m.Notice) and message.kind == "moving":
            for incarnation in world.living(message.replica_ids[0], heard=True):
                world.invariants.excuse(incarnation, "it was asked to leave")
        elif isinstance(message, m.AssignSlots):
            for replica_id in message.replica_ids:
                heard = world.living(replica_id, heard=True)
                world.invariants.gives_away(world.living(replica_id), heard)
        elif isinstance(message, m.StopReplica):
            world.invariants.excuse(message.incarnation, "it was asked to leave")
        elif isinstance(message, m.RestartReplica):
            world.invariants.excuse(message.incarnation, "it was given up")
            self._check_patience(message)
            world.refusal_rules.gives_up(message)
        stream = self.sessions.get(agent_id)
        if stream is not None:
            stream.down.send(message)

    def _check_patience(self, given_up: m.RestartReplica) -> None:
        """Check the wait for a replica whose worker is being replaced, where a wait was asked for
        (Q4)."""
        is_known = given_up.incarnation in self._mends and self.world.job.waits_for_mends
        if is_known and given_up.reason.startswith("no answer"):
            after_s = float(given_up.reason.split()[3])
            text = f"{given_up.incarnation} is given up in a mend after {after_s:.0f} s"
            require(after_s >= JOIN_TIMEOUT_S, "Q4", text)

    def _arm(self) -> None:
        deadline = self.core.next_deadline()
        soon = self.world.now + TIMER_DELAY_MIN_S
        if deadline is not None and deadline == self._timer_at and deadline > soon:
            return
        self._timer += 1
        self._timer_at = deadline
        if deadline is not None:
            delay_s = max(TIMER_DELAY_MIN_S, deadline - self.world.now)
            self.world.at(delay_s, self, self._ring, self._timer)

    def _ring(self, timer: int) -> None:
        if timer == self._timer:
            self._timer_at = None
            self.feed(TimerFired())

    # ------------------------------------------------------------ streams

    def evidence(self, stream: Stream, evidence: m.FailureEvidence) -> None:
        """Take evidence of an incarnation's failure: it is in exactly one incident afterwards."""
        agent_id = stream.agent.agent_id
        if self.sessions.get(agent_id) is not stream:
            return
        self.feed(AgentSent(agent_id, (evidence,)))
        agent = self.core.agents.get(agent_id)
        is_heard = agent is not None and agent.gone_at is None
        if is_heard and self.core.state.outcome is None:
            key = evidence.replica_id, evidence.incarnation
            found = [x for incident in self.core.books.incidents if (x := incident.part_of(*key))]
            incidents = [part for part in found if part.kind != kinds.NODE]
            assert len(incidents) == 1, f"{evidence.incarnation} is in {len(incidents)} incidents"

    def asked(self, asked: OperatorAsked) -> None:
        """Take a person's request; if it is acknowledged and not done at once, it survives the
        lighthouse."""
        self.feed(asked)
        operation = self.core.operation(asked.number, asked.request.request_id)
        if operation is not None and not operation.has_ended:
            self.world.acknowledged[asked.request.request_id] = asked.request

    def received(self, stream: Stream, message: Any) -> None:
        """A message has arrived; the first one on a stream is a Hello."""
        agent_id = stream.agent.agent_id
        if isinstance(message, m.Hello):
            former = self.sessions.pop(agent_id, None)
            if former is not None:
                self._strike(former)
                former.cut(lossy=False)
            self.sessions[agent_id] = stream
            self.feed(AgentAttached(agent_id, message))
        elif self.sessions.get(agent_id) is stream:
            rest = stream.up.take_rest() if self.world.batches else ()
            for word in (message, *rest):
                if isinstance(word, m.WorkerMessage) and isinstance(word.message, m.Report):
                    self.world.invariants.back(self.world.now, word.key)
            self.feed(AgentSent(agent_id, (message, *rest)))

    def disconnected(self, stream: Stream) -> None:
        """The stream is over; the end of a replaced stream is no event."""
        agent_id = stream.agent.agent_id
        if self.sessions.get(agent_id) is stream:
            del self.sessions[agent_id]
            self._strike(stream)
            self.feed(AgentDetached(agent_id))

    def _strike(self, stream: Stream) -> None:
        keys = stream.agent.workers
        struck = sorted({(key.replica_id, key.incarnation) for key in keys})
        self.world.invariants.agent_lost(self.world.now, struck)
