"""Standbys: when they are started, how many, and when no more are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.agent.standby import StandbyPool, StandbyRules
from ftrun.core.agent.words import no_room_for_standbys

RULES = StandbyRules(wanted=2, deaths_max=3, refill_delay_s=0.5)


def full(rules: StandbyRules = RULES) -> StandbyPool:
    pool = StandbyPool(rules)
    pool.open(1.0)
    pool.refill(1.0)
    return pool


def test_none_is_started_before_all_is_imported() -> None:
    pool = StandbyPool(RULES)
    assert pool.refill(9.0) == ()
    assert pool.take(1, 9.0) == ()
    assert pool.due_at is None
    pool.open(10.0)
    assert pool.due_at == 10.0
    assert pool.refill(10.0) == ("standby-1", "standby-2")
    assert pool.refill(99.0) == ()
    assert pool.due_at is None


def test_those_that_the_spawner_has_from_the_start_are_the_first_to_be_taken() -> None:
    pool = StandbyPool(StandbyRules(wanted=1, parked=("parked-1", "parked-2")))
    pool.check()
    assert pool.take(2, 1.0) == ("parked-1",)
    assert pool.due_at is None


def test_a_start_takes_the_oldest_and_they_are_replaced_after_a_while() -> None:
    pool = full()
    assert pool.take(1, 2.0) == ("standby-1",)
    assert pool.refill(2.4) == ()
    assert pool.take(3, 2.4) == ("standby-2",)
    assert pool.take(1, 2.4) == ()
    assert pool.used == 2
    assert pool.due_at == 2.9
    assert pool.refill(2.9) == ("standby-3", "standby-4")


def test_one_that_dies_is_replaced_until_too_many_have_in_a_row() -> None:
    pool = full()
    assert not pool.died("standby-9", 2.0)
    for number in (1, 3):
        assert not pool.died(f"standby-{number}", 3.0)
        assert pool.refill(3.4) == ()
        assert len(pool.refill(3.5)) == 1
    assert pool.died("standby-2", 4.0)
    assert pool.due_at is None
    assert pool.idle == ["standby-4"]
    pool.check()
    # The one that is left is used: they are of some use after all.
    assert pool.take(1, 5.0) == ("standby-4",)
    assert pool.refill(5.5) == ("standby-5", "standby-6")


def test_one_without_room_is_tried_again_later_and_counts_as_no_death() -> None:
    pool = full()
    for at in (2.0, 40.0, 80.0, 120.0, 160.0, 200.0):
        name = pool.idle[-1]
        assert not pool.died(name, at, lacks_room=True)
        assert pool.deaths == 0 and pool.refill(at + 29.9) == ()
        assert len(pool.refill(at + 30.0)) == 1
        pool.check()


def test_more_deaths_than_too_many_are_not_said_again() -> None:
    pool = full(StandbyRules(wanted=2, deaths_max=1))
    assert pool.died("standby-1", 2.0)
    assert not pool.died("standby-2", 2.0)
    assert pool.refill(9.0) == ()


def test_none_are_wanted_by_default() -> None:
    pool = full(StandbyRules())
    assert pool.idle == []
    assert pool.due_at is None


@given(st.lists(st.tuples(st.sampled_from("otdr"), st.integers(0, 3)), max_size=60))
def test_there_are_never_more_than_wanted_and_no_name_twice(events: list[tuple[str, int]]) -> None:
    pool = StandbyPool(RULES)
    seen: set[str] = set()
    for now, (kind, number) in enumerate(events):
        if kind == "o":
            pool.open(now)
        elif kind == "t":
            assert len(pool.take(number, now)) <= number
        elif kind == "d" and pool.idle:
            pool.died(pool.idle[number % len(pool.idle)], now)
        elif kind == "r":
            fresh = pool.refill(now)
            assert not seen & set(fresh)
            seen |= set(fresh)
        pool.check()


def test_what_is_left_of_the_memory_is_said_and_never_negative() -> None:
    assert "100 MB of memory may still be used" in no_room_for_standbys(100_000_000)
    assert "0 B of memory may still be used" in no_room_for_standbys(-5)
