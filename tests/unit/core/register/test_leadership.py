"""Leadership: what is asked of the register when, and what goes out when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.core.register.events import (
    Accepted,
    Answered,
    Decided,
    Depose,
    Event,
    Failed,
    Follow,
    GivenBack,
    HolderEnded,
    Instruction,
    Lead,
    Read,
    Record,
    Refused,
    Release,
    Say,
    Stopped,
    Swap,
    TimerFired,
    Value,
)
from ftrun.core.register.leadership import Leadership, Settings

T = 4.0
OTHER = Value(7, "other", "b:1", T, 3)
NEVER = float("inf")


def machine(silence_s: float = T) -> Leadership:
    return Leadership(Settings("me", "a:1", silence_s, 100))


def swaps(instructions: list[Instruction]) -> list[Swap]:
    return [x for x in instructions if isinstance(x, Swap)]


def follows(instructions: list[Instruction]) -> list[Value]:
    return [x.value for x in instructions if isinstance(x, Follow)]


def said(instructions: list[Instruction]) -> str:
    return " ".join(x.text for x in instructions if isinstance(x, Say))


def leading(silence_s: float = T, now: float = 0.0) -> Leadership:
    """It leads since ``now``, in version 1."""
    lead = machine(silence_s)
    assert lead.handle(TimerFired(), now) == [Read()]
    (swap,) = swaps(lead.handle(Answered(0, None), now))
    assert (swap.version, swap.value) == (0, Value(101, "me", "a:1", silence_s, 1))
    assert lead.handle(Accepted(1), now) == [Read(with_journal=True)]
    assert not lead.may_decide(now)
    value = replace(swap.value, journal=b"")
    assert lead.handle(Answered(1, value), now) == [Lead(value)]
    assert lead.may_decide(now)
    return lead


def watching() -> Leadership:
    """It has seen another's version 5 at 0."""
    lead = machine()
    lead.handle(TimerFired(), 0.0)
    assert "other at b:1 (epoch 7)" in said(lead.handle(Answered(5, OTHER), 0.0))
    return lead


# ---------------------------------------------------------------- a standby


def test_a_standby_looks_until_nothing_new_has_come_for_the_whole_silence() -> None:
    lead, now, looks = watching(), 0.0, 0
    while not swaps(found := lead.handle(Answered(5, OTHER), now)):
        due = lead.next_deadline()
        assert due is not None
        assert due - now <= 0.5
        now, looks = due, looks + 1
        if swaps(found := lead.handle(TimerFired(), now)):
            break
        assert found == [Read()]
    assert T <= now <= T + 0.5
    assert looks == 8
    assert swaps(found) == [Swap(5, Value(8, "me", "a:1", T, 1))]
    assert lead.watched_s == now


def test_a_new_version_begins_the_silence_anew_and_its_holder_says_how_long_it_is() -> None:
    lead = watching()
    slow = replace(OTHER, silence_s=3 * T)
    assert lead.handle(Answered(6, slow), 1.5) == [Follow(slow), Read()]
    for quarter in range(1, 12):
        assert lead.handle(Answered(6, slow), 1.5 + quarter * T / 4) == [Read()]
    assert swaps(lead.handle(Answered(6, slow), 1.5 + 3 * T))


def test_a_silence_counts_only_while_the_store_answers() -> None:
    lead = watching()
    assert lead.handle(Failed("no route"), 1.0) != []
    lead.handle(TimerFired(), 5 * T)
    assert swaps(lead.handle(Answered(5, OTHER), 5 * T)) == []
    for quarter in range(1, 4):
        assert swaps(lead.handle(Answered(5, OTHER), (5 + quarter / 4) * T)) == []
    assert swaps(lead.handle(Answered(5, OTHER), 6 * T))


@pytest.mark.parametrize(
    "event", [HolderEnded("other"), Answered(6, replace(OTHER, is_free=True))], ids=["end", "free"]
)
def test_a_register_that_nobody_holds_is_taken_at_once(event: Event) -> None:
    lead = watching()
    if isinstance(event, HolderEnded):
        lead.handle(Answered(5, OTHER), 0.0)
    assert swaps(lead.handle(event, 0.1)) == [Swap(lead._version, Value(8, "me", "a:1", T, 1))]


def test_a_standby_follows_a_holder_that_it_has_seen_to_write() -> None:
    lead, later = machine(), replace(OTHER, serial=4)
    assert not follows(lead.handle(Answered(5, OTHER), 0.0))  # it may have ended long ago
    assert not follows(lead.handle(Answered(5, OTHER), 0.5))
    assert follows(lead.handle(Answered(6, later), 1.0)) == [later]
    another = replace(OTHER, holder="a third", epoch=8)
    assert not follows(lead.handle(Answered(7, another), 1.5))
    assert not follows(lead.handle(Answered(8, replace(another, is_free=True)), 2.0))


