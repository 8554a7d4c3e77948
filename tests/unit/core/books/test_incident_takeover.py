"""A lighthouse that is started again takes over its incidents: one failure is told once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ftrun.core import failure_kinds as kinds
from ftrun.core import messages as m
from ftrun.core.books.incident_reading import incident_of
from ftrun.core.books.incident_record import document
from ftrun.core.books.records import EarlierIncident, SaveIncident
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentSent,
    Journal,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from tests.unit.core.books.test_incidents import SPEC, Job

BACK = m.RunningReplica
RESPONSE = {
    "kind": "shrink",
    "quorum": "1.1",
    "members": ["1"],
    "survivors": ["1"],
    "recomputes": [],
    "step": 5,
    "duration_s": 0.5,
}


class Restarted(Job):
    """A lighthouse that can be killed and started again, with what it has left on disk.

    ``sent``: to agents.
    """

    def __init__(self) -> None:
        self.sent: list[m.ToAgent] = []
        self.journal = JournalState()
        super().__init__()

    def restart(self, *, lost: bool = False, without_records: bool = False) -> None:
        """``lost``: the journal is; ``without_records``: the incidents too."""
        files = {x.document["number"]: (x.document, x.age_s) for x in self.saved}
        earlier = [EarlierIncident(json.loads(json.dumps(d)), age) for d, age in files.values()]
        journal = JournalState(epoch=10**6) if lost else self.journal
        self.core = Lighthouse(LighthouseSettings(), journal, self.now)
        if not without_records:
            self.core.books.incidents.take_over(earlier)
        self.feed(TimerFired())

    def feed(self, event: Any) -> None:
        self._feed(event)

    def _feed(self, event: Any) -> None:
        out = self.core.handle(event, self.now)
        self.journal = [self.journal, *(x.record for x in out if isinstance(x, Journal))][-1]
        self.saved += [x for x in out if isinstance(x, SaveIncident)]
        self.sent += [x.message for x in out if isinstance(x, SendToAgent)]
        self.core.check()

    def back(self, name: str = "0", incident: int = 0) -> None:
        """Both agents come back; the replica was started again meanwhile."""
        for agent_id, names in (("a", "01"), ("b", "23")):
            running = [BACK(x, "next" if x == name else f"i{x}") for x in names]
            self.attach(agent_id, *running)
        worker = m.FailedWorker(0, 7, -9, kinds.SIGNAL, f"cause of {name}", 1.0)
        words = m.FailureEvidence(
            name, f"i{name}", 0, (worker,), verdict=kinds.RESTARTED, incident=incident
        )
        self.send(name, words)


def told(job: Job) -> list[tuple[int, bool]]:
    """Number and openness of all records that were ever written, the newest of each number."""
    newest = {x.document["number"]: x.document["is_open"] for x in job.saved}
    return sorted(newest.items())


@pytest.mark.parametrize("lost", [False, True])
def test_a_failure_before_the_restart_is_told_once_and_closed(lost: bool) -> None:
    job = Restarted()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    assert told(job) == [(1, True)]
    job.now = 1.0
    job.restart(lost=lost)
    job.back()
    job.wait(30.0)
    assert told(job) == [(1, False)]
    last = job.saved[-1].document
    assert (last["verdict"], last["first_cause"]["worker"]["pid"]) == (kinds.RESTARTED, 7)
    job.loses("2", kinds.EXCEPTION)
    job.tells("2", kinds.EXCEPTION)
    assert [number for number, _ in told(job)] == [1, 2]


def test_an_agent_that_was_sent_the_number_tells_it_to_a_lighthouse_that_has_lost_all() -> None:
    job = Restarted()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    job.restart(lost=True, without_records=True)
    job.back(incident=1)
    job.wait(30.0)
    assert told(job) == [(1, False)]
    job.core.books.incidents.agent_came(41)
    job.loses("2", kinds.SIGNAL)
    job.tells("2", kinds.SIGNAL)
    assert told(job)[-1][0] == 42


def test_two_parts_of_one_record_are_one_incident_again() -> None:
    job = Restarted()
    job.restart(lost=True, without_records=True)
    job.back("0", incident=3)
    job.back("2", incident=3)
    assert [(x["number"], len(x["consequences"])) for x in job.documents()] == [(3, 1)]


def test_a_final_record_that_did_not_reach_the_agent_is_sent_again() -> None:
    job = Restarted()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    job.start("0", "next", 1)
    before = len(job.saved)
    assert told(job) == [(1, False)]
    job.restart()
    job.back()
    assert told(job) == [(1, False)]
    assert [x.record.incarnations for x in job.saved[before:]] == [("i0",)]


def test_evidence_of_a_loss_before_the_restart_is_closed_once_its_replica_runs() -> None:
    job = Restarted()
    job.restart()
    job.back()
    assert told(job) == [(1, False)]


def test_if_nobody_comes_back_it_is_closed_as_not_known() -> None:
    job = Restarted()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    job.restart()
    due = job.core.books.incidents.gone_at
    assert due is not None
    job.now = due
    job.feed(TimerFired())
    last = job.saved[-1].document
    assert (last["is_open"], last["verdict"]) == (False, kinds.NOT_KNOWN)
    assert "no node has come back" in last["verdict_words"]
    job.restart()
    assert job.documents()[0]["verdict_words"] == last["verdict_words"]
    assert job.core.books.incidents.gone_at is None


def test_records_of_another_job_and_damaged_ones_are_left_out() -> None:
    job = Restarted()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    record = job.saved[-1].document
    other = Lighthouse(LighthouseSettings(), JournalState(epoch=3), 0.0)
    other.books.incidents.take_over([EarlierIncident(record, 0.0)])
    assert other.books.incidents.documents(0.0) == []  # nobody knows yet which job it is
    job.core.books.incidents.take_over([EarlierIncident({**record, "job_id": "another"}, 0.0)])
    damaged = {**record, "number": 8, "members": None}
    job.core.books.incidents.take_over([EarlierIncident(damaged, 0.0)])
    assert [x["number"] for x in job.documents()] == [1]
    assert job.core.books.incidents.last_number == 8


@pytest.mark.parametrize("job_id", ["another", "job"])
def test_another_job_closes_what_nobody_will_report(job_id: str) -> None:
    job = Restarted()
    job.loses("0", kinds.SIGNAL)
    job.tells("0", kinds.SIGNAL)
    for agent_id in ("a", "b"):
        job.feed(AgentSent(agent_id, (m.Goodbye(),)))
    spec = replace(SPEC, job_id=job_id, nodes=1)
    job.feed(AgentAttached("c", m.Hello("c", spec, 4, "h", "c:1")))
    assert told(job) == [(1, False)]
    assert job.saved[-1].document["verdict"] == kinds.NOT_KNOWN
    assert "another job has begun" in job.saved[-1].document["verdict_words"]
    assert job.core.books.incidents.last_number == (1 if job_id == "job" else 0)


def test_a_record_that_was_read_is_written_as_it_was() -> None:
    job = Restarted()
    job.loses("0", kinds.EXCEPTION)
    job.tells("0", kinds.EXCEPTION, traceback="x", error_type="E", memory="m", status=3)
    job.loses("2", kinds.PEER)
    part = next(iter(job.core.books.incidents)).parts[0]
    part.healed = m.Healed(job.core.state.attempts.highest, 5, ("1",), 10, 0.5)
    written = job.documents()[0]
    for record in (written, {**written, "quorum": "3.4"}, {**written, "response": RESPONSE}):
        incident = incident_of(json.loads(json.dumps(record)), record["ago_s"], 100.0)
        assert incident is not None
        again = document(incident, "job", 100.0)
        cost = {"steps": 0, "replica_seconds": again["cost"]["replica_seconds"]}
        assert {**again, "cost": cost} == {**record, "cost": cost}


def test_a_slot_that_the_job_does_not_have_any_more_is_not_waited_for() -> None:
    job = Restarted()
    job.send("3", m.ReplicaLost("3", "i3", "died", kind=kinds.SIGNAL))
    job.tells("3", kinds.SIGNAL)
    journal = replace(job.journal, spec=replace(SPEC, replicas=2))
    core = Lighthouse(LighthouseSettings(), journal, 0.0)
    core.books.incidents.take_over([EarlierIncident(job.saved[-1].document, 1.0)])
    core.handle(TimerFired(), 0.0)
    assert next(iter(core.books.incidents)).closed_at == 0.0


def test_evidence_goes_on_under_the_number_that_the_agent_knows_of_several() -> None:
    job = Restarted()
    job.loses("2", kinds.SIGNAL)
    job.tells("2", kinds.SIGNAL)
    worker = m.FailedWorker(0, 7, -9, kinds.PEER, "x", 0.5)
    for name in ("0", "1"):
        job.send(name, m.FailureEvidence(name, f"i{name}", 0, (worker,), incident=7))
    found = [(x["number"], x["first_cause"]["replica_id"]) for x in job.documents()]
    assert found == [(1, "2"), (7, "0")]
    assert [x["replica_id"] for x in job.documents()[1]["consequences"]] == ["1"]
