"""What one worker's main thread is at, as its step machine sees it: for status and lost time.

A worker tells when that changes, once a second at the most, and how long it has lasted by then. So
others see who waits for whom, and whose time is lost. Not here: what follows from it
(core/lighthouse/waits.py for the lighthouse, core/agent/slot_state.py for an agent's account).
"""

from __future__ import annotations

from enum import Enum

LONG_S = 1.0
"""A reduction, or a time between two steps, that lasts longer is told as what it is."""
STOOD_STILL_S = 3.0
"""Ticks come once a second: so long without one, the process or its machine was stopped."""


class Activity(Enum):
    """``Progress.phase``."""

    STARTING = "starting"
    QUORUM = "no quorum"
    STEP = "step"
    WAITING = "waiting"
    OUTSIDE = "outside step"
    HEALING = "healing"
    TOO_FEW = "too few"
    STOPPED = "stood still"
    LEFT = "left"


STANDING_STILL = frozenset(
    activity.value
    for activity in (Activity.QUORUM, Activity.WAITING, Activity.TOO_FEW, Activity.STOPPED)
)
"""The phases of a Progress in which a replica would train and cannot: the time is lost."""

NOT_ITS_OWN = frozenset(
    activity.value for activity in (Activity.STARTING, Activity.QUORUM, Activity.HEALING)
)
"""The phases in which the step of a Progress need not be one that the replica has trained up to."""
