"""Which steps of the script are noted: all, or so few that noting takes 0.5 % of the time.

A step is noted if a replica may join at it, and so that a worker leaves to its successor what it
has counted. While all replicas train, nobody joins: then most steps are *passed* if they are short.
Nobody joins at a passed step (``allow_heal=False``), and from the moment at which the members
prepare for a newcomer none is passed.

Not here: what is noted (noting.py), when members prepare (core/lighthouse/switching.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun import clock

SHARE = 0.005


class Sparing:
    """Decides once per step. For the main thread.

    Args:
        needs: whether this step must be noted.
    """

    def __init__(self, needs: Callable[[], bool]) -> None:
        self._needs = needs
        self._noted_at = float("-inf")
        self._took_s = 0.0
        self._is_noted: bool | None = None

    def notes(self, *, must: bool = False) -> bool:
        """Whether the script is noted here. The first draw of a step decides for all of it.

        ``must``: it is noted at this draw, and at the later ones of the step.
        """
        if self._is_noted or not (must or self._is_noted is None):
            return bool(self._is_noted)
        now = clock.now()
        passed_s = now - self._noted_at
        self._is_noted = must or passed_s * SHARE >= self._took_s or self._needs()
        if self._is_noted:
            self._noted_at, self._took_s = now, 0.0
        return self._is_noted

    def took(self, seconds: float) -> None:
        """To note this step has taken so much of the processor, in a part of several perhaps."""
        self._took_s += seconds

    @property
    def due_in_s(self) -> float:
        """When a step is noted again."""
        return max(0.0, self._noted_at + self._took_s / SHARE - clock.now())

    def passes(self) -> None:
        """This step is passed: its first draw was not looked at."""
        self._is_noted = False

    def step_ended(self) -> None:
        """The next draw is that of another step."""
        self._is_noted = None
