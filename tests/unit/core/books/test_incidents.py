"""Incidents: which failures are one, in which order, what the record tells, and its limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core import failure_kinds as kinds
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.books import incident_state
from ftrun.core.books import incidents as room
from ftrun.core.books.incident_record import DOCUMENT_BYTES_MAX, document
from ftrun.core.books.records import SaveIncident
from ftrun.core.ids import WorkerKey
from ftrun.core.incident_words import block, line
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSent,
    JournalState,
    LighthouseSettings,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from tests.suite.properties import examples
from tests.unit.core.books.booked_job import BookedJob

SPEC = m.JobSpec("job", 4, 1, 1, 10.0, 5.0, 20.0, nodes=2)


class Job:
    """A lighthouse with two agents, whose four replicas have no Manager."""

    def __init__(self) -> None:
        self.core = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
        self.now = 0.0
        self.saved: list[SaveIncident] = []
        for agent_id in ("a", "b"):
            self.attach(agent_id)
        for name in ("0", "1", "2", "3"):
            self.start(name, f"i{name}")

    def attach(self, agent_id: str, *running: m.RunningReplica) -> None:
        hello = m.Hello(agent_id, SPEC, 4, f"host-{agent_id}", f"{agent_id}:1", running)
        self._feed(AgentAttached(agent_id, hello))

    def detach(self, agent_id: str) -> None:
        self._feed(AgentDetached(agent_id))

    def send(self, name: str, message: m.FromAgent) -> None:
        self._feed(AgentSent("a" if int(name) < 2 else "b", (message,)))

    def start(self, name: str, incarnation: str, restarts: int = 0) -> None:
        self.send(name, m.ReplicaStarted(name, incarnation, restarts))

    def loses(self, name: str, kind: str, cause: str = "died", signature: str = "") -> None:
        failure = m.StartFailure(signature, 1, "x") if signature else None
        self.send(name, m.ReplicaLost(name, f"i{name}", cause, False, failure, kind))

    def tells(self, name: str, kind: str, age_s: float = 0.0, **more: Any) -> None:
        worker = replace(m.FailedWorker(0, 7, -9, kind, f"cause of {name}", age_s), **more)
        evidence = m.FailureEvidence(name, f"i{name}", 0, (worker,), verdict=kinds.RESTARTED)
        self.send(name, evidence)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._feed(TimerFired())

    def documents(self) -> list[dict[str, Any]]:
        return self.core.books.incidents.documents(self.now)

    def _feed(self, event: Any) -> None:
        out = self.core.handle(event, self.now)
        self.saved += [x for x in out if isinstance(x, SaveIncident)]
        self.core.check()


def test_two_causes_of_their_own_are_two_incidents() -> None:
    job = Job()
    job.loses("0", kinds.SIGNAL)
    job.loses("2", kinds.EXCEPTION)
    assert [x["number"] for x in job.documents()] == [1, 2]


def test_a_consequence_belongs_to_the_incident_that_it_follows_from() -> None:
    job = Job()
    job.loses("0", kinds.SIGNAL)
    job.loses("2", kinds.PEER)
    job.loses("1", kinds.GIVEN_UP)
    (found,) = job.documents()
    assert found["first_cause"]["replica_id"] == "0"
    assert [x["replica_id"] for x in found["consequences"]] == ["2", "1"]


def test_a_cause_that_is_reported_after_its_consequence_is_still_the_first() -> None:
    job = Job()
    job.loses("2", kinds.PEER)
    job.now = 1.0
    job.loses("0", kinds.SIGNAL)
    (found,) = job.documents()
    assert found["first_cause"]["replica_id"] == "0"


def test_causes_are_in_the_order_in_which_they_happened_not_arrived() -> None:
    job = Job()
    job.now = 5.0
    job.loses("2", kinds.PEER)
    job.loses("3", kinds.PEER)
    job.now = 6.0
    job.tells("2", kinds.PEER, age_s=0.5)
    job.tells("3", kinds.PEER, age_s=3.0)
    (found,) = job.documents()
    assert found["first_cause"]["replica_id"] == "3"
    assert found["consequences"][0]["after_s"] == 2.0


def test_the_same_error_at_the_start_of_all_replicas_is_one_incident() -> None:
    job = Job()
    for name in ("0", "1", "2"):
        job.loses(name, kinds.EXCEPTION, signature="same")
    assert len(job.documents()) == 1


def test_a_loss_without_a_failure_is_no_incident() -> None:
    job = Job()
    job.send("0", m.ReplicaLost("0", "i0", "drained"))
    assert job.documents() == []


def test_an_incident_of_a_group_without_a_quorum_has_its_step() -> None:
    job = Job()
    for step, phase in ((40, Activity.APART), (0, Activity.STARTING)):
        row = m.ReplicaProgress("0", "i0", m.Progress(step, 0, phase))
        job.send("0", m.Heartbeat((row,)))
    job.loses("0", kinds.SIGNAL)
    (found,) = job.documents()
    assert found["step"] == 40


def test_evidence_of_a_loss_that_this_lighthouse_does_not_know_is_an_incident() -> None:
    job = Job()
    job.tells("0", kinds.SIGNAL)
    job.loses("0", kinds.SIGNAL)
    (found,) = job.documents()
    assert found["first_cause"]["worker"]["pid"] == 7
    assert job.saved[-1].record.incarnations == ("i0",)


def test_it_is_over_when_the_replica_runs_again_and_the_agents_get_both_records() -> None:
    job = Job()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    assert [x.record.is_open for x in job.saved] == [True]
    job.now = 2.0
    job.start("0", "next", 1)
    assert [x.record.is_open for x in job.saved] == [True, False]
    assert job.saved[-1].agents == ("a", "b")
    (found,) = job.documents()
    assert (found["verdict"], found["cost"]["replica_seconds"]) == ("restarted", 2.0)
    job.loses("1", kinds.PEER)
    assert len(job.documents()) == 2  # it follows from nothing that is open


def mended(age_s: float, words: str, stood_s: float, steps_again: int = 0) -> m.FailureEvidence:
    """Evidence of a worker of replica 0 that was replaced inside its group."""
    worker = m.FailedWorker(0, 7, -9, kinds.SIGNAL, "died", age_s)
    told = {"words": words, "stood_s": stood_s, "steps_again": steps_again}
    return m.FailureEvidence("0", "i0-1", 0, (worker,), verdict=kinds.RESTARTED, **told)  # type: ignore[arg-type]


def test_a_replacement_that_did_not_help_is_told_in_the_incident_of_the_death() -> None:
    job = Job()
    job.now = 10.0
    job.send("0", mended(3.0, "all go on", 3.0))
    assert job.documents()[0]["cost"] == {"steps": 0, "replica_seconds": 3.0}
    job.now = 70.0
    job.send("0", mended(63.0, "all went on from step 6", 63.0, 1))
    (found,) = job.documents()
    assert found["verdict_words"] == "all went on from step 6"
    assert found["first_cause"]["back_after_s"] == 63.0
    assert found["cost"] == {"steps": 1, "replica_seconds": 63.0}
    assert [x.record.is_open for x in job.saved] == [True, False, False]
    for number in range(room.INCIDENTS_MAX + 1):
        assert job.core.books.incidents.steps_lost() == 1, "also when its incident was dropped"
        job.send("1", m.ReplicaLost("1", f"x{number}", "died", kind=kinds.SIGNAL))


def test_steps_that_two_deaths_have_cost_together_are_lost_once() -> None:
    """Seen: 10 steps lost, where both replicas had died at step 25, and resumed from step 20."""
    job = Job()
    for number, replica in enumerate("01"):
        job.now = 10.0 * number
        job.loses(replica, kinds.SIGNAL)
        job.start(replica, f"next-{replica}", 1)
    both = [*job.core.books.incidents]
    assert len(both) == 2
    for incident in both:
        incident.step = 25
        incident.response = incident_state.Response("form", "1.2", ("0", "1"), (), (), 20, 0.1)
    assert job.core.books.incidents.steps_lost() == 5
    both[1].response = incident_state.Response("form", "1.3", ("0", "1"), (), (), 22, 0.1)
    assert job.core.books.incidents.steps_lost() == 5 + 3


def test_a_group_that_restarts_after_a_replacement_is_in_the_incident_of_the_death() -> None:
    job = Job()
    job.now = 10.0
    job.send("0", mended(3.0, "all go on", 3.0))
    job.now = 70.0
    job.send("0", m.ReplicaLost("0", "i0", "died", kind=kinds.SIGNAL, follows="i0-1"))
    job.tells("0", kinds.SIGNAL, 63.0)
    (found,) = job.documents()
    assert found["is_open"] and found["first_cause"]["incarnation"] == "i0"
    job.now = 75.0
    job.start("0", "next", 1)
    (found,) = job.documents()
    assert not found["is_open"]
    assert found["first_cause"]["back_after_s"] == found["cost"]["replica_seconds"] == 68.0
    job.send("1", m.ReplicaLost("1", "i1", "died", kind=kinds.SIGNAL, follows="i1-1"))
    assert len(job.documents()) == 2, "of whose death nothing is known"


def test_a_lost_node_is_one_incident_and_over_when_its_agent_is_back() -> None:
    job = Job()
    job.detach("b")
    (found,) = job.documents()
    assert found["first_cause"]["kind"] == kinds.NODE
    assert [x["replica_id"] for x in found["consequences"]] == ["3"]
    assert "host-b" in found["first_cause"]["cause"]
    job.now = 1.0
    job.attach("b", m.RunningReplica("2", "i2"), m.RunningReplica("3", "i3"))
    job.loses("2", kinds.SIGNAL)
    assert [x["first_cause"]["kind"] for x in job.documents()][-1] == kinds.SIGNAL


def test_a_job_that_ends_closes_its_incidents_and_takes_late_evidence() -> None:
    job = Job()
    job.loses("0", kinds.EXCEPTION)
    job.send("0", m.JobFailed(1, "no restart is left", kinds.BY_SCRIPT))
    assert job.documents()[0]["verdict"] == kinds.ENDED
    worker = m.FailedWorker(0, 7, 1, kinds.EXCEPTION, "failed: ValueError", 0.1)
    evidence = m.FailureEvidence("0", "i0", 3, (worker,), verdict=kinds.BUDGET_SPENT, words="none")
    job.send("0", evidence)
    last = job.saved[-1]
    assert (last.record.is_open, last.record.incarnations) == (False, ("i0",))
    assert last.document["verdict"] == kinds.BUDGET_SPENT


def test_the_table_is_bounded_and_so_is_a_record() -> None:
    job = Job()
    for number in range(room.INCIDENTS_MAX + 5):
        job.send("0", m.ReplicaLost("0", f"x{number}", "died", kind=kinds.SIGNAL))
    numbers = [x["number"] for x in job.documents()]
    assert numbers == list(range(6, room.INCIDENTS_MAX + 6))
    job.tells("1", kinds.EXCEPTION, traceback="\x00é\n" * 20_000, stacks="s" * 60_000)
    text = json.dumps(job.documents()[-1])
    assert len(text.encode()) <= DOCUMENT_BYTES_MAX


def test_numbers_go_on_after_those_of_an_earlier_life() -> None:
    job = Job()
    job.core.books.incidents.go_on_after(41)
    job.loses("0", kinds.SIGNAL)
    assert [x["number"] for x in job.documents()] == [42]


def test_very_many_consequences_are_counted() -> None:
    job = Job()
    job.loses("0", kinds.SIGNAL)
    incident = next(iter(job.core.books.incidents))
    for number in range(room.PARTS_MAX + 9):
        part = replace(incident.parts[0], incarnation=f"p{number}", kind=kinds.PEER)
        incident.add(part, room.PARTS_MAX)
    assert len(incident.parts) == room.PARTS_MAX
    shown = document(incident, "job", 0.0)
    assert len(shown["consequences"]) + shown["consequences_not_shown"] == room.PARTS_MAX + 9


def test_the_text_has_the_cause_the_evidence_and_the_verdict() -> None:
    job = Job()
    job.loses("0", kinds.EXCEPTION)
    job.tells("0", kinds.EXCEPTION, cause="failed: ValueError: no", traceback="File x\nValueError")
    job.loses("2", kinds.PEER, "failed: RuntimeError: Connection closed by peer")
    record = {**job.documents()[0], "time": "2030-01-02T03:04:05.678+00:00"}
    text = "\n".join(block(record))
    assert "2030-01-02 03:04:05 UTC" in text
    assert "replica 0 (pid 7) on host-a failed: ValueError: no" in text
    assert "| ValueError" in text
    assert "replica 2 (with it): failed: RuntimeError: Connection closed by peer" in text
    assert "and 1 in consequence: restarted (not over yet)" in line(record)


def test_a_record_of_another_version_is_shown_as_far_as_it_goes() -> None:
    assert block({}) and line({})


events = st.lists(
    st.tuples(
        st.sampled_from(["lost", "told", "started", "detach", "attach", "wait", "end"]),
        st.sampled_from("0123"),
        st.sampled_from([kinds.SIGNAL, kinds.PEER, kinds.EXCEPTION]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(max_examples=examples(150))
@given(events)
def test_every_failed_incarnation_is_in_exactly_one_incident(steps: list[Any]) -> None:
    job, failed = Job(), set()
    for what, name, kind, life in steps:
        incarnation = f"i{name}" if not life else f"j{name}{life}"
        worker = m.FailedWorker(0, 7, -9, kind, "x", 0.5)
        if what == "lost":
            job.send(name, m.ReplicaLost(name, incarnation, "x", kind=kind))
        elif what == "told":
            hears = not job.core.agents.is_deaf  # else it begins again, and is told once more
            job.send(name, m.FailureEvidence(name, incarnation, 0, (worker,)))
            if hears and job.core.state.outcome is None and "a" in job.core.state.outbox.agents:
                failed.add((name, incarnation))
        elif what == "started":
            job.start(name, incarnation, life)
        elif what == "detach":
            job.detach("b")
        elif what == "attach":
            job.attach("b")
        elif what == "end" and life == 2:
            job.send(name, m.JobFailed(1, "x"))
        else:
            job.wait(1.0)
    found = [
        (part.replica_id, part.incarnation)
        for incident in job.core.books.incidents
        for part in incident.parts
        if part.kind != kinds.NODE
    ]
    at_a = {key for key in failed if int(key[0]) < 2}  # agent b may have been away
    assert at_a <= set(found)
    assert len(found) == len(set(found))


def test_a_healed_replica_is_in_the_record() -> None:
    job = Job()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    part = next(iter(job.core.books.incidents)).parts[0]
    part.healed = m.Healed(job.core.state.attempts.highest, 5, ("1",), 10, 0.5)
    assert job.documents()[0]["first_cause"]["healed"]["donors"] == ["1"]


def test_an_answer_of_an_unknown_worker_changes_nothing() -> None:
    job = Job()
    attempt = job.core.state.attempts.highest
    healed = m.Healed(attempt, 5, ("1",), 10, 0.5)
    job.send("0", m.WorkerMessage(WorkerKey("0", "gone", 0), healed))
    assert job.documents() == []


def full(job: Job) -> Any:
    """An incident with as many parts as it may have, and no evidence yet."""
    job.loses("0", kinds.SIGNAL)
    incident = next(iter(job.core.books.incidents))
    for number in range(room.PARTS_MAX - 1):
        job.send("1", m.ReplicaLost("1", f"p{number}", "died", kind=kinds.PEER))
    assert len(incident.parts) == room.PARTS_MAX
    return incident


def test_one_beyond_the_limit_of_parts_is_counted_once_and_its_evidence_is_not_kept() -> None:
    job = Job()
    incident = full(job)
    for _ in range(2):
        job.loses("2", kinds.PEER)
    job.tells("2", kinds.PEER)
    assert incident.unlisted == {("2", "i2")} and incident.unlisted_count == 1
    assert job.saved == [], "nothing that a record would show is known yet"
    job.tells("0", kinds.SIGNAL)
    assert job.saved[-1].record.incarnations == ("i0",)


def test_the_count_of_those_beyond_the_limit_is_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incident_state, "UNLISTED_MAX", 1)
    job = Job()
    incident = full(job)
    job.loses("2", kinds.PEER)
    job.loses("3", kinds.PEER)
    assert incident.unlisted_count == 1


def test_evidence_that_names_no_worker_is_none() -> None:
    job = Job()
    job.send("0", m.FailureEvidence("0", "i0", 0, ()))
    assert job.documents() == []


def test_the_verdict_says_that_the_job_goes_on_without_a_replica() -> None:
    job = BookedJob()
    job.form()
    job.lose("1", kinds.EXCEPTION)
    worker = m.FailedWorker(0, 7, 1, kinds.EXCEPTION, "failed: ValueError", 0.1)
    words = "no restart is left"
    job.send("1", m.FailureEvidence("1", "i1", 3, (worker,), False, 0, kinds.BUDGET_SPENT, words))
    job.send("1", m.ReplicaGivenUp("1", "i1", 1, words, has_trained=True))
    (found,) = job.core.books.incidents.documents(job.now)
    assert found["verdict"] == kinds.BUDGET_SPENT
    assert str(found["verdict_words"]).startswith("Replica 1 is given up: no restart is left. Repl")


def test_a_node_whose_replicas_have_all_failed_before_is_no_incident_of_its_own() -> None:
    """Its agent has told how they failed before it told that they are lost."""
    job = Job()
    for name in ("2", "3"):
        job.tells(name, kinds.SIGNAL)
    job.detach("b")
    assert [x["first_cause"]["kind"] for x in job.documents()] == [kinds.SIGNAL] * 2
