"""The fence: closed as long as somebody of the old quorum could still commit (Q3)."""

from __future__ import annotations

import math

from ftrun.core.fence import Fence
from ftrun.core.messages import Endpoint, Member

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
    fence.release("0")
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


def test_a_new_quorum_makes_it_forget() -> None:
    fence = Fence()
    fence.strike(member("0a"), 10.0, is_dead=False)
    fence.clear()
    assert len(fence) == 0
