"""A node that peers do not reach: asked, and lost if it does not answer while others do."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, StateId, WorkerKey, pack_quorum_id
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentSent,
    CloseAgent,
    Instruction,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.protocol.rpc import BACKOFF_LAST_S

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


# ---------------------------------------------------------------- in a takeover


class NewLighthouse(Nodes):
    """Takes over a job of which ``n0``, ``n1``, … each run a member; nobody has come yet."""

    def __init__(self, count: int = 4) -> None:
        super().__init__(0)
        self.names = [f"n{index}" for index in range(count)]
        self.members = tuple(
            Member(str(index), f"i{index}", (Endpoint(f"host-{name}", "h:1"),), f"{name}:1")
            for index, name in enumerate(self.names)
        )
        state = StateId(3, "x")
        attempt = Attempt(pack_quorum_id(1, 1), 1)
        self.quorum = Quorum(attempt, self.members, "n0:1", step=0, state=state)
        self.report = m.Report(state, self.members[0].endpoints[0], in_force=self.quorum)
        journal = JournalState(epoch=1, quorum=self.quorum, spec=SPEC)
        settings = LighthouseSettings().after_watching(3.0)
        self.began = self.now
        self.lighthouse = Lighthouse(settings, journal, self.now)

    def comes(self, *names: str) -> None:
        """These agents attach, and their members report."""
        for name in names:
            number = name.removeprefix("n")
            running = (m.RunningReplica(number, f"i{number}"),)
            hello = m.Hello(name, SPEC, 4, f"host-{name}", f"{name}:1", running=running)
            self.note(self.lighthouse.handle(AgentAttached(name, hello), self.now))
            key = WorkerKey(number, f"i{number}", 0)
            self.send(name, m.WorkerMessage(key, self.report))

    @property
    def ends_after_s(self) -> float:
        """How long the takeover has lasted, once it is over."""
        assert self.lighthouse.state.phase is not Phase.TAKEOVER
        return self.lighthouse.state.since - self.began

    def unaccounted(self) -> list[str]:
        """The replicas that may train on unseen, and are fenced."""
        return [x.replica_id for x in self.lighthouse.state.departed.unaccounted()]


def test_a_takeover_waits_no_longer_for_a_node_that_peers_do_not_reach() -> None:
    new = NewLighthouse()
    new.comes("n1", "n2", "n3")
    new.send("n2", m.PeersSilent(("host-n0",)))
    new.wait(1.0, "n1", "n2", "n3")
    assert 0.5 <= new.ends_after_s < 0.6
    assert (new.lighthouse.state.live, new.unaccounted()) == ({"1", "2", "3"}, ["0"])
    fenced = new.lighthouse.state.departed.all_fenced_at(new.lighthouse.state.silence_s)
    assert fenced == new.began + new.lighthouse.state.silence_s, "as if the grace had been over"
    assert new.closed == {}
    (change,) = new.lighthouse.books.history.changes
    assert change.reasons == [
        "replica 0: the node is out of reach: it acknowledges nothing to host-n2, and its agent "
        "does not answer"
    ]


@pytest.mark.parametrize("late", ["n0", "n3"])
def test_it_waits_for_all_that_may_still_come(late: str) -> None:
    """For a member that no peer misses, and for one that comes although a peer misses it."""
    new = NewLighthouse()
    new.comes(*(name for name in new.names if name not in ("n0", "n3")))
    new.send("n1", m.PeersSilent(("host-n0",)))
    new.wait(0.4, "n1", "n2")
    new.comes(late)
    new.wait(1.0, "n1", "n2", late)
    assert (new.lighthouse.state.phase is Phase.TAKEOVER) == (late == "n0")
    new.wait(2.0, "n1", "n2", late)
    assert new.ends_after_s == pytest.approx(2.0 if late == "n0" else 0.525, abs=0.01)


def test_a_report_that_is_withdrawn_counts_for_nothing_even_after_its_time() -> None:
    new = NewLighthouse()
    new.comes("n1", "n2")
    new.send("n1", m.PeersSilent(("host-n0",)))
    new.wait(1.0, "n1", "n2")
    assert list(new.lighthouse.membership.takeover.unreached) == ["n0:1"]
    new.send("n1", m.PeersSilent())
    new.comes("n3")
    new.wait(3.0, *new.names)
    assert new.ends_after_s == pytest.approx(2.0)
    assert new.lighthouse.membership.takeover.awaited() == {}


def test_a_new_lighthouse_that_hears_few_waits() -> None:
    new = NewLighthouse()
    new.comes("n1")
    new.send("n1", m.PeersSilent(("host-n0", "host-n2", "host-n3")))
    new.wait(1.9, "n1")
    assert new.lighthouse.state.phase is Phase.TAKEOVER
    new.wait(0.2, "n1")
    assert new.ends_after_s == pytest.approx(2.0)


def test_one_that_was_restarted_gives_agents_the_time_in_which_they_try_again() -> None:
    new = NewLighthouse()
    assert LighthouseSettings().attach_s > BACKOFF_LAST_S
    journal = JournalState(epoch=1, quorum=new.quorum, spec=SPEC)
    new.lighthouse = Lighthouse(LighthouseSettings(), journal, new.now)
    new.comes("n1", "n2", "n3")
    new.send("n2", m.PeersSilent(("host-n0",)))
    new.wait(2.4, "n1", "n2", "n3")
    assert new.lighthouse.state.phase is Phase.TAKEOVER
    new.wait(0.5, "n1", "n2", "n3")
    assert 2.5 <= new.ends_after_s < 2.8
