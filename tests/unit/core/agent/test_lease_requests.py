"""Which heartbeats ask, and which carry progress."""

from __future__ import annotations

from ftrun.core.agent.lease import REQUESTS_MAX, SMALL_JOB_NODES, LeaseRequests

LARGE = SMALL_JOB_NODES + 1


def questions(requests: LeaseRequests, seconds: range) -> list[int]:
    """The seconds at which it asks, with a heartbeat a second and an answer to each request."""
    sent = []
    for second in seconds:
        now = second + 0.02 * (second % 3)  # timers are not exact
        if requests.asks(now):
            requests.sent(now)
            assert requests.answered() == now
            sent.append(second)
    return sent


def test_every_fourth_heartbeat_asks() -> None:
    requests = LeaseRequests(1.0, 60.0, LARGE)
    assert questions(requests, range(13)) == [0, 4, 8, 12]


def test_a_short_isolation_limit_needs_an_answer_to_each() -> None:
    assert questions(LeaseRequests(1.0, 12.0, LARGE), range(5)) == [0, 1, 2, 3, 4]


def test_all_ask_until_an_answer_comes() -> None:
    """The first answer of a lighthouse that was stopped ends the silence at once."""
    requests = LeaseRequests(1.0, 60.0, LARGE)
    assert questions(requests, range(1)) == [0]
    for now in range(4, 8):
        assert requests.asks(now)
        requests.sent(now)
    assert [requests.answered() for _ in range(4)] == [4, 5, 6, 7]
    assert not requests.asks(8)


def test_answers_belong_to_questions_of_the_same_stream() -> None:
    requests = LeaseRequests(1.0, 60.0, LARGE)
    requests.sent(1.0)
    requests.disconnected()
    assert requests.answered() is None
    assert requests.asks(1.0)


def test_many_questions_without_an_answer_are_enough() -> None:
    requests = LeaseRequests(1.0, 60.0, LARGE)
    for second in range(REQUESTS_MAX):
        assert not requests.is_full
        requests.sent(second)
    assert requests.is_full


def test_a_heartbeat_that_follows_another_message_is_left_out_in_a_large_job() -> None:
    small, large = LeaseRequests(1.0, 60.0, SMALL_JOB_NODES), LeaseRequests(1.0, 60.0, LARGE)
    for requests in (small, large):
        requests.spoke()
    assert small.is_needed(asks=False)
    assert [large.is_needed(asks=False) for _ in range(2)] == [False, True]
    large.spoke()
    assert large.is_needed(asks=True)


def test_progress_goes_with_every_heartbeat_of_a_small_job() -> None:
    small, large = LeaseRequests(1.0, 60.0, SMALL_JOB_NODES), LeaseRequests(1.0, 60.0, LARGE)
    assert [small.carries_progress(asks) for asks in (True, False)] == [True, True]
    assert [large.carries_progress(asks) for asks in (True, False)] == [True, False]
