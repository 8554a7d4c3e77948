"""The activity of a worker's main thread, as its step machine sees it: for status and lost time.

A worker reports its activity when it changes, at most once a second, with its duration until then.
(Its agent reports that a script has no Manager.) So others see which worker waits for which, and
which time is lost. Not here: the consequences (core/lighthouse/waits.py for the lighthouse,
core/agent/slot_state.py for an agent's account).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LONG_S = 1.0
"""A reduction, or a time between two steps, is reported as such once it lasts longer than this."""
STOOD_STILL_S = 3.0
"""Ticks come once a second; after this time without one, the process or machine was stopped."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An announced phase of the script other than a step (``ftrun.paused``), or one of its own
    collectives.

    ``since``: when it began, on this machine's monotonic clock.
    """

    name: str
    since: float


class Activity(Enum):
    """``Progress.phase``; the values are for status and wire."""

    STARTING = "starting"
    QUORUM = "no quorum"
    STEP = "step"
    WAITING = "waiting"
    COLLECTIVE = "in a collective"
    OUTSIDE = "outside step"
    HEALING = "healing"
    JOINING = "joining"
    TOO_FEW = "too few"
    ENDING = "at its end"
    STOPPED = "stood still"
    LEFT = "left"
    PAUSED = "paused"
    APART = "apart"


STANDING_STILL = frozenset({Activity.QUORUM, Activity.WAITING, Activity.TOO_FEW, Activity.STOPPED})
"""The phases of a Progress in which a replica cannot train although it should: lost time."""

FOR_PEERS = frozenset({Activity.WAITING, Activity.JOINING})
"""It waits in a reduction. JOINING: in its first one, and its state to heal to has arrived."""

IN_A_WAIT = FOR_PEERS | {Activity.COLLECTIVE}
"""It waits for peers, in a reduction or in a collective of the script."""

BY_INTENTION = frozenset({Activity.PAUSED, Activity.ENDING})
"""Its loop stands still by intention: an announced pause, the end of the script."""

REACHES_NO_LATER = frozenset({Activity.TOO_FEW, Activity.ENDING})
"""It is in a step that cannot be committed yet: others must join at this step."""

NOT_ITS_OWN = frozenset(
    {
        Activity.STARTING,
        Activity.QUORUM,
        Activity.HEALING,
        Activity.JOINING,
        Activity.APART,
    }
)
"""The phases in which the replica may not have trained up to the step of its Progress."""
