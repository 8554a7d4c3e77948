"""How long a worker's last steps took, and how much of that was its own work. Pure.

A step lasts from one commit to the next. The main thread counts as waiting: from the last operation
that it issued (of a batch: from the one that closes it) until all that it issued are complete; at a
boundary until a quorum is in force; and in its group's vote. The rest of the step is its own part.
A replica that keeps others waiting has a longer own part than they have. A step with an interrupt,
a heal or an announced pause in it is left out.

Not here: the limit for a loop that stands still (core/step_times.py), the slowest of a group's
workers (core/agent/group_progress.py).
"""

from __future__ import annotations

from collections import deque
from statistics import median

STEPS_KEPT = 8


class Pace:
    """The times of the last ``STEPS_KEPT`` steps.

    ``is_known_when_issued``: an operation's input is computed when the operation is issued. A
    device that runs behind its host computes it later, so the own part is not known.
    """

    def __init__(self, *, is_known_when_issued: bool = True) -> None:
        self._knows_own = is_known_when_issued
        self._began_at: float | None = None
        self._waits_since: float | None = None
        self._waited_s = 0.0
        self._steps: deque[tuple[float, float]] = deque(maxlen=STEPS_KEPT)

    @property
    def step_s(self) -> float | None:
        """The median time of the last steps; None: none is known."""
        return median(step_s for step_s, _ in self._steps) if self._steps else None

    @property
    def own_s(self) -> float | None:
        """The median of the own parts, at most ``step_s``; None: not known."""
        return (
            median(own_s for _, own_s in self._steps) if self._steps and self._knows_own else None
        )

    def waits(self, now: float) -> None:
        """The main thread has nothing to do from now on, until ``goes_on``."""
        self._waits_since = now

    def works(self) -> None:
        """The main thread has not waited: it issues another operation."""
        self._waits_since = None

    def goes_on(self, now: float) -> None:
        """The wait that is under way, if any, is over."""
        if self._waits_since is not None:
            self._waited_s += now - self._waits_since
            self._waits_since = None

    def committed(self, now: float) -> None:
        """A step ends, and the next one begins."""
        self.goes_on(now)
        if self._began_at is not None:
            step_s = now - self._began_at
            self._steps.append((step_s, max(0.0, step_s - self._waited_s)))
        self._began_at, self._waited_s = now, 0.0

    def skip(self) -> None:
        """Leave the step under way out of the pace."""
        self._began_at = self._waits_since = None
