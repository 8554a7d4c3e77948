"""A lighthouse's silence: before its first answer, and after its last."""

from __future__ import annotations

from ftrun.core.agent.lease import AgentLease


def test_an_agent_that_never_heard_one_gives_up_after_the_join_timeout() -> None:
    lease = AgentLease(join_timeout_s=30.0, isolation_limit_s=60.0)
    assert lease.deadline() is None
    assert not lease.never_began(1e9)
    lease.ready(100.0)
    lease.ready(110.0)
    assert lease.deadline() == 130.0
    assert not lease.never_began(129.9)
    assert lease.never_began(130.0)
    assert not lease.ends(1e9)


def test_silence_after_a_word_isolates_once_and_a_word_ends_it() -> None:
    lease = AgentLease(join_timeout_s=30.0, isolation_limit_s=60.0)
    lease.received(110.0, 110.0)
    assert lease.is_connected
    assert not lease.never_began(1e9)
    assert lease.deadline() == 170.0
    assert not lease.ends(169.9)
    assert lease.ends(170.0)
    lease.isolated = True
    assert not lease.ends(171.0)
    assert lease.deadline() is None
    lease.disconnected()
    assert not lease.is_connected
    lease.received(180.0, 179.0)
    assert not lease.isolated
    assert lease.deadline() == 239.0


def test_the_limit_counts_from_the_question_however_late_its_answer_comes() -> None:
    lease = AgentLease(join_timeout_s=30.0, isolation_limit_s=60.0)
    lease.received(10.0, 9.0)
    lease.received(50.0, None)
    lease.received(55.0, 8.0)
    assert lease.deadline() == 69.0
    assert lease.ends(69.0)
    lease.isolated = True
    lease.received(100.0, 20.0)
    assert lease.isolated
    lease.received(101.0, None)
    assert lease.isolated
    lease.received(101.0, 100.0)
    assert not lease.isolated
