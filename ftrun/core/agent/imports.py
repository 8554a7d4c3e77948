"""How long an agent's imports take before it can start a worker, and what that means.

Torch and ``--preload`` come from a cold network disk in minutes. Until they are there the
lighthouse cannot be told of the agent, so its silence means nothing (lease.py). Not here: who
imports (agent/spawner.py).
"""

from __future__ import annotations

from dataclasses import dataclass

NOTICE_AFTER_S = 20.0
LIMIT_S = 900.0
"""At least so long; a longer join timeout is one for imports too."""


@dataclass
class ImportDeadline:
    """``is_done``: workers can be started. ``shown``: people know that it takes long."""

    started_at: float
    limit_s: float = LIMIT_S
    is_done: bool = False
    shown: bool = False

    def is_slow(self, now: float) -> bool:
        """True from the moment on at which people should be told why nothing happens."""
        return not self.is_done and not self.shown and now >= self.started_at + NOTICE_AFTER_S

    def is_over(self, now: float) -> bool:
        """True when it has had all the time that there is for it."""
        return not self.is_done and now >= self.started_at + self.limit_s

    def deadline(self) -> float | None:
        """When one of the two may become true."""
        if self.is_done:
            return None
        return self.started_at + (self.limit_s if self.shown else NOTICE_AFTER_S)
