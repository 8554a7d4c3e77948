"""Decides which steps of the script are noted, so that noting costs at most 0.2 % of the time.

A replica can join only at a noted step, and at a noted step a worker leaves its counters to its
successor. While all replicas train, no replica joins, so most steps are *passed* if they are short.
No replica can join at a passed step (``allow_heal=False``). From the moment at which the members
prepare for a newcomer, all steps are noted.

A replica that notes delays all others. So all replicas should note at the same steps, although each
uses its own clock: at multiples of the largest power of two that is not above the number of steps
since the last noted step.

Not here: what is noted (noting.py), when members prepare (core/lighthouse/switching.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.base import clock

SHARE = 0.002


class Sparing:
    """Decides once per step. For the main thread.

    Args:
        needs: returns whether the step that begins must be noted.
        step: returns the number of committed steps.
        share: the fraction of the time that noting may take, apart from steps that must be noted.

    Attributes:
        took_s: the CPU time for noting the newest noted step.
        is_noted: whether the step under way is noted; None: it has drawn nothing yet.
    """

    def __init__(
        self, needs: Callable[[], bool], step: Callable[[], int], share: float = SHARE
    ) -> None:
        self._needs, self.step, self._share = needs, step, share
        self._noted_at = float("-inf")
        self._noted_step = 0
        self.took_s = 0.0
        self.is_noted: bool | None = None

    def notes(self, *, must: bool = False) -> bool:
        """Whether to note the script here. The first draw of a step decides for the whole step.

        ``must``: note at this draw and at all later ones of the step.
        """
        if self.is_noted or not (must or self.is_noted is None):
            return bool(self.is_noted)
        step = self.step()
        is_due = not step % (1 << (max(1, step - self._noted_step).bit_length() - 1))
        may_take = is_due and (clock.now() - self._noted_at) * self._share > self.took_s
        is_noted = must or may_take or self._needs()
        if is_noted:
            self._noted_at, self._noted_step, self.took_s = clock.now(), step, 0.0
        self.is_noted = is_noted
        return is_noted
