"""Whether an agent, or a survivor that is to answer, is silent, or the lighthouse was deaf.

A lighthouse that was stopped for a while (a suspended machine, a starved process) finds all agents
overdue when it goes on, although what they have said lies unread before it. So nobody is given up
at the first look: the second one, soon after, comes when that has been read. Where we are late
ourselves the second look gives the agents time to speak, for they may have been stopped with us.
Below they are all called agents. Not here: what follows for whoever is given up (machine.py,
forming.py).
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_SHARE = 0.05
"""A look that comes by this share of the timeout too late: we were stopped."""
SECOND_LOOK_SHARE = 0.05
SECOND_LOOK_IF_LATE_SHARE = 0.25
LOOKS_MAX = 4
"""So many looks at one silence: who is always late gives an agent up nonetheless."""


@dataclass(slots=True)
class SilenceCheck:
    """Tracks one silence. ``last_message_at``: when it began. ``looks``: checks of it so far."""

    looks: int = 0
    last_message_at: float = 0.0
    next_look_at: float = 0.0

    def overdue_at(self, last_message_at: float, timeout_s: float) -> float:
        """When to look whether an agent last heard of then still speaks."""
        return max(last_message_at + timeout_s, self.next_look_at)

    def ends(self, last_message_at: float, timeout_s: float, now: float, late_s: float) -> bool:
        """Whether the agent is given up now, at a look that should have been ``late_s`` ago."""
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
