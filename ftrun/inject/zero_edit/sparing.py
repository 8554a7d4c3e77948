"""Which steps of the script are noted: all, or so few that noting takes 0.2 % of the time at most.

A step is noted if a replica may join at it, and so that a worker leaves to its successor what it
has counted. While all replicas train, nobody joins: then most steps are *passed* if they are short.
Nobody joins at a passed step (``allow_heal=False``), and from the moment at which the members
prepare for a newcomer none is passed.

All replicas wait for the one that notes. So they note at the same steps, although each goes by its
own clock: at multiples of a power of two, the largest one that is not above the number of steps
since the last noted one.

Not here: what is noted (noting.py), when members prepare (core/lighthouse/switching.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.base import clock

SHARE = 0.002


class Sparing:
    """Decides once per step. For the main thread.

    Args:
        needs: whether the step that begins must be noted. ``step``: how many are committed.
        share: of the time, that noting others may take.

    Attributes:
        took_s: what noting the newest step has taken of the processor.
        is_noted: the step under way; None: its first draw is to come.
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
        """Whether the script is noted here. The first draw of a step decides for all of it.

        ``must``: it is noted at this draw, and at the later ones of the step.
        """
        if self.is_noted or not (must or self.is_noted is None):
            return bool(self.is_noted)
        step = self.step()
        is_due = not step % (1 << (max(1, step - self._noted_step).bit_length() - 1))
        is_noted = must or (is_due and self._may_take()) or self._needs()
        if is_noted:
            self._noted_at, self._noted_step, self.took_s = clock.now(), step, 0.0
        self.is_noted = is_noted
        return is_noted

    def _may_take(self) -> bool:
        """Whether the newest note has taken no more than its share of the time since."""
        return (clock.now() - self._noted_at) * self._share > self.took_s
