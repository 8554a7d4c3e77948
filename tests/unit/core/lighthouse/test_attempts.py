"""Attempts: always higher than all that were ever seen, one id per member list (Q1, Q2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.ids import EPOCH_MAX, NO_ATTEMPT, Attempt, pack_quorum_id
from ftrun.core.lighthouse.attempts import Numbering
from ftrun.core.quorum import Endpoint, Member


def members(*names: str) -> tuple[Member, ...]:
    return tuple(Member(name[0], name[1:], (Endpoint("h", "h:1"),), "s:1") for name in names)


def test_the_same_list_takes_the_next_number_and_another_the_next_id() -> None:
    numbering = Numbering(3)
    assert str(numbering.highest) == "3.0#0"
    assert str(numbering.issue(members("0a", "1a"))) == "3.1#1"
    assert str(numbering.issue(members("0a", "1a"))) == "3.1#2"
    assert str(numbering.issue(members("0a"))) == "3.2#1"
    # An id below one that was issued since is not taken up again.
    assert str(numbering.issue(members("0a", "1a"))) == "3.3#1"
    # Another incarnation is another member.
    assert str(numbering.issue(members("0a", "1b"))) == "3.4#1"


def test_what_was_seen_is_outrun_by_an_epoch() -> None:
    numbering = Numbering(3)
    numbering.issue(members("0a"))
    assert not numbering.outrun(NO_ATTEMPT)
    assert not numbering.outrun(numbering.highest)
    assert numbering.outrun(Attempt(pack_quorum_id(3, 7), 1)), "of our epoch, and not from us"
    assert numbering.epoch == 4
    assert str(numbering.issue(members("0a"))) == "4.1#1"
    assert numbering.outrun(Attempt(pack_quorum_id(9, 1), 1))
    assert str(numbering.highest) == "10.0#0"


def test_the_last_epoch_cannot_be_outrun_and_breaks_nothing() -> None:
    numbering = Numbering(3)
    assert not numbering.outrun(Attempt(pack_quorum_id(EPOCH_MAX, 1), 1))
    assert numbering.epoch == 3


attempts = st.builds(Attempt, st.builds(pack_quorum_id, st.integers(0, 9), st.integers(0, 9)))
lists = st.sets(st.sampled_from(["0a", "0b", "1a"]), max_size=3).map(sorted)


@given(st.lists(lists | st.builds(Attempt, st.integers(0, 9 << 32), st.integers(0, 3))))
def test_attempts_only_rise_and_an_id_names_one_list(acts: list[list[str] | Attempt]) -> None:
    numbering = Numbering(1)
    named: dict[int, list[str]] = {}
    seen = NO_ATTEMPT
    for act in acts:
        if isinstance(act, Attempt):
            numbering.outrun(act)
            seen = max(seen, act)
            assert numbering.highest >= act
        else:
            attempt = numbering.issue(members(*act))
            assert attempt > seen
            seen = attempt
            assert named.setdefault(attempt.quorum_id, act) == act
