"""Steps of a few milliseconds in which nothing is looked at: each draws one batch, and commits.

To find out at each step where the script stands costs a tenth of a millisecond. In a loop over one
loader whose steps draw one batch each, the answer follows from that of the step before. So the
steps between two that have to be noted are gone through in a *lane*: a draw, a forward pass and a
commit in turn. Anything else closes it, and the step goes on as any other.

A step in a lane is *passed* (sparing.py): nobody joins there, and who heals there stands there.
Only numbers of ``range`` loops that change after many steps, though no loader ends, may be told
late: until the lane ends.

Not here: the loop's ways into a lane and out of it (loop.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from ftrun import clock
from ftrun.core.worker.marks import PARAMETERS_EVERY
from ftrun.inject.zero_edit.frames import Spot
from ftrun.inject.zero_edit.loaders import LoaderIterator
from ftrun.inject.zero_edit.place import Numbers

EVERY = PARAMETERS_EVERY
"""All replicas have a mark at these steps."""
STEP_S = 0.01
"""Steps that take longer need no lane."""
STEADY_STEPS = 6
"""For so many steps that were looked at the ``range`` loops have had the same numbers. Two are
enough at the beginning of another epoch of the loop."""
Ranges = tuple[tuple[Spot, int], ...]


class Lane:
    """The lane of one replica. For the main thread; ``numbers`` for any.

    Args:
        is_barred: whether the next step must be looked at: a newcomer is prepared for.
        leave: called when the lane is closed. ``is_drawn``: the batch of a step that has not ended
            is drawn.

    Attributes:
        iterator: gives the batches of the lane; None: none is open.
        is_drawn: the batch of the next step, or of the one under way, is drawn.
        is_begun: a step is under way.
    """

    def __init__(
        self, is_barred: Callable[[], bool], leave: Callable[[LoaderIterator, bool], None]
    ) -> None:
        self.iterator: LoaderIterator | None = None
        self.is_drawn = self.is_begun = False
        self._is_barred, self._leave = is_barred, leave
        self._left = self._steady = 0
        self._ranges: Ranges = ()
        self._of: weakref.ref[LoaderIterator] | None = None
        self._loop: object = None
        self._last = (0, 0.0)  # the last step that was looked at, and when it ended

    def look(
        self,
        iterator: LoaderIterator | None,
        ranges: Ranges,
        step: int,
        due_step: Callable[[int, float], int],
    ) -> bool:
        """A step that was looked at has been committed as number ``step``; True: a lane is open.

        Args:
            iterator: gave the step its only batch, and the loop holds none; None: it is not so.
            ranges: the numbers of ``range`` loops in that step.
            due_step: the next step that is to be noted (``Sparing.due_step``).
        """
        now = clock.now()
        steps, spent_s = step - self._last[0], now - self._last[1]
        self._last = step, now
        if iterator is None:
            return False
        of = None if self._of is None else self._of()
        if iterator is not of:
            is_known = self._steady >= STEADY_STEPS and iterator.loop == self._loop
            self._steady, self._ranges = STEADY_STEPS - 2 if is_known else 0, ranges
            self._of, self._loop = weakref.ref(iterator), iterator.loop
        elif ranges != self._ranges:
            self._steady, self._ranges = 0, ranges
        self._steady += 1
        if self._steady < STEADY_STEPS or iterator.length is None or spent_s > STEP_S * steps:
            return False
        drawn = iterator.cursor.drawn
        until_mark, until_end = EVERY - 1 - step % EVERY, iterator.length - 1 - drawn
        until_due = due_step(step, max(spent_s / max(steps, 1), 1e-6)) - step
        self._left = min(until_mark, until_end, until_due)
        if self._left <= 0:
            return False
        self.iterator, iterator.lane = iterator, self
        return True

    def draws(self) -> bool:
        """The iterator is asked for a batch; False: the lane is closed now."""
        if self._left and not self.is_drawn and not self._is_barred():
            self._left -= 1
            self.is_drawn = True
            return True
        self.close()
        return False

    def committed(self) -> None:
        """The step under way is committed."""
        self.is_drawn = self.is_begun = False

    def close(self) -> None:
        """The next step is looked at, or the rest of this one."""
        iterator = self.iterator
        if iterator is None:
            return
        self.iterator = iterator.lane = None
        iterator.cursor.leave_lane(is_drawn=self.is_drawn, is_begun=self.is_begun)
        iterator.is_fresh = is_drawn = self.is_drawn
        self.is_drawn = self.is_begun = False
        self._leave(iterator, is_drawn)

    def numbers(self) -> Numbers | None:
        """The numbers of the step under way; None while no step is."""
        iterator = self.iterator
        if iterator is None or not self.is_begun:
            return None
        return [iterator.numbers(iterator.cursor.drawn - 1)], self._ranges
