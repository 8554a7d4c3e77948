"""The lighthouse under any order of any messages, at scale, and where agents are concerned.

What it does in a given case is in tests/transcripts; whole worlds are in tests/sim.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.books.records import SaveAccount, SaveIncident
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey
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
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.state import NO_SPEC
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.core.version import PROTOCOL_VERSION
from tests.suite.properties import examples

SPEC = m.JobSpec("job", 3, 1, 1, 10.0, 5.0, 20.0)
SHARED = StateId(0, "shared")


def hello(agent_id: str, spec: m.JobSpec = SPEC, **more: Any) -> AgentAttached:
    return AgentAttached(
        agent_id,
        replace(m.Hello(agent_id, spec, 4, f"host-{agent_id}", f"{agent_id}:1"), **more),
    )


def worker(agent_id: str, replica_id: str, message: m.FromWorker, rank: int = 0) -> AgentSent:
    key = WorkerKey(replica_id, f"i{replica_id}", rank)
    return AgentSent(agent_id, (m.WorkerMessage(key, message),))


def report(**more: Any) -> m.Report:
    return replace(m.Report(SHARED, Endpoint("h", "h:1")), **more)


def formed(replicas: int, agents: int, spec: m.JobSpec = SPEC) -> Lighthouse:
    """A lighthouse whose first quorum stands, at time 1."""
    spec = replace(spec, replicas=replicas, nodes=agents)
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    capacity = -(-replicas // agents)
    for agent in range(agents):
        lighthouse.handle(hello(f"a{agent}", spec, capacity=capacity), 0.0)
    lighthouse.handle(TimerFired(), 0.5)
    owners = {
        r: f"a{agent}" for agent in range(agents) for r in lighthouse.state.slots.of(f"a{agent}")
    }
    for replica_id, agent_id in owners.items():
        started = m.ReplicaStarted(replica_id, f"i{replica_id}", 0)
        lighthouse.handle(AgentSent(agent_id, (started,)), 0.5)
        lighthouse.handle(worker(agent_id, replica_id, report()), 0.5)
    attempt = lighthouse.state.attempts.highest
    for replica_id, agent_id in owners.items():
        lighthouse.handle(worker(agent_id, replica_id, m.Built(attempt)), 1.0)
    assert lighthouse.state.phase.value == "steady"
    return lighthouse


# ---------------------------------------------------------------- any messages in any order

AGENTS = ["A", "B"]
REPLICAS = ["0", "1", "2", "7"]
INCARNATIONS = ["a", "b", "c"]
attempts = st.builds(
    Attempt, st.sampled_from([0, (1 << 32) | 1, (1 << 32) | 2, (2 << 32) | 1]), st.integers(0, 3)
)
steps = st.integers(0, 6)
states = st.builds(StateId, steps, st.sampled_from(["x", "y"]))
tags = st.builds(Tag, attempts, steps)
members = st.lists(st.sampled_from(REPLICAS[:3]), unique=True, max_size=3).map(
    lambda ids: tuple(Member(r, "a", (Endpoint("h", "h:1"),), "A:1") for r in sorted(ids))
)
quorums = st.builds(Quorum, attempts, members, st.just("A:1"), st.none() | steps)
promises = st.builds(m.SwitchPromise, steps, st.booleans())
reports = st.builds(
    m.Report,
    states,
    st.just(Endpoint("h", "h:1")),
    st.just(NO_ATTEMPT) | attempts,
    st.none() | quorums,
    st.none() | st.builds(m.PendingQuorum, quorums, st.none() | promises),
    st.none() | tags,
    st.none() | tags,
)
words = (
    reports
    | st.builds(m.Built, attempts)
    | st.builds(m.BuildFailed, attempts, st.just("why"))
    | st.builds(m.Promised, attempts, steps)
    | st.builds(m.Refused, attempts, steps, steps)
    | st.builds(m.InForce, attempts, steps)
    | st.builds(m.Errored, attempts, steps, st.just("why"))
    | st.builds(m.Healed, attempts, steps, st.just(("0",)), st.just(1), st.just(0.1))
    | st.builds(m.Leaving, st.sampled_from(m.LeaveReason))
    | st.builds(m.Progress, steps, steps, st.sampled_from(Activity))
)
replica_ids = st.sampled_from(REPLICAS)
incarnations = st.sampled_from(INCARNATIONS)
keys = st.builds(WorkerKey, replica_ids, incarnations, st.integers(0, 2))
running = st.builds(m.RunningReplica, replica_ids, incarnations)
losses = st.builds(m.Loss, replica_ids, incarnations, st.just("seen"))
failures = st.builds(m.StartFailure, st.sampled_from("xy"), st.integers(1, 2), st.just("no"))
sayings = (
    st.builds(m.WorkerMessage, keys, words)
    | st.builds(m.WorkerMessage, keys, words)
    | st.builds(m.ReplicaStarted, replica_ids, incarnations, st.integers(0, 3))
    | st.builds(m.ReplicaLost, replica_ids, incarnations, st.just("killed"))
    | st.builds(m.ReplicaFinished, replica_ids, incarnations)
    | st.builds(m.Heartbeat, quiet=st.booleans())
    | st.builds(m.AgentLeaving, st.just("SIGTERM"), st.lists(running, max_size=2).map(tuple))
    | st.builds(
        m.ReplicaLost, replica_ids, incarnations, st.just("raised"), st.booleans(), failures
    )
)


def _hello(agent_id: str, runs: list[m.RunningReplica], dead: list[m.Loss]) -> AgentAttached:
    once = {x.replica_id: x for x in runs}
    return hello(agent_id, running=tuple(once.values()), dead=tuple(dead))


events = (
    st.builds(
        AgentSent, st.sampled_from(AGENTS), st.lists(sayings, min_size=1, max_size=3).map(tuple)
    )
    | st.builds(AgentSent, st.sampled_from(AGENTS), st.just((m.Goodbye(),)))
    | st.builds(_hello, st.sampled_from(AGENTS), st.lists(running), st.lists(losses, max_size=2))
    | st.builds(AgentDetached, st.sampled_from(AGENTS))
    | st.just(TimerFired())
)


class Watch:
    """Looks at everything that leaves a lighthouse."""

    def __init__(self) -> None:
        self.journal = JournalState()
        self.attempts: dict[int, tuple[tuple[str, str], ...]] = {}
        self.highest = NO_ATTEMPT

    def see(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Journal):
                assert instruction.record.epoch >= self.journal.epoch
                self.journal = instruction.record
            elif isinstance(instruction, SendToAgent):
                message = instruction.message
                if isinstance(message, m.ToWorkers):
                    self._see_worker(message.message)
            else:
                assert isinstance(instruction, CloseAgent | SaveIncident | SaveAccount | BeginAgain)

    def _see_worker(self, message: m.ToWorker) -> None:
        if isinstance(message, m.NewQuorum):
            assert self.journal.quorum == message.quorum, "told before it was on disk"
            self._see_quorum(message.quorum)
        elif isinstance(message, m.Prepare):
            self._see_quorum(message.quorum)
        elif isinstance(message, m.Switch):
            assert self.journal.quorum is not None
            told = (message.attempt, message.step)
            assert (self.journal.quorum.attempt, self.journal.switch_step) == told

    def _see_quorum(self, quorum: Quorum) -> None:
        named = tuple((x.replica_id, x.incarnation) for x in quorum.members)
        known = self.attempts.setdefault(quorum.attempt.quorum_id, named)
        assert known == named, "Q1"
        assert quorum.attempt >= self.highest, "Q2"
        self.highest = quorum.attempt


class Crowd:
    """Agents and workers that mostly answer as asked; otherwise the fuzz gets nowhere."""

    def __init__(self, lighthouse: Lighthouse) -> None:
        self.lighthouse = lighthouse
        self.started = 0

    def start(self, index: int) -> list[Event]:
        """An owner starts its slot again."""
        state = self.lighthouse.state
        name = str(index % max(1, len(state.slots)))
        owner = state.slots[name].agent_id
        self.started += 1
        incarnation = INCARNATIONS[self.started % len(INCARNATIONS)]
        return [AgentSent(owner, (m.ReplicaStarted(name, incarnation, self.started),))]

    def answer(self, index: int) -> list[Event]:
        """One replica does what it is waited for, or reports."""
        replicas = list(self.lighthouse.state.replicas.values())
        if not replicas:
            return []
        replica = replicas[index % len(replicas)]
        ranks = range(self.lighthouse.state.workers)
        keys = [WorkerKey(replica.replica_id, replica.incarnation, rank) for rank in ranks]
        message = self._expected(replica.replica_id)
        return [AgentSent(replica.agent_id, (m.WorkerMessage(key, message),)) for key in keys]

    def answer_all(self, index: int) -> list[Event]:
        """Everybody does."""
        count = len(self.lighthouse.state.replicas)
        return [event for one in range(count) for event in self.answer(one)]

    def _expected(self, replica_id: str) -> m.FromWorker:
        state, plan = self.lighthouse.state, self.lighthouse.membership.switching.plan
        phase = state.phase.value
        is_member = replica_id in state.live or (plan is not None and replica_id in plan.everyone)
        if not is_member or phase not in ("build", "prepare", "propose", "switch"):
            held = StateId(state.step_max, "x" if replica_id in state.live else "y")
            return m.Report(held, Endpoint("h", "h:1"), interrupted=state.attempts.highest)
        attempt = state.attempts.highest
        if phase == "propose" and plan is not None:
            return m.Promised(attempt, plan.step)
        assert state.quorum is not None
        stays = any(x.replica_id == replica_id for x in state.quorum.members)
        if phase == "switch":
            step = state.switch_step or 0
            return m.InForce(attempt, step) if stays else m.Leaving(m.LeaveReason.DRAINED)
        return m.Built(attempt)


Action = tuple[str, int] | Event
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("answer_all"), st.just(0)),
    st.tuples(st.just("answer_all"), st.just(1)),
    st.tuples(st.just("answer"), st.integers(0, 2)),
    st.tuples(st.just("start"), st.integers(0, 2)),
    st.builds(AgentSent, st.just("A"), st.tuples(sayings)),
    events,
)
pauses = st.sampled_from([0.0, 0.0, 0.01, 0.06, 0.3, 2.0, 6.0])
schedules = st.lists(st.tuples(actions, pauses), min_size=10, max_size=80)
Schedule = list[tuple[Action, float]]


def _play(schedule: Schedule, spec: m.JobSpec, lighthouse: Lighthouse, watch: Watch) -> float:
    now, crowd = lighthouse.state.now, Crowd(lighthouse)
    for action, pause_s in schedule:
        end = now + pause_s
        for _ in range(1000):
            due = lighthouse.next_deadline()
            if due is None or due > end:
                break
            now = max(now, due)
            _feed(lighthouse, TimerFired(), now, watch)
        else:
            raise AssertionError(f"the timer fires for ever: {lighthouse.snapshot(now)}")
        now = end
        acts: list[Event]
        acts = getattr(crowd, action[0])(action[1]) if isinstance(action, tuple) else [action]
        for event in acts:
            _feed(lighthouse, _with_spec(event, spec), now, watch)
    return now


def _feed(lighthouse: Lighthouse, event: Event, now: float, watch: Watch) -> None:
    watch.see(lighthouse.handle(event, now))
    lighthouse.check()
    json.dumps(lighthouse.snapshot(now))


def _with_spec(event: Event, spec: m.JobSpec) -> Event:
    if isinstance(event, AgentAttached):
        return AgentAttached(event.agent_id, replace(event.hello, spec=spec))
    return event


@settings(max_examples=examples(200))
@given(schedule=schedules, replicas=st.integers(1, 3), workers=st.integers(1, 2))
def test_nothing_that_is_said_breaks_it(schedule: Schedule, replicas: int, workers: int) -> None:
    spec = replace(SPEC, replicas=replicas, workers_per_replica=workers, join_timeout_s=3.0)
    first: Schedule = [(hello("A", spec), 0.0), (TimerFired(), 0.3)]
    first += [(("start", index), 0.0) for index in range(replicas)] + [(("answer_all", 0), 0.0)] * 2
    watch = Watch()
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    now = _play(first + schedule, spec, lighthouse, watch)
    # kill -9, and the same again with the journal.
    restarted = Lighthouse(LighthouseSettings(), watch.journal, now)
    _play([(TimerFired(), 0.0), *schedule], spec, restarted, watch)


# ---------------------------------------------------------------- agents


def sent(instructions: list[Instruction], agent_id: str) -> list[m.ToAgent]:
    """The messages sent to one agent."""
    sends = [x for x in instructions if isinstance(x, SendToAgent)]
    return [x.message for x in sends if x.agent_id == agent_id]


def test_its_epoch_is_on_disk_before_anything_is_said() -> None:
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(epoch=4), 0.0)
    first, *rest = lighthouse.handle(hello("A"), 0.0)
    assert first == Journal(JournalState(epoch=5))
    assert sent(rest, "A")[0] == m.Welcome(5)


def test_there_is_a_limit_to_agents() -> None:
    lighthouse = Lighthouse(LighthouseSettings(agents_max=2), JournalState(), 0.0)
    for name in "AB":
        lighthouse.handle(hello(name), 0.0)
    *_, rejected, closed = lighthouse.handle(hello("C"), 0.0)
    assert rejected == SendToAgent("C", m.Rejected("this lighthouse serves 2 agents, and no more."))
    assert isinstance(closed, CloseAgent)
    # One that is known may come again.
    assert m.Welcome(1) in sent(lighthouse.handle(hello("B"), 0.0), "B")
    lighthouse.check()


@pytest.mark.parametrize(("first", "second"), [("127.0.0.1", "10.0.0.2"), ("10.0.0.2", "fd00::2")])
def test_nodes_that_cannot_meet_at_their_addresses_are_refused(first: str, second: str) -> None:
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    lighthouse.handle(hello("A", host=first), 0.0)
    rejected = sent(lighthouse.handle(hello("B", host=second), 0.0), "B")[0]
    assert isinstance(rejected, m.Rejected)
    assert rejected.reason.startswith(f"this node announces {second}, another one {first}, and")
    assert m.Welcome(1) in sent(lighthouse.handle(hello("B", host=first), 0.0), "B")
    lighthouse.check()


def test_what_no_agent_may_say_ends_its_stream() -> None:
    lighthouse = formed(2, 2)
    twice = AgentSent("a0", (hello("a0").hello,))
    instructions = lighthouse.handle(twice, 2.0)
    assert CloseAgent("a0", "a Hello comes first, and once") in instructions
    assert lighthouse.state.live == {"1"}
    lighthouse.check()


def test_a_worker_is_heard_through_its_own_agent_only() -> None:
    lighthouse = formed(2, 2)
    (other,) = (a for a in ("a0", "a1") if "0" not in lighthouse.state.slots.of(a))
    attempt = lighthouse.state.attempts.highest
    assert not lighthouse.handle(worker(other, "0", m.Errored(attempt, 1, "no")), 2.0)
    assert lighthouse.state.phase.value == "steady"


def test_a_story_tells_what_one_replica_went_through() -> None:
    lighthouse = formed(2, 1)
    lighthouse.handle(AgentSent("a0", (m.ReplicaLost("1", "i1", "killed by SIGKILL"),)), 2.0)
    story = lighthouse.story("1")
    assert "ReplicaStarted" in story[0]
    assert story[-1].startswith("2.000 steady: Loss(replica_id='1'")
    assert lighthouse.story("9") == []


# ---------------------------------------------------------------- a thousand replicas


def calls(lighthouse: Lighthouse, events: list[Event]) -> int:
    """How many Python functions it takes to handle these events: time without a clock."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        for event in events:
            lighthouse.handle(event, 3.0)
            lighthouse.next_deadline()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", ["progress", "heartbeat", "report"])
