"""The outbox: one message per agent, in order, and only for those who are here."""

from __future__ import annotations

from dataclasses import replace

from ftrun.core import messages as m
from ftrun.core.books.records import SaveIncident
from ftrun.core.lighthouse.events import CloseAgent, Journal, JournalState, SendToAgent
from ftrun.core.lighthouse.outbox import NOTICE_REPLICAS_MAX, RECORD_AGENTS_MAX, Outbox
from ftrun.core.lighthouse.replicas import Replica, Replicas


def outbox() -> Outbox:
    """Agent A runs 0 and 10, B runs 2, C is gone and has left 3 behind."""
    replicas = Replicas(set())
    for name, agent_id in {"10": "A", "2": "B", "0": "A", "3": "C"}.items():
        replicas.add(Replica(name, f"i{name}", agent_id, f"{agent_id}:1"))
    out = Outbox(replicas)
    out.agents = {"A": None, "B": None}
    return out


def test_workers_are_told_through_their_agents_once_each() -> None:
    out = outbox()
    ask = m.AskReport()
    out.send({"10", "0", "2", "3", "7"}, ask)
    a = (m.RunningReplica("0", "i0"), m.RunningReplica("10", "i10"))
    b = (m.RunningReplica("2", "i2"),)
    assert out.take() == [
        SendToAgent("A", m.ToWorkers(a, ask)),
        SendToAgent("B", m.ToWorkers(b, ask)),
    ]
    assert out.take() == []


def test_a_notice_goes_to_everybody_with_its_replicas_in_order() -> None:
    out = outbox()
    out.notice("lost", ["10", "2"], "two are lost")
    notice = m.Notice("lost", ("2", "10"), "two are lost")
    copy = replace(notice, elsewhere=True)
    assert out.take() == [SendToAgent("A", notice), SendToAgent("B", copy)]
    out.agents["A"] = out.agents.pop("A")  # it has gone, and come again
    out.notice("lost", ["10", "2"], "two are lost")
    assert out.take() == [SendToAgent("B", notice), SendToAgent("A", copy)]
    out.notice("lost", ["10", "2"], "two are lost", only="A")
    assert out.take() == [SendToAgent("A", notice)]


def test_a_notice_of_very_many_replicas_names_none() -> None:
    for count, named in ((NOTICE_REPLICAS_MAX, NOTICE_REPLICAS_MAX), (NOTICE_REPLICAS_MAX + 1, 0)):
        out = outbox()
        out.notice("formed", map(str, range(count)), "all")
        (first, second) = out.take()
        assert isinstance(first, SendToAgent) and isinstance(second, SendToAgent)
        assert isinstance(first.message, m.Notice)
        assert len(first.message.replica_ids) == named
        assert second.message == replace(first.message, elsewhere=True)


def test_nothing_is_sent_to_an_agent_that_is_not_here() -> None:
    out = outbox()
    out.to_agent("C", m.HeartbeatAck())
    out.send(["3"], m.AskReport())
    assert out.take() == []


def test_the_order_is_kept_and_an_agent_that_is_refused_is_told_why() -> None:
    out = outbox()
    out.journal(JournalState(epoch=1))
    out.reject("D", "no")
    out.close("A", "silent")
    assert out.take() == [
        Journal(JournalState(epoch=1)),
        SendToAgent("D", m.Rejected("no")),
        CloseAgent("D", "no"),
        CloseAgent("A", "silent"),
    ]


def test_of_very_many_agents_those_keep_a_record_that_it_concerns() -> None:
    out = outbox()
    assert _kept_by(out, "B") == ("A", "B")
    out.agents = {f"n{number}": None for number in range(RECORD_AGENTS_MAX + 1)}
    assert _kept_by(out, "n7", "gone", "n3", "n7") == ("n7", "n3")


def _kept_by(out: Outbox, *concerned: str) -> tuple[str, ...]:
    """The agents that a record is sent to, which concerns these."""
    out.save(SaveIncident(concerned, m.IncidentRecord(1, (), True, ""), 0.0, {}))
    (record,) = out.take()
    assert isinstance(record, SaveIncident)
    return record.agents