def test_a_claim_that_another_was_faster_with_is_no_leadership() -> None:
    lead = machine()
    lead.handle(TimerFired(), 0.0)
    lead.handle(Answered(0, None), 0.0)
    assert lead.handle(Refused(), 0.1) == [Read()]
    lead.handle(Answered(1, OTHER), 0.2)
    assert not lead.leads
    assert not lead.may_decide(0.2)


def test_a_claim_is_lost_between_its_write_and_the_reading_of_the_journal() -> None:
    lead = machine()
    lead.handle(TimerFired(), 0.0)
    lead.handle(Answered(0, None), 0.0)
    lead.handle(Accepted(1), 0.0)
    found = lead.handle(Answered(2, OTHER), 0.1)
    assert not any(isinstance(x, Depose | Lead) for x in found)
    assert not lead.leads


def test_an_older_version_is_no_news() -> None:
    """A shared file system may show a directory as it was a moment ago."""
    lead = watching()
    lead.handle(Answered(4, replace(OTHER, serial=2)), 1.0)
    assert lead._version == 5
    lead.handle(Answered(0, None), 1.1)  # but an empty register is
    assert lead._version == 0


# ---------------------------------------------------------------- the leader


def test_the_leader_writes_each_quarter_and_acts_for_two_thirds_from_the_question() -> None:
    lead = leading()
    assert lead.next_deadline() == T / 4
    (swap,) = swaps(lead.handle(TimerFired(), T / 4))
    assert (swap.version, swap.value.journal) == (1, None)
    assert lead.may_decide(0.66 * T)
    assert not lead.may_decide(0.67 * T)
    lead.handle(Accepted(2), 0.9 * T)
    assert lead.may_decide(0.91 * T)
    assert not lead.may_decide(T / 4 + 0.67 * T)


def test_what_follows_a_record_is_held_until_it_is_written() -> None:
    lead = leading()
    found = lead.handle(Decided(("before", Record(105, b"one"), "after")), 0.1)
    assert found[0] == Release("before")
    assert swaps(found) == [Swap(1, Value(105, "me", "a:1", T, 2, journal=b"one"))]
    assert not lead.may_decide(0.1)
    assert lead.handle(Accepted(2), 0.2) == [Release("after")]
    assert lead.epoch == 105
    assert lead.may_decide(0.2)


def test_an_answer_that_comes_too_late_releases_nothing() -> None:
    lead = leading()
    lead.handle(Decided((Record(101, b"one"), "after")), 0.1)
    found = lead.handle(Accepted(2), 0.1 + 0.7 * T)
    assert Release("after") not in found
    assert swaps(found)  # it asks again
    assert Release("after") in lead.handle(Accepted(3), 0.1 + 0.8 * T)


def test_two_records_are_written_one_after_the_other() -> None:
    lead = leading()
    lead.handle(Decided((Record(101, b"one"), "a", Record(101, b"two"), "b")), 0.1)
    found = lead.handle(Accepted(2), 0.2)
    assert found[0] == Release("a")
    assert [swap.value.journal for swap in swaps(found)] == [b"two"]
    assert lead.handle(Accepted(3), 0.3) == [Release("b")]


def test_another_value_deposes_the_leader_and_drops_what_is_held() -> None:
    lead = leading()
    lead.handle(Decided((Record(101, b"one"), "after")), 0.1)
    assert lead.handle(Refused(), 5.0)[0] == Read()
    found = lead.handle(Answered(2, OTHER), 5.1)
    assert Depose("other at b:1 (epoch 7)") in found
    assert not any(isinstance(x, Release) for x in found)
    assert not lead.may_decide(5.1)


def test_an_emptied_register_deposes_the_leader_who_takes_it_again() -> None:
    lead = leading()
    lead.handle(TimerFired(), T / 4)
    lead.handle(Refused(), T / 4)
    found = lead.handle(Answered(0, None), T / 4)
    assert Depose("nobody: the register is empty") in found
    assert swaps(found)[0].version == 0


# ---------------------------------------------------------------- answers that are lost


def test_a_write_whose_answer_was_lost_is_recognised() -> None:
    lead = leading()
    (swap,) = swaps(lead.handle(Decided((Record(101, b"one"), "after")), 0.1))
    assert lead.handle(Failed("timeout"), 0.6) != []
    assert lead.handle(TimerFired(), 1.1) == [Read()]
    found = lead.handle(Answered(2, replace(swap.value, journal=None)), 1.2)
    assert Release("after") in found
    assert lead.may_decide(0.1 + 0.6 * T)
    assert not lead.may_decide(0.1 + 0.7 * T)