def test_an_event_costs_the_same_whatever_the_number_of_replicas(kind: str) -> None:
    costs = []
    for replicas in (10, 1000):
        lighthouse = formed(replicas, replicas // 5)
        owner = next(a for a in lighthouse.agents if "5" in lighthouse.state.slots.of(a))
        progress = m.Progress(3, 3, Activity.STEP)
        if kind == "report":  # all but the last answers to an Interrupt
            lighthouse.handle(AgentSent(owner, (m.ReplicaLost("6", "i6", "killed"),)), 2.0)
        event = {
            "progress": worker(owner, "5", progress),
            "heartbeat": AgentSent(
                owner, (m.Heartbeat((m.ReplicaProgress("5", "i5", progress),)),)
            ),
            "report": worker(owner, "5", report(interrupted=lighthouse.state.interrupt)),
        }[kind]
        costs.append(calls(lighthouse, [event]))
    assert costs[1] <= costs[0] + 10, costs


def test_to_be_taken_over_costs_each_replica_the_same() -> None:
    costs = []
    for replicas in (100, 1000):
        lighthouse = formed(replicas, replicas // 10)
        state = lighthouse.state
        quorum = state.quorum
        journal = JournalState(1, quorum, None, state.spec)
        after = Lighthouse(LighthouseSettings(), journal, 2.0)
        running = {agent: state.replicas.of_agent(agent) for agent in lighthouse.agents}
        for agent, of_agent in running.items():
            names = tuple(replica.target for replica in of_agent)
            after.handle(hello(agent, state.spec, running=names, capacity=10), 3.0)
        reports: list[Event] = [
            worker(agent, replica.replica_id, report(in_force=quorum))
            for agent, of_agent in running.items()
            for replica in of_agent
        ]
        costs.append(calls(after, reports) / replicas)
        assert after.state.phase.value == "steady"
    assert costs[1] <= 2 * costs[0], costs


def test_a_member_that_is_back_and_says_nothing_is_interrupted_when_the_grace_is_over() -> None:
    lighthouse = formed(2, 1)
    quorum, spec = lighthouse.state.quorum, lighthouse.state.spec
    after = Lighthouse(LighthouseSettings(), JournalState(1, quorum, None, spec), 2.0)
    running = tuple(m.RunningReplica(name, f"i{name}") for name in ("0", "1"))
    after.handle(hello("a0", spec, running=running), 3.0)
    after.handle(worker("a0", "0", report(in_force=quorum)), 3.0)
    assert after.state.phase.value == "takeover"
    after.handle(AgentSent("a0", (m.Heartbeat(),)), 6.9)
    out = after.handle(TimerFired(), 7.0)
    assert after.state.phase.value == "rejoin"
    interrupt = m.Interrupt(after.state.interrupt)
    assert SendToAgent("a0", m.ToWorkers(running, interrupt)) in out


def test_a_quiet_heartbeat_is_heard_and_not_answered() -> None:
    lighthouse = formed(2, 1)
    (agent,) = lighthouse.agents
    lines = (m.ReplicaProgress("1", "i1", m.Progress(7, 7, Activity.STEP)),)
    assert lighthouse.handle(AgentSent(agent, (m.Heartbeat(lines, quiet=True),)), 3.0) == []
    assert lighthouse.agents[agent].last_message_at == 3.0
    assert lighthouse.state.step_max == 7
    answer = lighthouse.handle(AgentSent(agent, (m.Heartbeat(),)), 4.0)
    assert answer == [SendToAgent(agent, m.HeartbeatAck())]


def test_one_death_is_told_with_one_message_per_agent() -> None:
    lighthouse = formed(1000, 125)
    owner = next(a for a in lighthouse.agents if "5" in lighthouse.state.slots.of(a))
    out = lighthouse.handle(AgentSent(owner, (m.ReplicaLost("5", "i5", "killed"),)), 2.0)
    told = [x for x in out if isinstance(x, SendToAgent) and isinstance(x.message, m.ToWorkers)]
    assert len(told) == 125
    messages = {id(x.message.message) for x in told if isinstance(x.message, m.ToWorkers)}
    assert len(messages) == 1, "one object, so that it is encoded once"


@pytest.mark.parametrize(("version", "age"), [(0, "an older"), (PROTOCOL_VERSION + 1, "a newer")])
def test_an_agent_of_another_version_is_refused_and_begins_no_job(version: int, age: str) -> None:
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    event = hello("A")
    event = replace(event, hello=replace(event.hello, version=version))
    (rejected,) = [x.message for x in lighthouse.handle(event, 0.1) if isinstance(x, SendToAgent)]
    assert isinstance(rejected, m.Rejected)
    assert rejected.reason == (
        f"this agent runs {age} ftrun (protocol {version}, and {PROTOCOL_VERSION} here). "
        "Install the same ftrun on all nodes."
    )
    assert lighthouse.state.spec is NO_SPEC
    assert not lighthouse.agents


def test_agents_that_leave_are_counted_and_all_do_once_the_job_has_ended() -> None:
    lighthouse = formed(2, 3)
    assert lighthouse.leaving == 0
    lighthouse.handle(AgentSent("a0", (m.AgentLeaving("SIGTERM", ()),)), 2.0)
    lighthouse.handle(AgentDetached("a1"), 2.0)
    assert lighthouse.leaving == 1
    lighthouse.handle(AgentSent("a2", (m.JobFailed(1, "no"),)), 2.0)
    assert lighthouse.leaving == 2


def test_the_first_slots_are_those_of_the_first_rank() -> None:
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    spec = m.JobSpec("job", 3, 1, 1, 10.0, 5.0, 20.0, nodes=3)
    for name, rank in (("a", None), ("b", 1), ("c", 0)):
        hello = m.Hello(name, spec, 1, name, f"{name}:1", rank=rank)
        lighthouse.handle(AgentAttached(name, hello), 0.0)
    found = {}
    for x in lighthouse.handle(TimerFired(), 1.0):
        if isinstance(x, SendToAgent) and isinstance(x.message, m.AssignSlots):
            found[x.agent_id] = x.message.replica_ids
    assert found == {"c": ("0",), "b": ("1",), "a": ("2",)}


def test_an_agent_of_the_same_rank_has_the_slots_of_one_that_is_gone_at_once() -> None:
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    spec = m.JobSpec("job", 2, 1, 1, 10.0, 5.0, 20.0, nodes=2)

    def slots(name: str, rank: int | None, now: float) -> list[tuple[str, ...]]:
        hello = m.Hello(name, spec, 1, name, f"{name}:1", rank=rank)
        out = lighthouse.handle(AgentAttached(name, hello), now)
        out += lighthouse.handle(TimerFired(), now + 0.5)
        orders = [x.message for x in out if isinstance(x, SendToAgent) and x.agent_id == name]
        return [x.replica_ids for x in orders if isinstance(x, m.AssignSlots)]

    slots("a", 0, 0.0)
    assert slots("b", 1, 0.0) == [("1",)]
    lighthouse.handle(AgentDetached("a"), 2.0)
    lighthouse.handle(AgentDetached("b"), 2.0)
    assert slots("c", None, 2.0) == [()]
    assert slots("d", 1, 2.0) == [("1",)]
    assert [*lighthouse.agents] == ["a", "c", "d"]
    lighthouse.check()
