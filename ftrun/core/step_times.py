"""How long a loop's last steps have taken, and from when on the next one is too long.

Only the steps of one process count, because the next one may run on another machine. A time that
was no step, for example a heal or an announced pause, is left out. Not here: what follows for a
loop that stands still (core/lighthouse/standstill.py, core/agent/loop_watch.py).
"""

from __future__ import annotations

from collections import deque

STEPS_KEPT = 32
STEPS_MIN = 3
"""With fewer known steps nothing is learned: the first ones compile and fill caches."""
LONGEST_TIMES = 2.0
"""A loop that now and then takes a long step has at least this multiple of the longest one."""


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
        """Whether enough steps were seen."""
        return self._steps >= STEPS_MIN

    @property
    def mean(self) -> float | None:
        """The mean time of the last steps; None: none is known."""
        return sum(self._times) / len(self._times) if self._times else None

    @property
    def median(self) -> float:
        """The usual time of a step; some step must be known."""
        return sorted(self._times)[len(self._times) // 2]

    def limit_s(self, factor: float, least_s: float) -> float | None:
        """How long a step may take; None: too little is known."""
        if not self.is_known:
            return None
        return max(least_s, factor * self.median, LONGEST_TIMES * max(self._times))
