"""Attempts: always higher than all that were ever seen, one id per member list (Q1, Q2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.ids import EPOCH_MAX, NO_ATTEMPT, Attempt, pack_quorum_id
from ftrun.core.lighthouse.attempts import AttemptCounter
from ftrun.core.quorum import Endpoint, Member


def members(*names: str) -> tuple[Member, ...]:
    return tuple(Member(name[0], name[1:], (Endpoint("h", "h:1"),), "s:1") for name in names)


def test_the_same_list_takes_the_next_number_and_another_the_next_id() -> None:
    attempts = AttemptCounter(3)
    assert str(attempts.highest) == "3.0#0"
    assert str(attempts.issue(members("0a", "1a"))) == "3.1#1"
    assert str(attempts.issue(members("0a", "1a"))) == "3.1#2"
    assert str(attempts.issue(members("0a"))) == "3.2#1"
    # An id below one that was issued since is not taken up again.
    assert str(attempts.issue(members("0a", "1a"))) == "3.3#1"
    # Another incarnation is another member.
    assert str(attempts.issue(members("0a", "1b"))) == "3.4#1"


def test_what_was_seen_is_outrun_by_an_epoch() -> None:
    attempts = AttemptCounter(3)
    attempts.issue(members("0a"))
    assert not attempts.outrun(NO_ATTEMPT)
    assert not attempts.outrun(attempts.highest)
    assert attempts.outrun(Attempt(pack_quorum_id(3, 7), 1)), "of our epoch, and not from us"
    assert attempts.epoch == 4
    assert str(attempts.issue(members("0a"))) == "4.1#1"
    assert attempts.outrun(Attempt(pack_quorum_id(9, 1), 1))
    assert str(attempts.highest) == "10.0#0"


def test_the_last_epoch_cannot_be_outrun_and_breaks_nothing() -> None:
    attempts = AttemptCounter(3)
    assert not attempts.outrun(Attempt(pack_quorum_id(EPOCH_MAX, 1), 1))
    assert attempts.epoch == 3


attempts = st.builds(Attempt, st.builds(pack_quorum_id, st.integers(0, 9), st.integers(0, 9)))
lists = st.sets(st.sampled_from(["0a", "0b", "1a"]), max_size=3).map(sorted)


@given(st.lists(lists | st.builds(Attempt, st.integers(0, 9 << 32), st.integers(0, 3))))
def test_attempts_only_rise_and_an_id_names_one_list(acts: list[list[str] | Attempt]) -> None:
    attempts = AttemptCounter(1)
    named: dict[int, list[str]] = {}
    seen = NO_ATTEMPT
    for act in acts:
        if isinstance(act, Attempt):
            attempts.outrun(act)
            seen = max(seen, act)
            assert attempts.highest >= act
        else:
            attempt = attempts.issue(members(*act))
            assert attempt > seen
            seen = attempt
            assert named.setdefault(attempt.quorum_id, act) == act


def test_an_agent_s_epoch_is_outrun_and_an_impossible_one_is_not() -> None:
    attempts = AttemptCounter(3)
    for epoch in (0, 3, EPOCH_MAX, EPOCH_MAX + 1):
        assert not attempts.outrun_epoch(epoch)
    assert attempts.outrun_epoch(4)
    assert str(attempts.highest) == "5.0#0"
