"""Where this replica stands in its script: its last place, and the steps since.

Not here: how a place is found (noting.py), and set (loop.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ftrun.inject.zero_edit.place import Numbers, Place, summary


class Standing:
    """Of one replica.

    Attributes:
        place: the last one that was noted.
        shown: gives, in any thread, what peers get. At a step that was passed its loaders and
            ranges are those of this step, and the rest is ``place``, which is older.
    """

    def __init__(self) -> None:
        self.place = Place()
        self.shown: Callable[[], Place] = Place
        self._steps = 0  # that have ended since ``place``
        self._since = 0  # the same since the step that ``shown`` is of

    def is_at(self, place: Place) -> None:
        """It was found here, or was set to here."""
        self.place, self.shown = place, lambda: place
        self._steps = self._since = 0

    def goes_on(self, numbers: Numbers | None) -> None:
        """A step begins that has no place; ``numbers``: see ``Noting.numbers``."""
        if numbers is not None:
            self.shown = partial(_later, self.place, numbers, self._steps)
            self._since = 0

    def is_like(self, place: Place) -> bool:
        """Whether this replica, which heals at a step that it has begun, stands at ``place``.

        If counters are older, those of this replica are right: it has run the same steps.
        """
        mine = self.shown()
        if place.has_finished or not (mine.commits or place.commits):
            return mine == place
        return (mine.loaders, mine.ranges) == (place.loaders, place.ranges)

    def step_ended(self) -> None:
        """The step under way has ended."""
        self._steps += 1
        self._since += 1

    def position(self) -> Callable[[], str]:
        """Where the step under way stands, for comparison with other replicas: in any thread."""
        return partial(_text, self.shown, self._since)

    def finish(self) -> None:
        """The script has come to its end."""
        end = replace(self.place, has_finished=True, commits=self._steps)
        self.shown = lambda: end


def _later(place: Place, numbers: Numbers, commits: int) -> Place:
    loaders, ranges = numbers()
    return replace(place, loaders=loaders, ranges=ranges, commits=commits)


def _text(shown: Callable[[], Place], steps: int) -> str:
    return f"{summary(shown())}, step {steps} from there"
