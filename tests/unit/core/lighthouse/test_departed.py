"""The fence: closed as long as somebody of the old quorum could still commit (Q3)."""

from __future__ import annotations

import math

from ftrun.core.lighthouse.departed import FATES_PER_SLOT_MAX, Fence
from ftrun.core.quorum import Endpoint, Member

LIMIT_S = 60.0


def member(name: str, store: str = "A:1") -> Member:
    return Member(name[0], name[1:], (Endpoint("h", "h:1"),), store)


def test_it_opens_when_the_last_one_is_dead_or_silent_for_the_limit() -> None:
    fence = Fence()
    assert fence.opens_at(LIMIT_S) == -math.inf, "there is nobody"
    fence.strike(member("0a"), 10.0, is_dead=False)
    fence.strike(member("1a"), 12.0, is_dead=False)
    fence.strike(member("2a"), 99.0, is_dead=True)
    assert fence.opens_at(LIMIT_S) == 72.0
    fence.died("1", "a")
    assert fence.opens_at(LIMIT_S) == 70.0
    fence.died("0", "b")
    fence.died("7", "a")
    assert fence.opens_at(LIMIT_S) == 70.0, "neither of them is in it"
    fence.died("0", "a")
    assert fence.opens_at(LIMIT_S) == -math.inf


def test_a_member_that_is_back_is_not_waited_for() -> None:
    fence = Fence()
    fence.strike(member("0a"), 10.0, is_dead=False)
    assert fence.holds("0", "a")
    assert not fence.holds("0", "b")
    fence.release("0", "a")
    assert not fence.holds("0", "a")
    assert len(fence) == 0


def test_a_hello_tells_what_has_ended() -> None:
    fence = Fence()
    fence.strike(member("0a"), 10.0, is_dead=False)
    fence.strike(member("1a"), 11.0, is_dead=False)
    fence.strike(member("2a", store="B:1"), 12.0, is_dead=False)
    fence.hello("A:1", {("1", "a"), ("2", "b")})
    assert fence.opens_at(LIMIT_S) == 72.0, "nothing is known of the other agent's"
    fence.hello("B:1", set())
    assert fence.opens_at(LIMIT_S) == 71.0


def test_only_the_same_agent_starts_a_slot_that_it_has_seen_end() -> None:
    fence = Fence()
    fence.strike(member("0a"), 10.0, is_dead=False)
    fence.started("B:1", "0", "b")
    fence.started("A:1", "0", "a")
    fence.started("A:1", "1", "b")
    assert fence.opens_at(LIMIT_S) == 70.0
    fence.started("A:1", "0", "b")
    assert fence.opens_at(LIMIT_S) == -math.inf


def test_a_new_quorum_leaves_those_as_strays_who_may_live_on() -> None:
    fence = Fence()
    for name, heard_at in (("0a", 10.0), ("1a", 20.0), ("2a", 20.0), ("3a", 20.0)):
        fence.strike(member(name), heard_at, is_dead=name == "1a")
    fence.settle([member("2a"), member("3b")], silent_since=10.0)
    assert [stray.replica_id for stray in fence.strays()] == ["3"]
    assert fence.holds("3", "a")
    assert not fence.holds("0", "a"), "silent for so long that nobody waits for it"
    fence.died("3", "a")
    assert fence.strays() == ()
    fence.clear()
    assert len(fence) == 0


def test_incarnations_of_one_slot_are_watched_side_by_side_up_to_a_limit() -> None:
    fence = Fence()
    names = [f"0{letter}" for letter in "abcdef"]
    for when, name in enumerate(names):
        fence.strike(member(name), float(when), is_dead=False)
    assert [stray.incarnation for stray in fence.strays()] == list("cdef")
    assert len(fence) == FATES_PER_SLOT_MAX
    fence.release("0", "f")
    assert fence.holds("0", "e")
    assert not fence.holds("0", "f")
