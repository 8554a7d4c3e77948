"""What a simulated main thread yields: how long it computes, or what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

INSTANT_S = 0.00001


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for ``condition``; the script fails if it takes longer than ``timeout_s``."""

    condition: Callable[[], bool]
    timeout_s: float
    what: str


Wait = float | Until
