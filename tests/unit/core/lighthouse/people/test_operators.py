"""Requests of people over restarts of the lighthouse, and the limits of their table.

The scripts of this job have no Manager, so the takeover is over at once and agents come back later.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.core import messages as m
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentSent,
    JournaledOperation,
    JournalState,
    LighthouseSettings,
    Operation,
    OperatorAsked,
    Request,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.operation_table import OPERATIONS_MAX, TEXT_CHARS_MAX
from ftrun.core.lighthouse.people.operators import STACKS_MAX
from tests.unit.core.books.booked_job import BookedJob
from tests.unit.core.books.test_incident_takeover import BACK, Restarted
from tests.unit.core.books.test_incidents import SPEC

WAITS = "The lighthouse was restarted. This continues once its agents are back."


class Asked(Restarted):
    def ask(self, command: str, replica: str = "", request_id: str = "", number: int = 0) -> str:
        number = number or self.core.state.operations.last_number + 1
        self.core.state.operations.last_number = number
        self.feed(OperatorAsked(number, Request(command, replica, None, "", request_id)))
        found = self.core.operation(number, request_id)
        return found.text if found is not None else "not noted"

    def text(self, request_id: str) -> str:
        found = self.core.operation(0, request_id)
        assert found is not None
        return found.text

    def comes_back(self, agent_id: str, *running: m.RunningReplica) -> None:
        hello = m.Hello(agent_id, SPEC, 4, f"host-{agent_id}", f"{agent_id}:1", running, epoch=1)
        self.feed(AgentAttached(agent_id, hello))


def test_the_table_is_bounded_and_forgets_what_has_ended_first() -> None:
    job = Asked()
    assert "is drained" not in job.ask("restart", "0", "first")
    job.ask("kill", "7", "refused")
    for number in range(OPERATIONS_MAX + 5):
        job.ask("restart", "1", f"r{number}")
    assert job.ask("restart", "1", "late") == "not noted"
    assert job.core.operation(0, "first") is not None
    assert job.core.operation(0, "refused") is None
    assert len(job.journal.operations) == OPERATIONS_MAX


def test_the_same_id_for_another_request_is_refused() -> None:
    job = Asked()
    first = job.ask("restart", "1", "x")
    assert job.ask("restart", "1", "x") == first
    job.feed(OperatorAsked(77, Request("kill", "1", request_id="x")))
    found = job.core.operation(77)
    assert found is not None and found.refused == 409


def test_what_the_restarted_lighthouse_finds_ends_the_request() -> None:
    job = Asked()
    job.ask("restart", "0", "ended")
    job.ask("restart", "1", "drained")
    job.ask("restart", "2", "leaves")
    job.ask("drain", "", "all")
    spec = replace(SPEC, replicas=3)
    gone = JournaledOperation(99, "restart", "3", request_id="gone")
    journal = replace(
        job.journal,
        spec=spec,
        finished=("0",),
        withdrawn=("1",),
        operations=(*job.journal.operations, gone),
    )
    job.core = Lighthouse(LighthouseSettings(), journal, 0.0)
    job.feed(TimerFired())
    assert job.text("ended") == "Replica 0 had come to its end."
    assert job.text("drained") == WAITS
    assert job.text("gone") == "The job has no replica 3 any more."
    assert job.text("all") == WAITS
    hello = m.Hello("a", spec, 4, "h", "a:1", (BACK("1", "i1"),), epoch=1)
    job.feed(AgentAttached("a", hello))
    assert job.text("drained") == "Replica 1 was drained meanwhile."
    assert job.text("all") == "1 agent leaves, with all replicas at their next boundary."


def test_a_replica_that_leaves_already_is_told_to_start_again() -> None:
    job = Asked()
    job.ask("restart", "1", "x")
    job.restart()
    job.comes_back("a", BACK("0", "i0"), BACK("1", "i1", True))
    assert job.text("x").endswith("Then it starts again.")
    assert job.core.state.slots["1"].moves_to == "a"


def test_agents_that_stay_away_are_waited_for_once() -> None:
    job = Asked()
    job.ask("drain", "", "all")
    job.ask("kill", "2", "x")
    job.restart()
    assert job.ask("kill", "3", "held") == WAITS
    assert job.journal.operations[-1].is_held
    job.comes_back("a", BACK("0", "i0"))
    assert job.text("x") == WAITS
    due = job.core.operators.next_deadline()
    assert due is not None
    job.now = due
    job.feed(TimerFired())
    assert job.text("x") == "Replica 2 is dead. Its agent treats that as any failure."
    assert job.text("held") == "Replica 3 does not run now."
    assert job.core.operators.next_deadline() is None


def test_a_new_agent_is_not_meant_by_a_drain_of_earlier_ones() -> None:
    job = Asked()
    job.ask("drain", "", "all")
    job.restart()
    job.attach("c")
    assert job.text("all") == WAITS
    job.comes_back("a")
    assert not job.core.agents["c"].is_back and job.core.agents["a"].is_back
    job.feed(AgentAttached("a", m.Hello("a", SPEC, 4, "h", "a:1", epoch=2)))
    assert job.core.agents["a"].is_back


@pytest.mark.parametrize("command", ["restart", "kill"])
def test_a_job_that_has_ended_ends_what_was_asked_for(command: str) -> None:
    job = Asked()
    job.ask(command, "1", "x")
    job.restart()
    job.ask("kill", "0", "held")
    outcome = m.EndJob(1, "why")
    job.core = Lighthouse(LighthouseSettings(), replace(job.journal, outcome=outcome), 0.0)
    job.feed(TimerFired())
    assert job.text("x") == "The job has ended: why."
    assert job.ask("kill", "1", "new") == "The job has ended."


def test_a_long_text_is_shortened_in_the_journal() -> None:
    table = Lighthouse(LighthouseSettings(), JournalState(), 0.0).state.operations
    ended = Operation(1, Request("restart", "1"), "x" * 10_000, has_ended=True)
    table.add(ended)
    table.add(Operation(2, Request("stack"), has_ended=True))
    (found,) = table.journaled()
    assert len(found.text) == TEXT_CHARS_MAX


def test_an_order_is_sent_again_to_an_agent_that_comes_by_another_stream() -> None:
    job = Asked()
    job.ask("kill", "0", "x")
    job.ask("drain", "", "all")
    job.comes_back("b", BACK("2", "i2"))
    hello = m.Hello("a", SPEC, 4, "h", "a:1", (BACK("0", "i0"),), epoch=1)
    sent = [
        x.message
        for x in job.core.handle(AgentAttached("a", hello), job.now)
        if isinstance(x, SendToAgent)
    ]
    assert m.KillWorkers("0", "i0", (0,)) in sent
    assert m.DrainAgent("ftrun drain") in sent


def test_a_worker_that_is_replaced_inside_its_group_is_dead() -> None:
    job = Asked()
    assert job.ask("kill", "0", "x") == "Replica 0 is being killed."
    job.feed(AgentSent("a", (m.ReplicaStarted("0", "i0", 1, 9),)))
    assert job.text("x") == "Replica 0 is dead, and was replaced in its group."


def test_another_incarnation_needs_no_restart_once_more() -> None:
    job = Asked()
    job.ask("restart", "1", "x")
    job.restart()
    job.comes_back("a", BACK("0", "i0"), BACK("1", "next"))
    assert job.text("x") == "Replica 1 runs again."


@pytest.mark.parametrize("running", [(), (BACK("1", "i1", True),)], ids=["ended", "leaves"])
def test_an_agent_that_was_away_starts_again_what_does_not_train(
    running: tuple[m.RunningReplica, ...],
) -> None:
    job = Asked()
    job.detach("a")
    job.ask("restart", "1", "x")
    job.sent.clear()
    job.comes_back("a", BACK("0", "i0"), *running)
    incarnation = running[0].incarnation if running else ""
    assert m.StopReplica("1", incarnation, True) in job.sent


@pytest.mark.parametrize("has_left", [False, True])
def test_an_agent_that_lost_its_stream_is_told_to_restart_once_more(has_left: bool) -> None:
    job = Asked()
    job.ask("restart", "1", "x")
    job.detach("a")
    job.sent.clear()
    job.comes_back("a", BACK("0", "i0"), BACK("1", "i1", has_left))
    assert [x.replica_id for x in job.sent if isinstance(x, m.StopReplica) and x.restart] == ["1"]
    how = "has left; its processes end" if has_left else "is in no quorum: it ends"
    assert job.text("x") == f"Replica 1 {how}. Then it starts again."


def test_an_agent_that_leaves_already_is_not_asked_to_once_more() -> None:
    job = Asked()
    job.ask("drain", "", "all")
    job.restart()
    job.sent.clear()
    hello = m.Hello("a", SPEC, 0, "host-a", "a:1", (BACK("0", "i0"),), epoch=1)
    job.feed(AgentAttached("a", hello))
    assert job.text("all") == "1 agent leaves, with all replicas at their next boundary."
    assert m.DrainAgent("ftrun drain") not in job.sent


def test_stacks_of_very_many_workers_are_asked_for_replica_by_replica() -> None:
    job = BookedJob(workers=STACKS_MAX // 2 + 1)
    job.form()
    job.feed(OperatorAsked(1, Request("stack")))
    found = job.core.operation(1)
    assert found is not None
    assert found.text == "514 workers run, and 512 answer at once: name a replica."
    job.feed(OperatorAsked(2, Request("stack", "0")))
    assert job.sent[-1].request == 2
