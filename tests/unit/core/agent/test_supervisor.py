"""The supervisor in any order of events, and what its checks tell.

What it does in a given case is in tests/transcripts/supervisor; whole worlds are in tests/sim.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.base.errors import Bug
from ftrun.core.activity import Activity
from ftrun.core.agent.events import (
    AskToStop,
    EndAgent,
    Event,
    Instruction,
    LighthouseGone,
    LighthouseSent,
    ShowNotice,
    SpawnerLost,
    SpawnerReady,
    StartReplica,
    StopAsked,
    TeamChanged,
    TimerFired,
    WorkerDying,
    WorkerExited,
    WorkerSent,
)
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.forms import Form, parse
from ftrun.core.ids import NO_ATTEMPT, WorkerKey
from ftrun.core.messages import (
    AssignSlots,
    Built,
    DrainAsked,
    EndJob,
    FailureReport,
    Progress,
    RestartReplica,
)
from tests.suite.properties import examples

RAISED = FailureReport("ValueError", "no", "Traceback: …")
RULES = SupervisorSettings("a", 2, RestartRules(max_restarts=2), 10.0, 60.0, 30.0)


class Agent:
    """A supervisor on a clock that jumps, with the incarnations that it has started."""

    def __init__(self, rules: SupervisorSettings = RULES) -> None:
        self.core = Supervisor(rules, 0.0)
        self.now = 0.0
        self.incarnations: dict[str, str] = {}
        self.on(SpawnerReady())

    def on(self, event: Event) -> list[Instruction]:
        out = self.core.handle(event, self.now)
        for instruction in out:
            if isinstance(instruction, StartReplica):
                self.incarnations[instruction.replica_id] = instruction.incarnation
        self.core.check()
        return out

    def exits(self, replica_id: str, status: int, rank: int) -> list[Instruction]:
        return self.on(WorkerExited(self.incarnations[replica_id], rank, 1000 + rank, status))


def test_check_tells_the_story_of_what_is_wrong() -> None:
    agent = Agent()
    agent.on(AssignSlots(("0",)))
    slot = agent.core.slots.get("0")
    assert slot is not None
    slot.alive.clear()
    with pytest.raises(AssertionError, match="started as"):
        agent.core.check()


def test_a_node_that_was_silent_has_cost_its_silence_too() -> None:
    agent = Agent()
    agent.on(AssignSlots(("0",)))
    agent.now = 30.0
    agent.on(WorkerExited(agent.incarnations["0"], 0, 0, -9, "is lost with its node", ago_s=10.0))
    slot = agent.core.slots.get("0")
    assert slot is not None
    assert slot.lost_at == 20.0


def test_what_an_agent_is_asked_about_itself() -> None:
    agent = Agent()
    agent.on(AssignSlots(("0",)))
    assert not agent.core.was_answered
    agent.on(LighthouseSent(agent.now))
    assert agent.core.was_answered
    assert any("started as" in line for line in agent.core.slots.story("0"))
    assert [(x.replica_id, x.restarts) for x in agent.core.slots.kept()] == [("0", 0)]


def test_a_team_of_another_size_begins_again_when_its_workers_have_been_asked() -> None:
    agent = Agent()
    agent.on(AssignSlots(("0",)))
    (shown, asked) = agent.on(TeamChanged("All begin again: the team has 3 nodes."))
    assert isinstance(shown, ShowNotice)
    assert shown.text == "All begin again: the team has 3 nodes."
    assert isinstance(asked, AskToStop)
    assert agent.on(TeamChanged("and now 4")) == []  # it ends already
    agent.exits("0", -15, 0)
    ending = agent.exits("0", -15, 1)[-1]
    assert isinstance(ending, EndAgent)
    assert ending.again is Form.RESIZED
    assert agent.core.restarts_spent == 0


@pytest.mark.parametrize("left", [0, 1])
def test_a_failure_is_judged_before_a_team_of_another_size_begins(left: int) -> None:
    rules = RestartRules(max_restarts=2, as_torchrun=True, spent=2 - left)
    agent = Agent(replace(RULES, restarts=rules, asks_siblings=True))
    agent.on(AssignSlots(("0",)))
    agent.exits("0", -9, 1)
    assert agent.on(TeamChanged("All begin again.")) == []
    ended = agent.exits("0", -15, 0)
    notices = [x.text for x in ended if isinstance(x, ShowNotice)]
    assert any("All begin again" in text for text in notices) == bool(left)
    assert agent.core.restarts_spent == 2


def test_no_worker_asks_for_another_number_of_nodes() -> None:
    assert parse("resized") is None
    assert parse("world") is Form.ONE_WORLD


def test_what_a_worker_tells_the_lighthouse_alone_is_not_its_agents() -> None:
    agent = Agent()
    agent.on(AssignSlots(("0",)))
    key = WorkerKey("0", agent.incarnations["0"], 0)
    assert agent.on(WorkerSent(key, Built(NO_ATTEMPT))) == []


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["assign", "exit", "crash", "raise", "restart", "wait", "drain", "stop", "end",
             "spoke", "gone", "spawner", "progress", "dies"]
        ),
        st.integers(0, 3),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=examples(150))
@given(EVENTS)
def test_in_any_order_the_invariants_hold_and_an_end_comes(events: list[tuple[str, int]]) -> None:
    agent = Agent()
    agent.on(AssignSlots(("0", "1")))
    ends: list[EndAgent] = []
    for name, number in events:
        ends += [i for i in _one(agent, name, number) if isinstance(i, EndAgent)]
    for _ in range(20):
        ends += [i for i in agent.on(StopAsked()) if isinstance(i, EndAgent)]
        for slot in agent.incarnations:
            for rank in (0, 1):
                ends += [i for i in agent.exits(slot, -9, rank) if isinstance(i, EndAgent)]
    assert len(ends) == 1


def _one(agent: Agent, name: str, number: int) -> list[Instruction]:
    slot, rank = str(number % 2), number // 2
    key = WorkerKey(slot, agent.incarnations.get(slot, ""), rank)
    events: dict[str, Event] = {
        "assign": AssignSlots((("0",), ("1",), ("0", "1"), ())[number]),
        "exit": WorkerExited(key.incarnation, rank, 1, 0),
        "crash": WorkerExited(key.incarnation, rank, 1, -9),
        "dies": WorkerDying(WorkerExited(key.incarnation, rank, 1, -9)),
        "raise": WorkerSent(key, RAISED),
        "restart": RestartReplica(slot, key.incarnation, "silent"),
        "wait": TimerFired(),
        "drain": DrainAsked("SIGTERM", 75),
        "stop": StopAsked(),
        "end": EndJob(0, "done"),
        "spoke": LighthouseSent(agent.now - number),
        "gone": LighthouseGone("cut"),
        "spawner": SpawnerLost("gone", 70),
        "progress": WorkerSent(key, Progress(number, number, Activity.STEP)),
    }
    if name == "wait":
        agent.now += (0.1, 1.0, 10.0, 100.0)[number]
    return agent.on(events[name])


def test_an_event_without_a_case_is_refused() -> None:
    with pytest.raises(Bug, match="no case"):
        Agent().core.handle("no event", 0.0)  # type: ignore[arg-type]
