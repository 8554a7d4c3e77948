"""Nodes on which replicas keep dying, and jobs that never get their nodes."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.core import failure_kinds as kinds
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSent,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.set_aside import FAILURES_MAX, WINDOW_S

CAUSE = m.FailedWorker(0, 7, -11, kinds.SIGNAL, "died: SIGSEGV", 0.0)


class Job:
    """Two replicas on two nodes, each with ``capacity``, or on one."""

    def __init__(self, capacity: int = 2, nodes: str = "ab") -> None:
        self.core = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
        self.now = 0.0
        self.lives = 0
        self.sent: list[Any] = []
        self.spec = m.JobSpec("job", 2, 1, 1, 10.0, 5.0, 20.0, nodes=len(nodes))
        for agent_id in nodes:
            hello = m.Hello(agent_id, self.spec, capacity, f"host-{agent_id}", f"{agent_id}:1")
            self.feed(AgentAttached(agent_id, hello))
        self.now = 0.5
        self.feed(TimerFired())  # the slots are shared out

    def feed(self, event: Any) -> None:
        out = self.core.handle(event, self.now)
        self.core.check()
        self.sent += [x.message for x in out if isinstance(x, SendToAgent)]

    def owner(self, replica_id: str) -> str:
        return self.core.state.slots[replica_id].agent_id

    def fails(
        self,
        agent_id: str,
        replica_id: str,
        cause: m.FailedWorker = CAUSE,
        step: int | None = None,
    ) -> None:
        self.lives += 1
        name = f"i{self.lives}"
        evidence = m.FailureEvidence(
            replica_id, name, 0, (cause,), step is not None, step or 0, kinds.RESTARTED
        )
        messages = (
            m.ReplicaStarted(replica_id, name, 0),
            m.ReplicaLost(replica_id, name, "died", kind=cause.kind),
            evidence,
        )
        self.feed(AgentSent(agent_id, messages))

    def notices(self, kind: str) -> list[str]:
        return [x.text for x in self.sent if isinstance(x, m.Notice) and x.kind == kind]


def test_a_node_whose_replicas_keep_dying_loses_its_slots_to_one_that_is_well() -> None:
    job = Job()
    assert (job.owner("0"), job.owner("1")) == ("a", "b")
    for _ in range(FAILURES_MAX):
        assert job.owner("0") == "a"
        job.fails("a", "0")
    assert job.owner("0") == "b"
    assert any("host-a is set aside" in text for text in job.notices("aside"))
    last = job.core.books.incidents.documents(0.0)[-1]
    assert last["verdict"] == kinds.SET_ASIDE
    assert job.core.agents["a"].is_aside
    assert m.AssignSlots(()) in job.sent


def test_a_node_that_has_corrupted_a_replica_is_set_aside_at_once() -> None:
    job = Job()
    cause = f"{kinds.CORRUPTED} since a step after 100 and up to 200"
    job.fails("a", "0", m.FailedWorker(0, 7, -9, kinds.CORRUPTION, cause, 0.0), step=200)
    assert job.owner("0") == "b"
    (text,) = set(job.notices("aside"))
    assert text.endswith("host-a is set aside, because it has altered a replica's parameters.")


def test_the_only_node_is_named_for_corruption_alone() -> None:
    job = Job(nodes="a")
    for _ in range(FAILURES_MAX):
        job.fails("a", "0")
    assert job.notices("aside") == []
    cause = f"{kinds.CORRUPTED} since a step after 100 and up to 200"
    job.fails("a", "0", m.FailedWorker(0, 7, -9, kinds.CORRUPTION, cause, 0.0), step=200)
    (text,) = set(job.notices("aside"))
    assert text.startswith(
        "Host-a would be set aside, because it has altered a replica's parameters, but no other "
        "node has room"
    )


def test_a_node_that_was_set_aside_takes_slots_again_when_no_other_is_left() -> None:
    """Seed 19160034: the other node was drained, and its replicas stayed down for ever."""
    job = Job()
    for _ in range(FAILURES_MAX):
        job.fails("a", "0")
    assert (job.owner("0"), job.owner("1")) == ("b", "b")
    job.feed(AgentSent("b", (m.AgentLeaving("SIGTERM"),)))
    assert (job.owner("0"), job.owner("1")) == ("a", "a")
    assert any("which was set aside" in text for text in job.notices("aside"))


def test_a_node_that_may_come_back_is_waited_for_before_one_that_was_set_aside() -> None:
    job = Job()
    for _ in range(FAILURES_MAX):
        job.fails("a", "0")
    job.feed(AgentDetached("b"))
    assert job.core.agents["a"].is_aside
    job.now += LighthouseSettings().reassign_grace_s + 0.1
    job.feed(AgentSent("a", (m.Heartbeat(),)))
    assert (job.owner("0"), job.owner("1")) == ("a", "a")


def test_without_room_elsewhere_nothing_moves_and_that_is_said_once() -> None:
    job = Job(capacity=1)
    for _ in range(FAILURES_MAX + 3):
        job.fails("a", "0")
    assert job.owner("0") == "a"
    notices = job.notices("aside")
    assert len(set(notices)) == 1 and "no other node has room" in notices[0]


def test_a_script_that_fails_everywhere_is_no_fault_of_a_node() -> None:
    job = Job()
    job.fails("b", "1")
    for _ in range(FAILURES_MAX):
        job.fails("a", "0")
    assert job.owner("0") == "a"


def test_a_step_in_between_or_a_long_time_makes_them_chance() -> None:
    job = Job()
    for number in range(FAILURES_MAX):
        job.fails("a", "0")
        job.feed(AgentSent("a", (m.ReplicaStarted("0", f"n{number}", 0),)))
        line = m.ReplicaProgress("0", f"n{number}", m.Progress(number + 1, 0, Activity.STEP))
        job.feed(AgentSent("a", (m.Heartbeat((line,)),)))
    assert job.owner("0") == "a"
    told = Job()
    for number in range(FAILURES_MAX):
        told.fails("a", "0", step=number + 1)
    assert told.owner("0") == "a", "its evidence is the first to tell of a step"
    late = Job()
    for _ in range(FAILURES_MAX):
        late.fails("a", "0")
        late.core.agents["a"].failures[-1] -= WINDOW_S + 1.0
    assert late.owner("0") == "a"


def test_a_lost_peer_is_no_fault_of_the_node_and_an_unwell_node_is_set_aside_at_once() -> None:
    job = Job()
    for _ in range(FAILURES_MAX):
        job.fails("a", "0", m.FailedWorker(0, 7, 1, kinds.PEER, "failed", 0.0))
    assert job.owner("0") == "a"
    job.fails("a", "0", m.FailedWorker(0, 0, 1, kinds.UNHEALTHY, "--health-check ended with 1", 0))
    assert job.owner("0") == "b"
    assert any("its --health-check fails" in text for text in job.notices("aside"))


def alone(min_replicas: int, capacity: int, nodes: int = 2) -> tuple[Lighthouse, m.JobSpec]:
    core = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    spec = m.JobSpec("job", 4, 1, min_replicas, 10.0, 5.0, 20.0, nodes=nodes)
    core.handle(AgentAttached("a", m.Hello("a", spec, capacity, "h", "a:1")), 0.0)
    return core, spec


def heartbeats(core: Lighthouse, until: float) -> list[Any]:
    out: list[Any] = []
    now = 0.0
    while now < until:
        now += 1.0
        out += core.handle(AgentSent("a", (m.Heartbeat(),)), now)
        out += core.handle(TimerFired(), now)
        core.check()
    return [x.message for x in out if isinstance(x, SendToAgent)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_never_gets_nodes_for_its_fewest_replicas_ends(nodes: int) -> None:
    core, _ = alone(min_replicas=3, capacity=2, nodes=nodes)
    assert core.state.outcome is None
    heartbeats(core, 11.0)
    assert core.state.outcome is not None
    assert core.state.outcome.exit_code == 74
    assert "2 of the 3 replicas of --min-replicas" in core.state.outcome.reason


def test_a_job_that_has_enough_waits_for_the_others_without_an_end() -> None:
    core, _ = alone(min_replicas=2, capacity=2)
    heartbeats(core, 60.0)
    assert core.state.outcome is None


def test_the_wait_before_a_restart_is_in_the_status_until_it_begins() -> None:
    job = Job()
    job.fails("a", "0")
    first = job.core.snapshot(job.now)["replicas"][0]
    assert (first["phase"], first["restart_in_s"]) == ("absent", None)
    evidence = m.FailureEvidence("0", "i1", 0, (CAUSE,), restart_in_s=4.0)
    job.feed(AgentSent("a", (evidence,)))
    first = job.core.snapshot(job.now + 1.0)["replicas"][0]
    assert (first["phase"], first["restart_in_s"]) == ("backoff", 3.0)
    job.feed(AgentSent("a", (m.ReplicaStarted("0", "next", 1),)))
    assert job.core.snapshot(job.now)["replicas"][0]["phase"] == "starting"


def test_the_step_of_the_last_failure_once_more_makes_them_no_chance() -> None:
    job = Job()
    for number in range(FAILURES_MAX):
        job.feed(AgentSent("a", (m.ReplicaStarted("0", f"n{number}", 0),)))
        line = m.ReplicaProgress("0", f"n{number}", m.Progress(0, 0, Activity.STEP))
        job.feed(AgentSent("a", (m.Heartbeat((line,)),)))
        job.fails("a", "0")
    assert job.owner("0") == "b"
