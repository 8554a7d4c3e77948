"""How a newcomer skips the training loops that its peers are not in.

A script may train in several loops: a warm-up and then the rest, two loaders in each epoch, a list
of stages. A newcomer skips a loop that its peers are not in. It draws one batch there, so that the
code after the loop finds the loop's variables, and then the loader and ``range`` loops end. This
work has no effect: forward passes stay local, no optimizer steps, and no file is written. A
collective returns the newcomer's own value; a broadcast returns the last value that the root sent
there. When the newcomer reaches its peers' loop, it joins and loads their state.

It ends the loops between the loader and the outermost frame whose line differs from its peers'. It
leaves loops around both alone: these are set when it joins. If the peers are at another line of the
same loop, which may draw there in some turns only, it goes through turns until it comes there.

Not here: when a newcomer joins (loop.py), a replica that has come after the end (ending.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit import around, told
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.frames import Spot, script_frames, stack
from ftrun.inject.zero_edit.loaders import LoaderIterator
from ftrun.inject.zero_edit.place import Place

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

GHOSTS_MAX = 1_000
"""How many forward passes a newcomer makes in skipped loops: a ``while`` loop may never end."""


class Passing:
    """Skips loops for one newcomer. For the main thread.

    Attributes:
        is_on: it has skipped a loop, and has not joined yet.
    """

    def __init__(self, script: Script) -> None:
        self.is_on = False
        self._script, self._mates, self._world = script, script.mates, script.world
        self._who = f"replica {script.here.replica_id}"
        self._over: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        self._ghosts = 0
        self._told: set[Spot] = set()

    def begin(self, place: Place) -> None:
        """Start to skip: nothing has an effect until the newcomer reaches the peers' ``place``."""
        if not self.is_on:
            self.is_on = True
            self._world.given.take(place.details().given)
            self._world.is_passing = True
            self._script.loop.passes()

    def walk_on(self, place: Place, here: Sequence[Spot]) -> None:
        """The peers have left the loop at ``here``. They wait at ``place``, in a begun step."""
        RANGES.tells_all = True
        if self._mates.is_lead:
            told.say(
                f"{self._who} has reached {here[0]} to join its peers, but they are at "
                f"{place.words()} by now. It goes there, and they wait for it"
            )
        self.begin(place)

    def pass_over(self, draws: Sequence[LoaderIterator]) -> None:
        """A forward pass in training, in a loop that the peers have left or have not reached.

        ``draws``: the iterators of its batches.

        Raises:
            UserError: none trains any more, or this was called more than ``GHOSTS_MAX`` times.
        """
        peers = self._script.peers
        if not any(iterator in self._over for iterator in draws) and not peers.now().entry:
            peers_are_gone()
        place, here = peers.place, (draws[0].entry if draws else ()) or stack()
        unlike = peers.unlike_loops(place)
        self.begin(place)
        at = next((spot for spot in here if spot.line), here[0])  # the first outside a framework
        comes_there = around.holds_both(script_frames(), place.entry)
        if at not in self._told and self._mates.is_lead:
            self._told.add(at)
            way = (
                f"goes through turns of the loop at {at}, until it reaches its peers at another "
                f"line of that loop: at {place.words()}. Nothing of these turns counts"
                if comes_there
                else f"skips the loop at {at}, because its peers are elsewhere: at "
                f"{place.words()}. It takes one batch there, and nothing of it counts"
            )
            told.say(f"{self._who} {way}")
        self._ghosts += 1
        if self._ghosts > GHOSTS_MAX:
            raise UserError(
                f"this replica was restarted and cannot reach its peers, which are at "
                f"{place.words()}: it skips the loop around {at}, which does not end after "
                f"{GHOSTS_MAX} steps. Use ftrun.Manager there (docs/MANAGER.md)"
            )
        if not comes_there:
            self._over.update(iterator for iterator in draws if iterator.is_fresh)
            to_turn = [x.turn for x in unlike if x.turn is not None]
            RANGES.end(_left(here, place, unlike), all_of=bool(to_turn))
            for spot, number in to_turn:
                RANGES.go_to(spot, number, place.spans.get(spot))

    def before_draw(self, iterator: LoaderIterator) -> None:
        """A loader is about to draw: end the iterator of a skipped loop."""
        if iterator in self._over:
            iterator.cursor.has_ended = True
            iterator.is_training = iterator.is_fresh = False

    def joined(self) -> None:
        """The newcomer has reached its peers' place: drop the gradients of skipped loops."""
        if self.is_on:
            self.is_on = self._world.is_passing = False
            self._over.clear()
            for module in self._script.models.wrapped:
                for parameter in module.parameters():
                    parameter.grad = None


def _left(
    here: Sequence[Spot], place: Place, unlike: Sequence[around.Loop]
) -> Callable[[Spot], bool]:
    """Returns a function: whether the ``range`` loop at a place is to end.

    ``here`` and ``unlike``: innermost first.
    """
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
    """A newcomer has reached ``here`` without finding its peers' loop; they are at ``place``.

    Raises:
        UserError: always.
    """
    raise UserError(
        f"this replica was restarted and cannot reach its peers: it has come to "
        f"{here[0] if here else 'its end'}, and they are at {place.words()}. Does the script "
        "resume from a file of its own? Use ftrun.Manager there (docs/MANAGER.md)"
    )


def peers_are_gone() -> NoReturn:
    """A newcomer has skipped a loop, or has not found what its peers have saved, and none of them
    trains any more.

    Raises:
        UserError: always.
    """
    raise UserError(
        "this replica was restarted to join its peers, for which it skipped a part of the script, "
        "or did not find their checkpoints. But none of them trains any more. It starts again"
    )
