"""The only clock: all time in ftrun is measured here.

It is monotonic, so that a jump of the wall clock changes nothing (L3). Cores get ``now`` as an
argument.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone

now = time.monotonic
"""Seconds on the monotonic clock."""


def wall() -> datetime:
    """Date and time in UTC, for logs and people only. No decision uses it."""
    return datetime.now(timezone.utc)
