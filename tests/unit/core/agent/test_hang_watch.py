"""When a silent worker is asked, and when it counts as hanging."""

from __future__ import annotations

from ftrun.core.agent.hang_watch import ASK_SHARE, BUSY_LIMITS, BUSY_SHARE, Silence

LIMIT_S = 60.0


def played(cpu_share: float, until_s: float, answers_at: float | None = None) -> float | None:
    """When a worker that uses this share of a core counts as hanging, if checked in time."""
    silence, now = Silence(LIMIT_S, 0.0), 0.0
    while now < until_s:
        now = silence.look_at
        if answers_at is not None and now >= answers_at:
            silence.received(answers_at)
            answers_at = None
        if silence.asks(now) and silence.used(cpu_share * now, now):
            return now
    return None


def test_who_answers_nothing_and_does_nothing_hangs_after_the_limit() -> None:
    assert played(0.0, 1000.0) == LIMIT_S


def test_who_waits_for_pythons_lock_uses_a_little_and_hangs_too() -> None:
    assert played(BUSY_SHARE / 2, 1000.0) == LIMIT_S


def test_who_computes_has_more_time_but_not_for_ever() -> None:
    assert played(1.0, 20 * LIMIT_S) == (ASK_SHARE + BUSY_LIMITS) * LIMIT_S


def test_an_answer_begins_it_anew() -> None:
    assert played(0.0, 1000.0, answers_at=44.0) == 44.0 + LIMIT_S


def test_who_speaks_is_never_asked() -> None:
    silence = Silence(LIMIT_S, 0.0)
    for tenth in range(1, 10_000):
        now = tenth / 10
        silence.received(now)
        if silence.look_at <= now:
            assert not silence.asks(now)
            assert silence.look_at > now


def test_an_agent_that_was_stopped_itself_asks_before_it_judges() -> None:
    silence, hangs = Silence(LIMIT_S, 0.0), []
    for now in (5000.0, 5015.0, 5030.0):
        assert silence.asks(now)
        hangs.append(silence.used(0.0, now))
    assert hangs == [False, False, True]


def test_a_pause_of_agent_and_worker_between_two_questions_does_not_count() -> None:
    for asked in ((30.0,), (30.0, 45.0)):
        silence = Silence(LIMIT_S, 0.0)
        for now in asked:
            assert silence.asks(now)
            assert not silence.used(0.0, now)
        hangs = []
        for now in (7000.0, 7015.0, 7030.0):
            assert silence.asks(now)
            hangs.append(silence.used(0.0, now))
        assert hangs == [False, False, True]


def test_who_computed_between_two_questions_has_begun_to_hang_only_then() -> None:
    silence, hangs = Silence(LIMIT_S, 0.0), []
    for now, cpu_s in ((30.0, 0.0), (45.0, 15.0), (60.0, 15.0), (75.0, 15.0)):
        assert silence.asks(now)
        hangs.append(silence.used(cpu_s, now))
    assert hangs == [False, False, False, True]
