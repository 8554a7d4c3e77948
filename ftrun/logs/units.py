"""Sizes, ages and times as people write them: ``10GiB``, ``7d``, ``2026-11-23T08:30``.

Not here: what they limit (keep.py, disk.py).
"""

from __future__ import annotations

import re
from datetime import datetime

from ftrun.base.errors import UserError

_SECONDS = {
    "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0,
}  # fmt: skip
_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def parse_age(text: str) -> float | None:
    """Parse ``10m`` to seconds; None if the text is no age."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2].lower() not in _SECONDS:
        return None
    return float(found[1]) * _SECONDS[found[2].lower()]


def parse_bytes(text: str) -> int | None:
    """Parse ``10GiB`` or ``10GB`` to bytes; None if the text is no size."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2].lower() not in _BYTES:
        return None
    return int(float(found[1]) * _BYTES[found[2].lower()])


def parse_since(text: str, now: datetime) -> float:
    """Parse ``10m`` (before now), or a date and time, to seconds since 1970.

    Raises:
        UserError: the text is neither.
    """
    age_s = parse_age(text)
    if age_s is not None:
        return now.timestamp() - age_s
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise UserError(
            f"--since {text!r}: give an age (30s, 10m, 2h, 1d) or a date and time "
            "(2026-11-23T08:30, local unless it ends in Z or +01:00)."
        ) from None
