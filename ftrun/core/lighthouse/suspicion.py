"""Distinguishes a silent peer from a lighthouse that was itself paused.

A lighthouse that was paused (a suspended machine, a starved process) finds every peer overdue,
although their messages lie unread in its sockets. So no peer is given up at the first look: the
second look, soon after, comes when those messages have been read. If the lighthouse itself is late,
the second look comes later, because the peers may have been paused with it. A peer is an agent, or
a survivor that has to report. Not here: what follows for a peer that is given up (machine.py,
forming.py).
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_SHARE = 0.05
"""A check that is late by this share of the timeout means that the lighthouse was paused."""
SECOND_LOOK_SHARE = 0.05
SECOND_LOOK_IF_LATE_SHARE = 0.25
LOOKS_MAX = 4
"""The last check of one silence gives the peer up, even if the lighthouse is late every time."""


@dataclass(slots=True)
class SilenceCheck:
    """Tracks one silence. ``last_message_at``: when it began. ``looks``: checks of it so far."""

    looks: int = 0
    last_message_at: float = 0.0
    next_look_at: float = 0.0

    def overdue_at(self, last_message_at: float, timeout_s: float) -> float:
        """When to check a peer whose last message arrived at ``last_message_at``."""
        return max(last_message_at + timeout_s, self.next_look_at)

    def ends(self, last_message_at: float, timeout_s: float, now: float, late_s: float) -> bool:
        """Whether to give the peer up now, at a check that was due ``late_s`` ago."""
        if now < self.overdue_at(last_message_at, timeout_s):
            return False
        if self.last_message_at != last_message_at:
            self.last_message_at, self.looks = last_message_at, 0
        self.looks += 1
        is_late = late_s >= LATE_SHARE * timeout_s
        if self.looks >= LOOKS_MAX or (self.looks > 1 and not is_late):
            return True
        share = SECOND_LOOK_IF_LATE_SHARE if is_late else SECOND_LOOK_SHARE
        self.next_look_at = now + share * timeout_s
        return False
