"""Draws the time of the next kill and the worker from a seed. Pure.

Times between kills are exponentially distributed, like those between independent failures. Not
here: the workers that can be killed (targets.py), killing (session.py).
"""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from typing import TypeVar

from ftrun.base.errors import UserError
from ftrun.logs.units import parse_age

T = TypeVar("T")
SIGNALS = ("KILL", "SEGV", "ABRT", "BUS", "TERM")
DURATION_S_MAX = 30 * 86400.0


class Draws:
    """One run's draws: the same for the same seed and job."""

    def __init__(self, mtbf_s: float, seed: int) -> None:
        self._mtbf_s = mtbf_s
        self._rng = random.Random(seed)

    def pause_s(self) -> float:
        """The time to the next kill; ``mtbf_s`` on average."""
        return self._rng.expovariate(1.0 / self._mtbf_s)

    def victim(self, candidates: Sequence[T]) -> T:
        """One of ``candidates``, which must not be empty."""
        return self._rng.choice(candidates)


def parse_duration(text: str, option: str) -> float:
    """Parse ``30s``, ``2m``, ``1.5h`` or plain seconds. Returns seconds.

    Raises:
        UserError: it is no duration, 0, or above 30 days.
    """
    seconds = parse_age(text) or parse_age(f"{text}s") or 0.0
    if not 0 < seconds <= DURATION_S_MAX:
        raise UserError(f"{option} {text!r}: give a time above 0 and up to 30 days: 30s, 2m, 1h.")
    return seconds


def parse_signal(text: str) -> signal.Signals:
    """``KILL`` or ``SIGKILL`` … as a signal.

    Raises:
        UserError: it is not one of ``SIGNALS``.
    """
    name = text.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise UserError(f"--signal {text!r}: give one of {', '.join(SIGNALS)}.")
    return signal.Signals["SIG" + name]
