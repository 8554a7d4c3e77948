"""Slots among agents that come, leave, die and come back, whatever comes in between.

What is said and done in a given case is in tests/transcripts (agents, drain, even).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core import messages as m
from ftrun.core.ids import SHARED_LINEAGE, Attempt, StateId, WorkerKey
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSent,
    Event,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.quorum import Endpoint

STATE = StateId(0, SHARED_LINEAGE)
EVENTS_MAX = 5000
AGENTS_MAX = 4


@dataclass
class Node:
    """An agent that carries out its orders at once. ``running``: replica id → incarnation."""

    capacity: int
    running: dict[str, str] = field(default_factory=dict)
    is_leaving: bool = False


class Site:
    """A lighthouse and its nodes; their messages wait in one queue."""

    def __init__(
        self,
        replicas: int,
        *,
        needed: int = 1,
        rebalance: bool = True,
        spare: int = 0,
        nodes: int = 1,
    ) -> None:
        spec = m.JobSpec("job", replicas, 1, 1, 1e6, 1e6, 60.0, nodes, spare_nodes=spare)
        self.spec = replace(spec, min_replicas=needed, rebalance=rebalance)
        self.now = 0.0
        self.lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
        self.nodes: dict[str, Node] = {}
        self.told: list[str] = []
        self.texts: list[str] = []
        self._said: deque[Event] = deque()
        self._members: dict[Attempt, set[str]] = {}
        self._started = 0
        self._handle(TimerFired())

    # ------------------------------------------------------------ what happens

    def come(self, capacity: int, placed: int = 0) -> str:
        """One more agent; its id. ``placed``: as in its Hello."""
        self._started += 1
        name = f"n{self._started}"
        self.nodes[name] = Node(capacity)
        hello = m.Hello(name, self.spec, capacity, f"host-{name}", f"{name}:1", placed=placed)
        self._said.append(AgentAttached(name, hello))
        return name

    def leave(self, name: str) -> None:
        """SIGTERM to an agent."""
        node = self.nodes[name]
        node.is_leaving = True
        running = tuple(m.RunningReplica(*pair) for pair in node.running.items())
        self._said.append(AgentSent(name, (m.AgentLeaving("SIGTERM", running),)))
        self._may_go(name)

    def kill(self, name: str) -> None:
        """SIGKILL to an agent, and to all that it runs."""
        del self.nodes[name]
        self._said.append(AgentDetached(name))

    def die(self, replica_id: str) -> None:
        """SIGKILL to a replica, which is started again."""
        for name, node in self.nodes.items():
            if replica_id in node.running:
                self._end(name, replica_id, "killed")
                if not node.is_leaving:
                    self._start(name, replica_id)

    def play(self, events: int = EVENTS_MAX) -> None:
        """Deliver queued messages, and those that follow, up to so many events."""
        for _ in range(events):
            if not self._said:
                return
            self._handle(self._said.popleft())
        assert events < EVENTS_MAX, f"no end: {self.lighthouse.snapshot(self.now)}"

    def settle(self, seconds: float = 30.0) -> None:
        """Deliver all messages and fire the timers of so many seconds."""
        end = self.now + seconds
        for _ in range(EVENTS_MAX):
            self.play()
            due = self.lighthouse.next_deadline()
            if due is None or due > end:
                self.now = end
                return
            self.now = max(self.now, due)
            self._handle(TimerFired())
        raise AssertionError("the timer fires for ever")

    # ------------------------------------------------------------ what can be seen

    def loads(self) -> dict[str, list[str]]:
        """What runs on the nodes that stay."""
        return {name: sorted(n.running) for name, n in self.nodes.items() if not n.is_leaving}

    def moves(self) -> int:
        return self.told.count("moving")

    # ------------------------------------------------------------ what nodes and workers do

    def _handle(self, event: Event) -> None:
        for instruction in self.lighthouse.handle(event, self.now):
            if isinstance(instruction, SendToAgent) and instruction.agent_id in self.nodes:
                self._hears(instruction.agent_id, instruction.message)
        self.lighthouse.check()

    def _hears(self, name: str, message: m.ToAgent) -> None:
        node = self.nodes[name]
        if isinstance(message, m.AssignSlots):
            for replica_id in [r for r in node.running if r not in message.replica_ids]:
                if not node.is_leaving:
                    self._end(name, replica_id, "its slot was given to another agent")
            for replica_id in message.replica_ids:
                if replica_id not in node.running and not node.is_leaving:
                    self._start(name, replica_id)
        elif isinstance(message, m.ToWorkers):
            for target in message.targets:
                if node.running.get(target.replica_id) == target.incarnation:
                    self._worker(name, target.replica_id, message.message)
        elif isinstance(message, m.Notice):
            self.told.append(message.kind)
            if message.kind == "spares":
                self.texts.append(message.text)

    def _start(self, name: str, replica_id: str) -> None:
        self._started += 1
        incarnation = self.nodes[name].running[replica_id] = f"i{self._started}"
        self._said.append(AgentSent(name, (m.ReplicaStarted(replica_id, incarnation, 0),)))
        self._says(name, replica_id, m.Report(STATE, Endpoint("h", "h:1")))

    def _end(self, name: str, replica_id: str, cause: str) -> None:
        incarnation = self.nodes[name].running.pop(replica_id)
        self._said.append(AgentSent(name, (m.ReplicaLost(replica_id, incarnation, cause),)))
        self._may_go(name)

    def _may_go(self, name: str) -> None:
        if self.nodes[name].is_leaving and not self.nodes[name].running:
            self._said.append(AgentSent(name, (m.Goodbye(),)))
            del self.nodes[name]

    def _says(self, name: str, replica_id: str, word: m.FromWorker) -> None:
        key = WorkerKey(replica_id, self.nodes[name].running[replica_id], 0)
        self._said.append(AgentSent(name, (m.WorkerMessage(key, word),)))

    def _worker(self, name: str, replica_id: str, message: m.ToWorker) -> None:
        match message:
            case m.Interrupt(attempt):
                self._says(name, replica_id, m.Report(STATE, Endpoint("h", "h:1"), attempt))
            case m.NewQuorum(quorum) | m.Prepare(quorum):
                self._members[quorum.attempt] = {x.replica_id for x in quorum.members}
                self._says(name, replica_id, m.Built(quorum.attempt))
            case m.ProposeSwitch(attempt, step):
                self._says(name, replica_id, m.Promised(attempt, step))
            case m.Switch(attempt, step) if replica_id in self._members[attempt]:
                self._says(name, replica_id, m.InForce(attempt, step))
            case m.Switch():
                self._says(name, replica_id, m.Leaving(m.LeaveReason.DRAINED))
                if self.nodes[name].is_leaving:
                    self._end(name, replica_id, "drained")
                # Otherwise its agent ends it once AssignSlots takes the slot from it.


acts = st.one_of(
    st.tuples(st.just("come"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["leave", "kill", "die", "play"]), st.integers(0, 40)),
)


def act(site: Site, kind: str, number: int) -> None:
    """One of the things that happen to a site; ``number`` says to whom."""
    staying = sorted(site.loads())
    if kind == "come" and len(site.nodes) < AGENTS_MAX:
        site.come(number)
    elif kind == "play":
        site.play(number)
    elif kind == "die":
        site.die(str(number % site.spec.replicas))
    elif kind in ("leave", "kill") and staying:
        getattr(site, kind)(staying[number % len(staying)])


@settings(deadline=None)
@given(st.integers(1, 6), st.booleans(), st.integers(0, 2), st.lists(acts, max_size=25))
def test_whatever_happens_the_slots_are_where_there_is_room(
    replicas: int, rebalance: bool, spare: int, schedule: list[tuple[str, int]]
) -> None:
    site = Site(replicas, rebalance=rebalance, spare=spare)
    for kind, number in schedule:
        act(site, kind, number)
    site.settle()
    loads = site.loads()
    room = {name: site.nodes[name].capacity for name in loads}
    runs = [replica_id for load in loads.values() for replica_id in load]
    assert len(runs) == len(set(runs)) == min(replicas, sum(room.values())), loads
    assert all(len(loads[name]) <= room[name] for name in loads), loads
    assert loads == {name: list(site.lighthouse.state.slots.of(name)) for name in loads}
    if not rebalance:
        assert site.moves() == 0
    elif len(runs) == replicas > 1:
        fair = -(-replicas // max(1, sum(map(bool, room.values())) - spare))
        pairs = [(a, b) for a in loads for b in loads if len(loads[b]) < room[b]]
        pairs = [(a, b) for a, b in pairs if not spare or loads[b] or len(loads[a]) > fair]
        assert all(len(loads[a]) - len(loads[b]) < 2 for a, b in pairs), loads


@pytest.mark.parametrize("rebalance", [True, False])
def test_a_node_that_is_back_gets_its_share_if_the_job_wants_that(rebalance: bool) -> None:
    site = Site(6, rebalance=rebalance)
    first, second = site.come(6), site.come(6)
    site.settle()
    assert site.loads() == {first: ["0", "1", "2"], second: ["3", "4", "5"]}
    site.leave(second)
    site.settle()
    assert site.loads() == {first: ["0", "1", "2", "3", "4", "5"]}
    back = site.come(6)
    site.settle()
    if rebalance:
        assert site.loads() == {first: ["0", "1", "2"], back: ["3", "4", "5"]}
        assert site.moves() == 2 * 3, "each move is told to both agents, and no other is made"
    else:
        assert site.loads() == {first: ["0", "1", "2", "3", "4", "5"], back: []}
        assert site.moves() == 0


def test_slots_that_nobody_had_room_for_are_given_even_without_rebalancing() -> None:
    site = Site(3, rebalance=False)
    first, second = site.come(2), site.come(1)
    site.settle()
    site.leave(second)
    site.settle()
    assert site.loads() == {first: ["0", "1"]}
    assert "homeless" in site.told
    back = site.come(3)
    site.settle()
    assert site.loads() == {first: ["0", "1"], back: ["2"]}


def test_a_job_that_needs_all_its_replicas_spares_none_for_a_move() -> None:
    site = Site(4, needed=4)
    first = site.come(4)
    site.settle()
    second = site.come(4)
    site.settle()
    assert site.loads() == {first: ["0", "1", "2", "3"], second: []}
    assert site.lighthouse.state.live == {"0", "1", "2", "3"}
    assert site.moves() == 0


def test_groups_for_which_there_are_no_nodes_are_waited_for_by_the_registrar_alone() -> None:
    unknown, site = Site(3, nodes=3), Site(3, nodes=3)
    for _ in range(2):
        unknown.come(1)
        site.come(1, placed=2)
    unknown.settle()
    site.settle()
    assert unknown.lighthouse.state.live == set()
    assert site.lighthouse.state.live == {"0", "1"}
    site.come(1, placed=3)
    site.settle()
    assert site.lighthouse.state.live == {"0", "1", "2"}


def test_spare_nodes_stand_by_and_take_a_lost_nodes_replicas_at_once() -> None:
    site = Site(4, spare=1)
    nodes = [site.come(4) for _ in range(3)]
    site.settle()
    assert site.loads() == {nodes[0]: ["0", "1"], nodes[1]: ["2", "3"], nodes[2]: []}
    assert site.texts[-1] == "1 of 1 spare nodes (--spare-nodes) stand by."
    site.kill(nodes[1])
    site.settle(1.0)  # nobody waits for it as long as without a spare
    assert site.loads() == {nodes[0]: ["0", "1"], nodes[2]: ["2", "3"]}
    assert site.texts[-1].startswith("0 of 1 spare nodes (--spare-nodes) stand by. Add nodes")
    more = [site.come(4), site.come(4)]
    site.settle()
    assert site.loads() == {nodes[0]: ["0", "1"], nodes[2]: ["2", "3"], more[0]: [], more[1]: []}
    assert site.moves() == 0
    assert site.texts[-1] == "1 of 1 spare nodes (--spare-nodes) stand by."
    site.kill(nodes[2])
    site.kill(more[0])
    site.settle()
    assert site.loads() == {nodes[0]: ["0", "1"], more[1]: ["2", "3"]}


def test_of_too_few_nodes_none_stands_by_and_a_late_one_evens_the_load_first() -> None:
    site = Site(4, spare=1)
    first = site.come(4)
    site.settle()
    assert site.loads() == {first: ["0", "1", "2", "3"]}
    second, third = site.come(4), site.come(4)
    site.settle()
    assert sorted(len(load) for load in site.loads().values()) == [0, 2, 2]
    assert site.moves() > 0
    assert {second, third} <= set(site.loads())
