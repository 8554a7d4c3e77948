"""The screen's history of the values for its sparklines, one value per poll.

Bounded: ``POLLS`` values of each series, ``SCALARS_MAX`` scalars. Pure. Not here: the job's own
account and rates (core/lighthouse/status.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from ftrun.core.lighthouse.status import Status

POLLS = 120
RATE_SPAN = 0.6
SCALARS_MAX = 64
BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"


class History:
    """The last values of the rate, of the scalars, and of each replica's step time."""

    def __init__(self) -> None:
        self.rate: deque[float | None] = deque(maxlen=POLLS)
        self.scalars: dict[str, deque[float | None]] = {}
        self.step_s: dict[str, deque[float | None]] = {}
        self._job_id = ""

    def add(self, status: Status) -> None:
        """Add one poll. Another job starts with an empty history."""
        job_id = status["job"]["job_id"]
        if job_id != self._job_id:
            self._job_id = job_id
            self.rate.clear()
            self.scalars.clear()
            self.step_s.clear()
        self.rate.append(status["rate"]["now"])
        for name, value in status["scalars"].items():
            if name in self.scalars or len(self.scalars) < SCALARS_MAX:
                self.scalars.setdefault(name, deque(maxlen=POLLS)).append(value)
        ids = set()
        for replica in status["replicas"]:
            ids.add(replica["replica_id"])
            series = self.step_s.get(replica["replica_id"])
            if series is None:
                series = self.step_s[replica["replica_id"]] = deque(maxlen=POLLS)
            series.append(replica["step_s"])
        if len(self.step_s) > len(ids):
            self.step_s = {name: self.step_s[name] for name in ids}


def spark(values: Iterable[float | None], cells: int, *, least: float = 0.0) -> str:
    """The last values as blocks, newest at the right; a gap where there was no value.

    ``least``: the blocks span at least this share of the highest value, so that small changes of a
    rate look small. Equal values are at half height.
    """
    shown = list(values)[-cells:] if cells > 0 else []
    known = [value for value in shown if value is not None and math.isfinite(value)]
    if not known:
        return " " * max(0, cells)
    low, high = min(known), max(known)
    span = max(high - low, abs(high) * max(least, 1e-9), 1e-300)
    base = (low + high - span) / 2
    return "".join(_block(value, base, span) for value in shown).rjust(cells)


def _block(value: float | None, base: float, span: float) -> str:
    if value is None or not math.isfinite(value):
        return GAP
    at = int((value - base) / span * len(BLOCKS))
    return BLOCKS[max(0, min(len(BLOCKS) - 1, at))]
