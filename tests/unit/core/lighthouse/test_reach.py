"""A node that peers do not reach: asked, and lost if it does not answer while others do."""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.core import messages as m
from ftrun.core.lighthouse.machine import (
    AgentAttached,
    AgentSent,
    CloseAgent,
    Instruction,
    JournalState,
    Lighthouse,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)

SPEC = m.JobSpec("job", 4, 1, 1, 10.0, 5.0, 20.0, nodes=4)
BEAT = m.Heartbeat(quiet=True)


class Nodes:
    """A lighthouse with agents ``n0``, ``n1``, …, each of which runs a replica."""

    def __init__(self, count: int = 4) -> None:
        self.now = 0.0
        self.lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
        self.names = [f"n{index}" for index in range(count)]
        self.closed: dict[str, float] = {}
        self.asked = 0
        self.slots: dict[str, tuple[str, ...]] = {}
        for name in self.names:
            self.attach(name)
        self.wait(0.5)
        for index, name in enumerate(self.names):
            self.send(name, m.ReplicaStarted(str(index), f"i{index}", 0))

    def attach(self, name: str) -> None:
        hello = m.Hello(name, SPEC, 4, f"host-{name}", f"{name}:1")
        self.note(self.lighthouse.handle(AgentAttached(name, hello), self.now))

    def note(self, instructions: Iterable[Instruction]) -> None:
        for x in instructions:
            if isinstance(x, CloseAgent):
                self.closed[x.agent_id] = self.now
            elif isinstance(x, SendToAgent) and isinstance(x.message, m.AskHeartbeat):
                self.asked += 1
            elif isinstance(x, SendToAgent) and isinstance(x.message, m.AssignSlots):
                self.slots[x.agent_id] = x.message.replica_ids
        self.lighthouse.check()

    def send(self, name: str, message: m.FromAgent) -> None:
        self.note(self.lighthouse.handle(AgentSent(name, (message,)), self.now))

    def wait(self, seconds: float, *answering: str) -> None:
        """Let time pass; these agents answer at once when they are asked."""
        end, asked = self.now + seconds, 0
        while True:
            if self.asked != asked:
                asked = self.asked
                self.now += 0.001
                for name in answering:
                    self.send(name, BEAT)
            due = self.lighthouse.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.note(self.lighthouse.handle(TimerFired(), self.now))
        self.now = end


def test_a_node_that_a_peer_does_not_reach_and_that_does_not_answer_is_lost_at_once() -> None:
    nodes = Nodes()
    nodes.send("n2", m.PeersSilent(("host-n1", "a file server")))
    assert nodes.asked == 4
    nodes.wait(1.0, "n0", "n2", "n3")
    assert 0.5 <= nodes.closed.pop("n1") - 0.5 < 0.6
    assert not nodes.closed
    assert any("1" in nodes.slots[name] for name in ("n0", "n2", "n3")), "nobody waits for it"
    (incident,) = nodes.lighthouse.snapshot(nodes.now)["incidents"]
    assert "acknowledges nothing to host-n2" in str(incident)


def test_one_that_answers_is_not_lost_and_is_asked_again_while_it_is_reported() -> None:
    nodes = Nodes()
    nodes.send("n2", m.PeersSilent(("host-n1",)))
    nodes.wait(2.5, *nodes.names)
    assert (nodes.closed, nodes.asked) == ({}, 3 * 4)
    nodes.wait(2.0, "n0", "n2", "n3")
    assert list(nodes.closed) == ["n1"]


def test_a_report_that_is_withdrawn_in_time_costs_nothing() -> None:
    nodes = Nodes()
    nodes.send("n2", m.PeersSilent(("host-n1",)))
    nodes.wait(0.4, "n0", "n2", "n3")
    nodes.send("n2", m.PeersSilent())
    nodes.wait(1.0, "n0", "n2", "n3")
    assert (nodes.closed, nodes.lighthouse.reach.due) == ({}, None)


def test_a_lighthouse_that_few_answer_takes_itself_for_cut_off() -> None:
    nodes = Nodes()
    nodes.send("n0", m.PeersSilent(("host-n1", "host-n2", "host-n3")))
    nodes.wait(2.0, "n0")
    assert nodes.closed == {}
    nodes.wait(1.0, "n0", "n2")  # half of them: the network to them is back
    assert sorted(nodes.closed) == ["n1", "n3"]


def test_of_two_nodes_the_one_that_answers_is_half() -> None:
    nodes = Nodes(2)
    nodes.send("n0", m.PeersSilent(("host-n1",)))
    nodes.wait(1.0, "n0")
    assert list(nodes.closed) == ["n1"]


def test_nobody_is_suspected_of_its_own_word_or_before_it_has_come() -> None:
    nodes = Nodes()
    nodes.send("n1", m.PeersSilent(("host-n1",)))
    assert (nodes.asked, nodes.lighthouse.reach.due) == (0, None)
    nodes.send("n2", m.PeersSilent(("host-n1", "host-n9")))
    asked = nodes.asked
    nodes.attach("n9")
    nodes.wait(0.6, *nodes.names, "n9")
    nodes.wait(2.0, *nodes.names, "n9")
    assert (nodes.closed, nodes.asked > asked) == ({}, True)


def test_a_lighthouse_that_was_paused_reads_first() -> None:
    nodes = Nodes()
    nodes.send("n2", m.PeersSilent(("host-n1",)))
    nodes.now += 3.0
    nodes.note(nodes.lighthouse.handle(TimerFired(), nodes.now))
    for name in nodes.names:
        nodes.send(name, BEAT)
    nodes.wait(1.0, *nodes.names)
    assert nodes.closed == {}
