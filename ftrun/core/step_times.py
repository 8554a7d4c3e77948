"""How long a loop's last steps have taken, and from when on the next one is too long.

Only the steps of one process count, because the next process may run on another machine. A time
that was no step, for example a heal or an announced pause, is left out. A worker measures its own
steps and reports them (``Progress``). An agent measures them from its workers' reports, because a
script without a Manager has no other measurement. Not here: the consequences for a loop that stands
still (core/lighthouse/standstill.py, core/agent/loop_watch.py).
"""

from __future__ import annotations

from collections import deque

STEPS_KEPT = 32
STEPS_MIN = 3
"""With fewer known steps there is no limit: the first ones compile and fill caches."""
LONGEST_TIMES = 2.0
"""A step may take at least this multiple of the longest one so far."""


class StepTimes:
    """The times of a loop's last steps, as they arrive with its reports."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._at = 0.0
        self._steps = 0
        self._times: deque[float] = deque(maxlen=STEPS_KEPT)

    def reached(self, step: int, now: float) -> None:
        """The loop is at ``step`` now; several steps since the last report took equally long."""
        if self._step is not None and step > self._step:
            self._times.append((now - self._at) / (step - self._step))
            self._steps += step - self._step
        if self._step is None or step != self._step:
            self._step, self._at = step, now

    def skip(self) -> None:
        """The loop's present work is no step: the next report begins a new measurement."""
        self._step = None

    @property
    def is_known(self) -> bool:
        return self._steps >= STEPS_MIN

    @property
    def median(self) -> float:
        """The usual time of a step; 0: none is known."""
        return sorted(self._times)[len(self._times) // 2] if self._times else 0.0

    @property
    def longest(self) -> float:
        """The longest of the last steps; 0: none is known."""
        return max(self._times, default=0.0)

    @property
    def steps(self) -> int:
        return self._steps

    def limit_s(self, factor: float, least_s: float) -> float | None:
        """How long a step may take; None: too little is known."""
        if not self.is_known:
            return None
        return longest_limit_s(factor, least_s, self.median, self.longest)


def longest_limit_s(factor: float, least_s: float, usual_s: float, longest_s: float) -> float:
    """How long a step may take, if steps usually take ``usual_s``, and the longest
    ``longest_s``.
    """
    return max(least_s, factor * usual_s, LONGEST_TIMES * longest_s)
