"""The job in short: only for agents that ask, with the figures of the status, once a second."""

from __future__ import annotations

from ftrun.core import messages as m
from tests.unit.core.books.booked_job import BookedJob


def acks(job: BookedJob, heartbeat: m.Heartbeat) -> list[m.JobGlance | None]:
    """What the answers to this heartbeat have."""
    before = len(job.sent)
    job.send("0", heartbeat)
    return [x.glance for x in job.sent[before:] if isinstance(x, m.HeartbeatAck)]


def test_an_agent_that_asks_gets_the_statuss_figures() -> None:
    job = BookedJob()
    job.form()
    for step in range(1, 11):
        job.wait(1.0)
        job.progress("0", step)
        job.progress("1", step)
    assert acks(job, m.Heartbeat()) == [None]
    assert acks(job, m.Heartbeat(quiet=True, wants_glance=True)) == []
    (glance,) = acks(job, m.Heartbeat(wants_glance=True))
    status = job.status()
    assert glance == m.JobGlance(
        step=status["step"],
        live=2,
        lost_s=status["account"]["lost_s"],
        steps_per_s=status["rate"]["now"],
    )
    assert glance.step == 10


def test_it_is_made_once_a_second_however_many_ask() -> None:
    job = BookedJob()
    assert acks(job, m.Heartbeat(wants_glance=True)) == [m.JobGlance(0, 0, 0.0)]
    job.form()
    (first,) = acks(job, m.Heartbeat(wants_glance=True))
    assert first == m.JobGlance(0, 0, 0.0)
    job.wait(1.0)
    assert acks(job, m.Heartbeat(wants_glance=True)) == [m.JobGlance(0, 2, 0.0)]
    job.wait(0.5)
    job.lose("1")
    job.wait(0.25)
    assert acks(job, m.Heartbeat(wants_glance=True)) == [m.JobGlance(0, 2, 0.0)]
    job.wait(0.5)
    (later,) = acks(job, m.Heartbeat(wants_glance=True))
    assert later is not None and later.live < 2 and later.lost_s > 0.0
