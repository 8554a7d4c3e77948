"""The fence: closed as long as somebody of the old quorum could still commit (Q3)."""

from __future__ import annotations

import math

from ftrun.core.lighthouse.departed import FATES_PER_SLOT_MAX, DepartedMembers
from ftrun.core.quorum import Endpoint, Member

LIMIT_S = 60.0


def member(name: str, store: str = "A:1") -> Member:
    return Member(name[0], name[1:], (Endpoint("h", "h:1"),), store)


def test_it_opens_when_the_last_one_is_dead_or_silent_for_the_limit() -> None:
    departed = DepartedMembers()
    assert departed.all_fenced_at(LIMIT_S) == -math.inf, "there is nobody"
    departed.add(member("0a"), 10.0, is_dead=False)
    departed.add(member("1a"), 12.0, is_dead=False)
    departed.add(member("2a"), 99.0, is_dead=True)
    assert departed.all_fenced_at(LIMIT_S) == 72.0
    departed.died("1", "a")
    assert departed.all_fenced_at(LIMIT_S) == 70.0
    departed.died("0", "b")
    departed.died("7", "a")
    assert departed.all_fenced_at(LIMIT_S) == 70.0, "neither of them is in it"
    departed.died("0", "a")
    assert departed.all_fenced_at(LIMIT_S) == -math.inf


def test_a_member_that_is_back_is_not_waited_for() -> None:
    departed = DepartedMembers()
    departed.add(member("0a"), 10.0, is_dead=False)
    assert departed.contains("0", "a")
    assert not departed.contains("0", "b")
    departed.release("0", "a")
    assert not departed.contains("0", "a")
    assert len(departed) == 0


def test_a_hello_tells_what_has_ended() -> None:
    departed = DepartedMembers()
    departed.add(member("0a"), 10.0, is_dead=False)
    departed.add(member("1a"), 11.0, is_dead=False)
    departed.add(member("2a", store="B:1"), 12.0, is_dead=False)
    departed.hello("A:1", {("1", "a"), ("2", "b")})
    assert departed.all_fenced_at(LIMIT_S) == 72.0, "nothing is known of the other agent's"
    departed.hello("B:1", set())
    assert departed.all_fenced_at(LIMIT_S) == 71.0


def test_only_the_same_agent_starts_a_slot_that_it_has_seen_end() -> None:
    departed = DepartedMembers()
    departed.add(member("0a"), 10.0, is_dead=False)
    departed.started("B:1", "0", "b")
    departed.started("A:1", "0", "a")
    departed.started("A:1", "1", "b")
    assert departed.all_fenced_at(LIMIT_S) == 70.0
    departed.started("A:1", "0", "b")
    assert departed.all_fenced_at(LIMIT_S) == -math.inf


def test_a_new_quorum_leaves_those_as_strays_who_may_live_on() -> None:
    departed = DepartedMembers()
    for name, last_message_at in (("0a", 10.0), ("1a", 20.0), ("2a", 20.0), ("3a", 20.0)):
        departed.add(member(name), last_message_at, is_dead=name == "1a")
    departed.close_quorum([member("2a"), member("3b")], silent_since=10.0)
    assert [member.replica_id for member in departed.unaccounted()] == ["3"]
    assert departed.contains("3", "a")
    assert not departed.contains("0", "a"), "silent for so long that nobody waits for it"
    departed.died("3", "a")
    assert departed.unaccounted() == ()
    departed.clear()
    assert len(departed) == 0


def test_incarnations_of_one_slot_are_watched_side_by_side_up_to_a_limit() -> None:
    departed = DepartedMembers()
    names = [f"0{letter}" for letter in "abcdef"]
    for when, name in enumerate(names):
        departed.add(member(name), float(when), is_dead=False)
    assert [member.incarnation for member in departed.unaccounted()] == list("cdef")
    assert len(departed) == FATES_PER_SLOT_MAX
    departed.release("0", "f")
    assert departed.contains("0", "e")
    assert not departed.contains("0", "f")
