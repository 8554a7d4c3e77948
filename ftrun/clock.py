"""The only clock: everything that measures time in ftrun asks here.

Monotonic, so that a wall-clock jump changes nothing (L3). Cores get ``now`` as an argument.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone


def now() -> float:
    """Seconds on the monotonic clock."""
    return time.monotonic()


def wall() -> datetime:
    """The date and time of day in UTC: for logs and people, never for decisions."""
    return datetime.now(timezone.utc)
