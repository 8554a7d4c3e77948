"""Where this replica stands in its script: its last place, and the steps since.

Not here: how a place is found (noting.py), and set (moving.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ftrun.inject.zero_edit.place import LoaderPlace, Numbers, Place, summary


class Standing:
    """The standing of one replica.

    Attributes:
        place: the last one that was noted; ``functions``: on the stack there; ``is_in_package``:
            one of them runs the training loop for the script.
        at: so many steps were committed when it came to its newest step.
        steps: that have ended since ``place``.
        empty: the steps of the job that were none of the script's.
        shown: gives, in any thread, what peers get. At a step that was passed its loaders and
            ranges are those of this step, and the rest is ``place``, which is older.
    """

    def __init__(self) -> None:
        self.empty = 0
        self.is_at(Place(), 0)

    def is_at(self, place: Place, step: int) -> None:
        """The replica was found at ``place``, or was set to it; ``step``: committed there."""
        self.at = step
        behind, place = place.behind, replace(place, behind=0, step=step)
        self.place = place
        self._base: Callable[[], Place] = lambda: place
        self.shown: Callable[[], Place] = partial(_behind, self._base, behind, self.empty)
        self.functions = frozenset(spot.name for spot in place.stack)
        self.is_in_package = any(not spot.line for spot in place.stack)
        self.steps = behind
        self._shown_at = 0  # ``steps`` at the step whose batches ``shown`` has

    def goes_on(self, numbers: Numbers | None, step: int) -> None:
        """A step begins that has no place; ``numbers``: of it (``Noting.numbers``); ``step``: as
        in ``is_at``."""
        self.at = step
        if numbers is not None:
            self._base = partial(_later, self.place, numbers, self.steps, step)
            self._shown_at = self.steps
        self.shown = self._base
        if self.steps != self._shown_at or self.empty:
            self.shown = partial(_behind, self._base, self.steps - self._shown_at, self.empty)

    def goes_back(self) -> None:
        """A step begins in the middle of what follows the last one. Who joins in it goes through
        all steps since the place, so that what it counts on its way is as here."""
        place = self.place
        self.shown = partial(_behind, lambda: place, self.steps, self.empty)

    def is_like(self, place: Place) -> bool:
        """Whether this replica, which heals at a step that it has begun, stands at ``place``.

        If counters are older, those of this replica are right: it has run the same steps.
        """
        mine = self.shown()
        if place.has_finished or not (mine.commits or place.commits):
            return mine == place
        return (mine.loaders, mine.ranges, mine.turn, mine.behind) == (
            place.loaders,
            place.ranges,
            place.turn,
            place.behind,
        )

    def position(self) -> Callable[[], str]:
        """A function for any thread: it describes the step under way, to compare replicas."""
        return partial(_text, self.shown, self.steps - self._shown_at)

    def finish(self) -> None:
        """The script has come to its end."""
        end = replace(self.place, has_finished=True, commits=self.steps, empty=self.empty)
        self.shown = lambda: end


def _later(place: Place, numbers: Numbers, commits: int, step: int) -> Place:
    loaders = tuple(LoaderPlace(*x) for x in numbers[0])
    ranges, over, turn = numbers[1:]
    now = replace(place, loaders=loaders, ranges=ranges, over=over, turn=turn, commits=commits)
    return replace(now, step=step)


def _behind(base: Callable[[], Place], steps: int, empty: int) -> Place:
    return replace(base(), behind=steps, empty=empty) if steps or empty else base()


def _text(shown: Callable[[], Place], steps: int) -> str:
    return f"{summary(shown())}, step {steps} from there"
