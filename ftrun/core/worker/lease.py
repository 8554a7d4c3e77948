"""One worker's lease: the time until which it may commit, unless its agent renews it (Q3).

Not here: what a worker gives up when its lease ends (machine.py), the agent's side (core/agent).
"""

from __future__ import annotations

import math


class WorkerLease:
    """The lease of one worker. ``until_s``: when it ends.

    ``isolated``: it has ended and was not renewed since.
    """

    def __init__(self) -> None:
        self.until_s = math.inf  # before the agent's first message
        self.isolated = False
        self._isolated_since = 0.0

    def renew(self, until_s: float) -> None:
        """The agent has sent a lease; it may be over already."""
        self.until_s = until_s

    def ends(self, now: float) -> bool:
        """True once, at the first check after the lease has ended."""
        if self.isolated or now < self.until_s:
            return False
        self.isolated, self._isolated_since = True, now
        return True

    def begins_again(self, now: float) -> float | None:
        """How long the isolation lasted, in seconds, if it is over by now; else None."""
        if not self.isolated or now >= self.until_s:
            return None
        self.isolated = False
        return now - self._isolated_since
