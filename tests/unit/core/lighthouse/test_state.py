"""The state that all phases share."""

from __future__ import annotations

import pytest

from ftrun.core.ids import Attempt
from ftrun.core.lighthouse.events import JournalState, LighthouseSettings
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.state import LARGE_MEMBER_S, LARGE_MEMBERS, MembershipState
from ftrun.core.lighthouse.takeover import Takeover
from ftrun.core.quorum import Member, Quorum


@pytest.mark.parametrize(("above", "longer_s"), [(-999, 0.0), (0, 0.0), (9000, 9000)])
def test_very_many_get_more_time_to_answer(above: int, longer_s: float) -> None:
    state = MembershipState(LighthouseSettings(), JournalState(), now=100.0)
    state.live = {str(index) for index in range(LARGE_MEMBERS + above)}
    state.enter(Phase.REJOIN)
    state.expect(state.live, 5.0)
    assert state.waiting.until == pytest.approx(105.0 + longer_s * LARGE_MEMBER_S)
    state.enter(Phase.FENCE)
    assert state.waiting.until is None


def test_very_many_get_more_time_to_come_back() -> None:
    ids = [str(index) for index in range(LARGE_MEMBERS + 400)]
    members = tuple(Member(name, f"i{name}", (), "s") for name in ids)
    quorum = Quorum(Attempt(1 << 32 | 1, 1), members, "s")
    state = MembershipState(LighthouseSettings(takeover_grace_s=5.0), JournalState(), now=100.0)
    takeover = Takeover(state, JournalState(1, quorum))
    assert takeover.grace_until == pytest.approx(105.0 + 400 * LARGE_MEMBER_S)


def test_a_step_is_repeated_since_the_first_word_of_it() -> None:
    state = MembershipState(LighthouseSettings(), JournalState(), now=100.0)
    state.note_too_few("0", 90.0)
    state.is_dirty = False
    state.note_too_few("0", 95.0)
    assert state.too_few == {"0": 90.0}
    assert not state.is_dirty, "it is no news"


def test_a_story_has_the_last_lines_of_one_replica() -> None:
    state = MembershipState(LighthouseSettings(story_lines_max=2), JournalState(), now=0.0)
    for number in range(5):
        state.now = float(number)
        state.record("0", f"line {number}")
    state.record("1", "another's")
    assert state.story("0") == ["3.000 takeover: line 3", "4.000 takeover: line 4"]
    assert state.story("7") == []
