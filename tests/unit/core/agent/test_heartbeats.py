"""Which heartbeats ask, and which tell progress."""

from __future__ import annotations

from ftrun.core.agent.heartbeats import ASKED_MAX, SMALL_JOB_NODES, Heartbeats

LARGE = SMALL_JOB_NODES + 1


def questions(beats: Heartbeats, seconds: range) -> list[int]:
    """One heartbeat a second; every question is answered. The seconds at which it asked."""
    asked = []
    for second in seconds:
        now = second + 0.02 * (second % 3)  # timers are not exact
        if beats.asks(now):
            beats.asked(now)
            assert beats.answered() == now
            asked.append(second)
    return asked


def test_every_fourth_heartbeat_asks() -> None:
    beats = Heartbeats(1.0, 60.0, LARGE)
    assert questions(beats, range(13)) == [0, 4, 8, 12]


def test_a_short_isolation_limit_needs_an_answer_to_each() -> None:
    assert questions(Heartbeats(1.0, 12.0, LARGE), range(5)) == [0, 1, 2, 3, 4]


def test_all_ask_until_an_answer_comes() -> None:
    """A lighthouse that was stopped: its first word ends the silence at once."""
    beats = Heartbeats(1.0, 60.0, LARGE)
    assert questions(beats, range(1)) == [0]
    for now in range(4, 8):
        assert beats.asks(now)
        beats.asked(now)
    assert [beats.answered() for _ in range(4)] == [4, 5, 6, 7]
    assert not beats.asks(8)


def test_answers_belong_to_questions_of_the_same_stream() -> None:
    beats = Heartbeats(1.0, 60.0, LARGE)
    beats.asked(1.0)
    beats.broke()
    assert beats.answered() is None
    assert beats.asks(1.0)


def test_many_questions_without_an_answer_are_enough() -> None:
    beats = Heartbeats(1.0, 60.0, LARGE)
    for second in range(ASKED_MAX):
        assert not beats.is_mute
        beats.asked(second)
    assert beats.is_mute


def test_progress_goes_with_every_heartbeat_of_a_small_job() -> None:
    small, large = Heartbeats(1.0, 60.0, SMALL_JOB_NODES), Heartbeats(1.0, 60.0, LARGE)
    assert [small.tells(asks) for asks in (True, False)] == [True, True]
    assert [large.tells(asks) for asks in (True, False)] == [True, False]
