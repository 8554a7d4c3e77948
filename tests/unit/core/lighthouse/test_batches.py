"""Messages in one batch lead to the same decisions as one by one, with less work."""

from __future__ import annotations

import pytest

from ftrun.core import messages as m
from ftrun.core.ids import SHARED_LINEAGE, StateId, WorkerKey
from ftrun.core.lighthouse import events as core
from ftrun.core.lighthouse.events import Instruction
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.quorum import Endpoint

AGENTS = ("A", "B")
REPLICAS = 6
STATE = StateId(0, SHARED_LINEAGE)
SPEC = m.JobSpec("job", REPLICAS, 1, 1, 5.0, 5.0, 60.0, nodes=len(AGENTS))


class Pair:
    """Two lighthouses of one job: one gets batches, the other each message by itself."""

    def __init__(self) -> None:
        self.now = 0.0
        state = core.JournalState(epoch=1)
        self.whole, self.single = (
            Lighthouse(core.LighthouseSettings(), state, 0.0) for _ in range(2)
        )
        self.said: dict[str, list[m.FromAgent]] = {name: [] for name in AGENTS}
        self.told: list[str] = []
        self.batches = 0

    def both(self, event: core.Event) -> None:
        """The same for both."""
        out = self.single.handle(event, self.now)
        assert self.whole.handle(event, self.now) == out
        self.answer(out)

    def settle(self) -> None:
        """Run until no messages are left; at the end fire timers that are due soon."""
        while True:
            for name in AGENTS:
                messages, self.said[name] = tuple(self.said[name]), []
                if messages:
                    self.carry(name, messages)
            due = self.single.next_deadline()
            assert self.whole.next_deadline() == due
            if not any(self.said.values()):
                if due is None or due > self.now + 1:
                    return
                self.now = due
                self.both(core.TimerFired())

    def carry(self, name: str, messages: tuple[m.FromAgent, ...]) -> None:
        """One batch of one agent."""
        self.batches += len(messages) > 1
        out = self.whole.handle(core.AgentSent(name, messages), self.now)
        singles = [
            instruction
            for message in messages
            for instruction in self.single.handle(core.AgentSent(name, (message,)), self.now)
        ]
        assert out == singles
        assert self.whole.snapshot(self.now) == self.single.snapshot(self.now)
        self.whole.check()
        self.answer(out)

    def answer(self, out: list[Instruction]) -> None:
        """The messages of agents and workers, in whole batches."""
        for instruction in out:
            if not isinstance(instruction, core.SendToAgent):
                continue
            agent_id, message = instruction.agent_id, instruction.message
            if isinstance(message, m.Notice):
                self.told.append(message.kind)
            elif isinstance(message, m.AssignSlots):
                for replica_id in message.replica_ids:
                    self.start(agent_id, replica_id, "a")
            elif isinstance(message, m.ToWorkers):
                words = [
                    m.WorkerMessage(WorkerKey(x.replica_id, x.incarnation, 0), word)
                    for x in message.targets
                    for word in answers(message.message)
                ]
                self.said[agent_id] += words

    def start(self, agent_id: str, replica_id: str, incarnation: str) -> None:
        """A replica runs, and its worker reports."""
        report = m.Report(STATE, Endpoint("h", f"h:{replica_id}"))
        self.said[agent_id] += [
            m.ReplicaStarted(replica_id, incarnation, 0),
            m.WorkerMessage(WorkerKey(replica_id, incarnation, 0), report),
        ]


def answers(message: m.ToWorker) -> list[m.FromWorker]:
    """The report of a worker at step 0."""
    match message:
        case m.Interrupt(attempt):
            return [m.Report(STATE, Endpoint("h", "h:1"), attempt)]
        case m.NewQuorum(quorum):
            return [m.Built(quorum.attempt), m.InForce(quorum.attempt, 0)]
        case m.Prepare(quorum):
            return [m.Built(quorum.attempt)]
        case m.ProposeSwitch(attempt, step):
            return [m.Promised(attempt, step)]
        case m.Switch(attempt, step):
            return [m.InForce(attempt, step)]
    return []


@pytest.fixture
def formed() -> Pair:
    pair = Pair()
    pair.both(core.TimerFired())
    for name in AGENTS:
        pair.both(core.AgentAttached(name, m.Hello(name, SPEC, REPLICAS, "h", f"{name}:1")))
    pair.settle()
    assert set(pair.told) == {"formed"}
    return pair


def test_a_death_and_the_next_start_in_one_batch(formed: Pair) -> None:
    formed.said["A"].append(m.ReplicaLost("0", "a", "SIGKILL"))
    formed.start("A", "0", "b")
    formed.settle()
    assert formed.told[-1] == "switched"
    assert formed.batches > 4


def test_an_error_among_answers(formed: Pair) -> None:
    quorum = formed.single.state.quorum
    assert quorum is not None
    words = [
        m.WorkerMessage(WorkerKey(name, "a", 0), m.Errored(quorum.attempt, 0, "reset"))
        for name in ("0", "1")
    ]
    formed.said["A"] += [m.Heartbeat(), *words, m.Heartbeat()]
    formed.settle()
    assert formed.told.count("lost") == 0
    assert formed.told[-1] == "formed"
    assert formed.single.state.quorum is not None
    assert formed.single.state.quorum.attempt > quorum.attempt


def test_nothing_of_a_batch_counts_when_its_agent_is_gone(formed: Pair) -> None:
    hello = m.Hello("A", SPEC, REPLICAS, "h", "A:1")
    formed.said["A"] += [hello, m.ReplicaLost("0", "a", "SIGKILL")]
    formed.settle()
    assert [agent["attached"] for agent in formed.whole.snapshot(0.0)["agents"]] == [False, True]
