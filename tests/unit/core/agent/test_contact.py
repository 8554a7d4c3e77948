"""A lighthouse's silence: before the first word, and after the last."""

from __future__ import annotations

from ftrun.core.agent.contact import Contact


def test_an_agent_that_never_heard_one_gives_up_after_the_join_timeout() -> None:
    contact = Contact(join_timeout_s=30.0, isolation_limit_s=60.0)
    assert contact.deadline() is None
    assert not contact.never_came(1e9)
    contact.ready(100.0)
    contact.ready(110.0)
    assert contact.deadline() == 130.0
    assert not contact.never_came(129.9)
    assert contact.never_came(130.0)
    assert not contact.falls_silent(1e9)


def test_silence_after_a_word_isolates_once_and_a_word_ends_it() -> None:
    contact = Contact(join_timeout_s=30.0, isolation_limit_s=60.0)
    assert not contact.heard(110.0, 110.0)
    assert contact.is_open
    assert not contact.never_came(1e9)
    assert contact.deadline() == 170.0
    assert not contact.falls_silent(169.9)
    assert contact.falls_silent(170.0)
    contact.isolated = True
    assert not contact.falls_silent(171.0)
    assert contact.deadline() is None
    contact.lost()
    assert not contact.is_open
    assert contact.heard(180.0, 179.0)
    assert not contact.isolated
    assert contact.deadline() == 239.0


def test_the_limit_counts_from_the_question_however_late_its_answer_comes() -> None:
    contact = Contact(join_timeout_s=30.0, isolation_limit_s=60.0)
    contact.heard(10.0, 9.0)
    contact.heard(50.0, None)
    contact.heard(55.0, 8.0)
    assert contact.deadline() == 69.0
    assert contact.falls_silent(69.0)
    contact.isolated = True
    assert not contact.heard(100.0, 20.0)
    assert contact.isolated
    assert not contact.heard(101.0, None)
    assert contact.heard(101.0, 100.0)
