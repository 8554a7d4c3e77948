"""A newcomer's way past the training loops that its peers have left.

A script may train in several loops: a warm-up and then the rest, two loaders in each epoch, a list
of stages. A newcomer that comes to a loop in which its peers do not stand passes over it: it takes
one batch there, so that what follows the loop finds its variables, and then loader and ``range``
loops end. Its work on the way counts nowhere. Its forward passes are its own, no optimizer
steps, files are not written, and a collective has its own value, or for a broadcast what the root
gave there last. When it comes to the loop of its peers it joins, and takes their state.

The loops that it ends are those between the loader and the outermost frame whose line differs from
its peers'. Loops around both stay as they are: they are set when it joins.

Not here: when a newcomer joins (loop.py), a replica that has come after the end (ending.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit import around, told
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.frames import Spot
from ftrun.inject.zero_edit.loaders import LoaderIterator
from ftrun.inject.zero_edit.place import Place

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

GHOSTS_MAX = 1_000
"""Forward passes of a newcomer on its way: a ``while`` loop over a loader may never end."""


class Passing:
    """One newcomer's way. For the main thread.

    Attributes:
        is_on: it has passed over a loop, and has not joined yet.
    """

    def __init__(self, script: Script) -> None:
        self.is_on = False
        self._script, self._mates, self._world = script, script.mates, script.world
        self._who = f"replica {script.here.replica_id}"
        self._over: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        self._ghosts = 0
        self._told: set[Spot] = set()

    def knows(self, draws: Sequence[LoaderIterator]) -> bool:
        """Whether the loop that draws from these is passed over already."""
        return any(iterator in self._over for iterator in draws)

    def begin(self, place: Place) -> None:
        """From here on nothing counts, up to the ``place`` of the peers."""
        if not self.is_on:
            self.is_on = True
            self._world.given.take(place.details().given)
            self._world.is_passing = True
            self._script.loop.passes()

    def walk_on(self, place: Place, here: Sequence[Spot]) -> None:
        """The peers have gone on from ``here``, and wait at ``place`` in a step that has begun."""
        RANGES.tells_all = True
        if self._mates.is_lead:
            told.say(
                f"{self._who} has come to {here[0]} to join its peers, but they have gone on "
                f"meanwhile ({place.words()}): it goes there, and they wait for it"
            )
        self.begin(place)

    def pass_over(
        self,
        place: Place,
        here: Sequence[Spot],
        draws: Sequence[LoaderIterator],
        unlike: Sequence[around.Loop],
    ) -> None:
        """A forward pass in training, in a loop that the peers have left, or have not come to.

        Args:
            place: where they stand.
            here: the stack at the first draw of this loop; without a loader, of the pass.
            draws: the iterators of its batches.
            unlike: the loops around that nobody can set, and that stand elsewhere.

        Raises:
            UserError: it has done so ``GHOSTS_MAX`` times.
        """
        self.begin(place)
        at = next((spot for spot in here if spot.line), here[0])  # not in a framework
        if at not in self._told and self._mates.is_lead:
            self._told.add(at)
            told.say(
                f"{self._who} passes over the loop at {at}, because its peers are not in it "
                f"({place.words()}): it takes one batch there, and nothing of it counts"
            )
        self._ghosts += 1
        if self._ghosts > GHOSTS_MAX:
            raise UserError(
                f"this replica was started again, and passes over loops of the script to come to "
                f"its peers ({place.words()}), but the one around {at} does not end after "
                f"{GHOSTS_MAX} steps: it cannot follow them. Use ftrun.Manager there "
                "(docs/MANAGER.md)"
            )
        self._over.update(iterator for iterator in draws if iterator.is_fresh)
        RANGES.end(_left(here, place, unlike))

    def before_draw(self, iterator: LoaderIterator) -> None:
        """A loader is asked for a batch: one of a loop that is passed over has no more."""
        if iterator in self._over:
            iterator.cursor.has_ended = True
            iterator.is_training = iterator.is_fresh = False

    def joined(self) -> None:
        """The newcomer stands where its peers stand: no gradient of the way is left."""
        if self.is_on:
            self.is_on = self._world.is_passing = False
            self._over.clear()
            for module in self._script.models.wrapped:
                for parameter in module.parameters():
                    parameter.grad = None


def _left(
    here: Sequence[Spot], place: Place, unlike: Sequence[around.Loop]
) -> Callable[[Spot], bool]:
    """Whether a ``range`` loop at a place is to end. ``here`` and ``unlike``: innermost first."""
    theirs = place.entry
    common = 0
    while common < min(len(here), len(theirs)) and here[-1 - common] == theirs[-1 - common]:
        common += 1
    differing = here[: len(here) - common]
    if unlike and not differing:
        outer = unlike[-1]
        names = [spot.name for spot in here]
        inner = set(names[: names.index(outer.function)]) - {outer.function}
        return lambda spot: (
            spot.name in inner
            or (spot.name == outer.function and outer.first < spot.line <= outer.last)
        )
    inner = {spot.name for spot in differing[:-1]}
    forks = differing[-1].name if differing else ""
    at_fork = theirs[len(theirs) - common - 1].name if len(theirs) > common else ""
    around_both = {spot for spot, _ in place.ranges} if at_fork == forks else set()
    return lambda spot: spot.name in inner or (spot.name == forks and spot not in around_both)


# ---------------------------------------------------------------- a newcomer that cannot go on


def stands_elsewhere(place: Place, here: Sequence[Spot]) -> NoReturn:
    """A newcomer has come to ``here`` without the loop of its peers, who are at ``place``.

    Raises:
        UserError: always.
    """
    raise UserError(
        f"this replica was started again, and has come to {here[0] if here else 'its end'} without "
        f"a loop in which its peers are ({place.words()}): it cannot follow them. Does the script "
        "resume from a file of its own? Use ftrun.Manager there (docs/MANAGER.md)"
    )


def peers_are_gone() -> NoReturn:
    """The peers of a newcomer that has passed over a loop train no more.

    Raises:
        UserError: always.
    """
    raise UserError(
        "this replica was started again, and has passed over a part of the script to come to its "
        "peers, of which none trains any more. It begins again"
    )