def test_a_write_that_was_not_carried_out_is_asked_again_as_the_same_one() -> None:
    lead = leading()
    (first,) = swaps(lead.handle(Decided((Record(101, b"one"),)), 0.1))
    lead.handle(Failed("timeout"), 0.6)
    lead.handle(TimerFired(), 1.1)
    (again,) = swaps(lead.handle(Answered(1, OTHER), 1.2))
    assert again == first
    lead.handle(Accepted(2), 1.3)
    assert not lead.may_decide(0.1 + 0.7 * T)  # counted from when it was first asked


def test_the_earlier_of_two_lost_writes_is_there_so_the_later_one_follows() -> None:
    lead = leading()
    (beat,) = swaps(lead.handle(TimerFired(), T / 4))
    lead.handle(Decided((Record(101, b"one"), "after")), 1.1)
    lead.handle(Failed("timeout"), 1.2)
    lead.handle(TimerFired(), 1.7)
    (record,) = swaps(lead.handle(Answered(1, OTHER), 1.8))
    assert record.value.journal == b"one"
    assert lead.handle(Refused(), 1.9) == [Read()]
    (next_one,) = swaps(lead.handle(Answered(2, beat.value), 2.0))
    assert (next_one.version, next_one.value.journal) == (2, b"one")


# ---------------------------------------------------------------- words, and the end


def test_a_store_that_is_away_is_waited_for_with_words() -> None:
    lead = leading()
    lead.handle(Decided((Record(101, b"one"), "after")), 0.1)
    text = said(lead.handle(Failed("connection refused"), 0.2))
    assert "does not answer (connection refused)" in text
    assert "decides nothing until it answers" in text
    now = 0.2
    for _ in range(100):
        now = lead.next_deadline() or NEVER
        assert lead.handle(TimerFired(), now) == [Read()]
        assert lead.handle(Failed("connection refused"), now) == []
    lead.handle(TimerFired(), lead.next_deadline() or NEVER)
    assert "answers again, after 5" in said(lead.handle(Answered(1, None), now))


def test_a_silent_store_is_missed_when_leadership_is_no_longer_proven() -> None:
    lead = leading()
    lead.handle(TimerFired(), T / 4)
    due = lead.next_deadline()
    assert due == pytest.approx(2 / 3 * T)
    assert "it gives no answer" in said(lead.handle(TimerFired(), due or NEVER))
    assert lead.next_deadline() is None


def test_a_single_failure_is_not_worth_words() -> None:
    lead = leading()
    lead.handle(TimerFired(), T / 4)
    assert lead.handle(Failed("timeout"), T / 4 + 0.1) == []


def test_a_leader_that_was_stopped_itself_does_not_blame_the_store() -> None:
    lead = leading()
    found = lead.handle(TimerFired(), 100.0)
    assert said(found) == ""
    assert swaps(found)
    assert not lead.may_decide(100.0)
    lead.handle(Accepted(2), 100.1)
    assert lead.may_decide(100.1)


def test_a_standby_says_that_it_asks_again() -> None:
    lead = machine()
    lead.handle(TimerFired(), 0.0)
    assert "asked again and again" in said(lead.handle(Failed("no route"), 0.1))


def test_a_process_that_is_the_only_one_writes_only_its_journal() -> None:
    lead = leading(NEVER)
    assert lead.next_deadline() is None
    assert lead.may_decide(1e9)
    assert swaps(lead.handle(Decided((Record(101, b"one"),)), 1e9))


def test_the_leader_gives_the_register_back_when_it_stops_and_acts_no_more() -> None:
    lead = leading()
    lead.handle(Decided((Record(101, b"one"), "after")), 0.1)
    lead.handle(Stopped(), 0.1)
    found = lead.handle(Accepted(2), 0.2)
    assert Release("after") in found
    (swap,) = swaps(found)
    assert swap.value.is_free
    assert not lead.may_decide(0.2)
    assert lead.handle(Accepted(3), 0.3) == [GivenBack()]
    assert lead.next_deadline() is None
    assert lead.handle(TimerFired(), 0.4) == []


def test_a_standby_stops_at_once() -> None:
    lead = watching()
    lead.handle(Answered(5, OTHER), 0.0)
    assert lead.handle(Stopped(), 1.0) == [GivenBack()]


def test_the_register_that_the_last_one_gave_back_deposes_who_has_slept() -> None:
    lead = leading()
    lead.handle(TimerFired(), 50.0)
    lead.handle(Refused(), 50.0)
    found = lead.handle(Answered(9, replace(OTHER, is_free=True)), 50.0)
    assert Depose("nobody: other has stopped (epoch 7)") in found
    assert swaps(found)[0].value.epoch == 8
