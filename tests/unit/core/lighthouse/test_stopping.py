"""A lighthouse that is asked to stop waits for agents that leave, and for no others."""

from __future__ import annotations

from ftrun.core.failure_kinds import ALL_LEFT
from ftrun.core.lighthouse.stopping import (
    LEAVING_IS_KNOWN_S,
    LEAVING_MAX_S,
    has_served,
    may_stop,
)
from ftrun.core.messages import EndJob


def test_it_stops_when_nobody_is_left() -> None:
    assert may_stop(0.0, attached=0, leaving=0)


def test_it_waits_for_those_that_leave_and_not_for_ever() -> None:
    assert not may_stop(0.0, attached=2, leaving=0)
    assert not may_stop(LEAVING_IS_KNOWN_S, attached=2, leaving=1)
    assert not may_stop(LEAVING_MAX_S - 1, attached=1, leaving=1)
    assert may_stop(LEAVING_MAX_S, attached=1, leaving=1)


def test_it_alone_was_asked_if_nobody_leaves() -> None:
    assert may_stop(LEAVING_IS_KNOWN_S, attached=2, leaving=0)


def test_one_of_a_single_job_has_served_when_that_has_ended_and_cannot_come_again() -> None:
    assert has_served(EndJob(0, ""), attached=0)
    assert has_served(EndJob(1, ""), attached=0)
    assert not has_served(EndJob(0, ""), attached=1)
    assert not has_served(EndJob(75, "", ALL_LEFT), attached=0)
    assert not has_served(None, attached=0)
