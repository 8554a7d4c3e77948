"""The deadline for the imports before the first worker.

Torch and ``--preload`` may take minutes from a cold network disk. Until then the agent sends no
Hello, so a missing answer means nothing (lease.py). Not here: the imports (agent/spawner.py).
"""

from __future__ import annotations

from dataclasses import dataclass

NOTICE_AFTER_S = 20.0
LIMIT_S = 900.0
"""The shortest limit. A longer join timeout is the limit for imports too."""


@dataclass
class ImportDeadline:
    """The limit for the imports. ``is_done``: workers can be started.

    ``shown``: the notice about slow imports was shown.
    """

    started_at: float
    limit_s: float = LIMIT_S
    is_done: bool = False
    shown: bool = False

    def is_slow(self, now: float) -> bool:
        """True when the notice is due and was not shown."""
        return not self.is_done and not self.shown and now >= self.started_at + NOTICE_AFTER_S

    def is_over(self, now: float) -> bool:
        """True when the imports have not ended within the limit."""
        return not self.is_done and now >= self.started_at + self.limit_s

    def deadline(self) -> float | None:
        """When ``is_slow`` or ``is_over`` may become true."""
        if self.is_done:
            return None
        return self.started_at + (self.limit_s if self.shown else NOTICE_AFTER_S)
