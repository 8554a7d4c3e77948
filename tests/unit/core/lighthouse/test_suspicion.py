"""Silence: a lighthouse that was itself paused gives nobody up."""

from __future__ import annotations

from ftrun.core import messages as m
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSent,
    BeginAgain,
    CloseAgent,
    Instruction,
    JournalState,
    LighthouseSettings,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.suspicion import LOOKS_MAX, SilenceCheck

TIMEOUT_S = 4.0
SPEC = m.JobSpec("job", 2, 1, 1, 10.0, TIMEOUT_S, 20.0)


def attended() -> Lighthouse:
    """Two agents have come at time 0."""
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    for name in "AB":
        hello = m.Hello(name, SPEC, 1, f"host-{name}", f"{name}:1")
        lighthouse.handle(AgentAttached(name, hello), 0.0)
    return lighthouse


def pass_until(lighthouse: Lighthouse, end: float) -> list[str]:
    """Fire the timer whenever it is due; returns the agents that were closed."""
    found: list[str] = []
    while (due := lighthouse.next_deadline()) is not None and due <= end:
        found += closed(lighthouse.handle(TimerFired(), due))
    return found


def closed(instructions: list[Instruction]) -> list[str]:
    return [x.agent_id for x in instructions if isinstance(x, CloseAgent)]


def test_who_is_silent_is_given_up_at_the_second_look() -> None:
    lighthouse = attended()
    lighthouse.handle(AgentSent("A", (m.Heartbeat(),)), 3.0)
    assert pass_until(lighthouse, 1.04 * TIMEOUT_S) == []
    assert pass_until(lighthouse, 1.06 * TIMEOUT_S) == ["B"]


def test_after_a_pause_of_its_own_what_lies_unread_is_read_first() -> None:
    lighthouse = attended()
    pass_until(lighthouse, 1.0)
    assert closed(lighthouse.handle(TimerFired(), 60.0)) == []
    assert closed(lighthouse.handle(AgentSent("A", (m.Heartbeat(),)), 60.1)) == []
    # A was not silent. B may have been paused with us, and has time to report.
    assert pass_until(lighthouse, 60.0 + 0.24 * TIMEOUT_S) == []
    assert pass_until(lighthouse, 60.0 + 0.26 * TIMEOUT_S) == ["B"]
    assert pass_until(lighthouse, 60.1 + 1.04 * TIMEOUT_S) == []
    assert pass_until(lighthouse, 60.1 + 1.06 * TIMEOUT_S) == ["A"]


def test_any_word_may_be_the_first_after_a_pause() -> None:
    lighthouse = attended()
    pass_until(lighthouse, 1.0)
    assert closed(lighthouse.handle(AgentSent("A", (m.Heartbeat(),)), 60.0)) == []
    assert closed(lighthouse.handle(AgentSent("B", (m.Heartbeat(),)), 60.0)) == []
    assert pass_until(lighthouse, 60.0 + TIMEOUT_S) == []


def test_who_is_late_at_every_look_gives_up_all_the_same() -> None:
    silence_check, now, looks = SilenceCheck(), 100.0, 1
    while not silence_check.ends(0.0, TIMEOUT_S, now, late_s=TIMEOUT_S):
        now, looks = silence_check.overdue_at(0.0, TIMEOUT_S) + TIMEOUT_S, looks + 1
    assert looks == LOOKS_MAX


def test_each_silence_is_looked_at_anew() -> None:
    silence_check = SilenceCheck()
    for last_message_at in (0.0, 10.0):
        first = last_message_at + TIMEOUT_S
        assert not silence_check.ends(last_message_at, TIMEOUT_S, first - 0.1, 0.0)
        assert not silence_check.ends(last_message_at, TIMEOUT_S, first, 0.0)
        assert not silence_check.ends(
            last_message_at, TIMEOUT_S, first, 0.0
        )  # it is not time to look again
        assert silence_check.ends(
            last_message_at, TIMEOUT_S, silence_check.overdue_at(last_message_at, TIMEOUT_S), 0.0
        )


def deaf() -> Lighthouse:
    """Two agents that were heard at time 0, and nobody since."""
    lighthouse = attended()
    assert pass_until(lighthouse, 5 * TIMEOUT_S) == []
    return lighthouse


def test_a_lighthouse_that_hears_nobody_loses_nobody_and_begins_again_when_it_hears() -> None:
    lighthouse = deaf()
    assert closed(lighthouse.handle(AgentDetached("B"), 5 * TIMEOUT_S)) == []
    assert len(lighthouse.agents) == 2
    (found,) = lighthouse.handle(AgentSent("A", (m.Heartbeat(),)), 5 * TIMEOUT_S + 0.1)
    assert isinstance(found, BeginAgain)
    assert "cut off" in found.reason


def test_an_agent_that_comes_back_makes_it_begin_again_too() -> None:
    hello = m.Hello("B", SPEC, 1, "host-B", "B:1")
    (found,) = deaf().handle(AgentAttached("B", hello), 5 * TIMEOUT_S)
    assert isinstance(found, BeginAgain)


def test_once_all_have_isolated_themselves_the_silent_are_lost() -> None:
    lighthouse = deaf()
    isolated = SPEC.isolation_limit_s + TIMEOUT_S
    assert pass_until(lighthouse, isolated - 0.1) == []
    assert sorted(pass_until(lighthouse, isolated + TIMEOUT_S)) == ["A", "B"]


def test_who_speaks_before_the_last_look_makes_it_begin_again() -> None:
    """Nothing is decided between the two looks that end a long deafness."""
    lighthouse = deaf()
    isolated = SPEC.isolation_limit_s + TIMEOUT_S
    assert lighthouse.next_deadline() == isolated
    assert closed(lighthouse.handle(TimerFired(), isolated)) == []
    second = lighthouse.next_deadline()
    assert second is not None
    assert isolated < second <= isolated + 0.05 * TIMEOUT_S
    (found,) = lighthouse.handle(AgentSent("A", (m.Heartbeat(),)), isolated + 0.01)
    assert isinstance(found, BeginAgain)


def test_one_agent_alone_is_lost_as_ever() -> None:
    """Without it there is nobody to keep anything for."""
    lighthouse = attended()
    lighthouse.handle(AgentDetached("B"), 0.0)
    assert pass_until(lighthouse, 1.06 * TIMEOUT_S) == ["A"]


def test_an_end_of_a_stream_counts_while_others_are_heard() -> None:
    lighthouse = attended()
    lighthouse.handle(AgentSent("A", (m.Heartbeat(),)), 10.0)
    lighthouse.handle(AgentDetached("B"), 10.1)
    assert lighthouse.agents["B"].gone_at == 10.1
