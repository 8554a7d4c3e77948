"""A replica is set to its peers' place: loops, counters, tensors outside the modules, and loaders.

The batches of an IterableDataset must be read to be passed over, and a peer that trains waits for a
newcomer from the moment at which it joins. So a newcomer reads before that, until it is near to
where its peers are; they go on meanwhile, and it looks again where they are.

Not here: when that is done (loop.py), and how the state itself heals (training/healing.py).
"""

from __future__ import annotations

import gc
import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import GEN_CREATED, getgeneratorstate
from types import GeneratorType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit import around, suspended, told
from ftrun.inject.zero_edit.counting import COUNT_END, RANGES
from ftrun.inject.zero_edit.frames import HeldFrame, Spot, Values, script_frames, spot_of
from ftrun.inject.zero_edit.loaders import OPEN, LoaderIterator, Order, follow, set_epochs
from ftrun.inject.zero_edit.noting import is_at, is_of, matched
from ftrun.inject.zero_edit.place import LoaderPlace, Over, Place
from ftrun.inject.zero_edit.randomness import NO_SEEDS, Seeds
from ftrun.inject.zero_edit.states import Event, State
from ftrun.inject.zero_edit.suspended import Suspended
from ftrun.inject.zero_edit.values.sources import Taken

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

NEAR = 32
"""Batches of an IterableDataset that are left to be read when it has joined."""
ROUNDS_MAX = 16
"""A newcomer that reads twice as fast as its peers train needs five for 1,000 batches."""


class Moving:
    """Sets one replica to a place. For the main thread.

    ``has_moved``: it was set to one, and has begun no pass in training since.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.has_moved = False
        self._begun_with: Mapping[str, Values] = {}
        self._ranges: list[tuple[Spot, int, range | None]] = []
        self._places: list[LoaderPlace] = []  # of iterators that are waited for
        self._at_end: list[LoaderPlace] = []  # the same, if they have no more batches there
        self._seeds: Mapping[str, Seeds] = {}
        self._place, self._held = Place(), list[Suspended]()
        self._own: Mapping[tuple[str, str], Any] = {}
        self._generators: WeakSet[Any] = WeakSet()  # that have given no item there
        self._told: Taken | None = None  # of a newcomer that waits until its first pass

    def come_near(self, iterator: LoaderIterator | None) -> None:
        """Read up to the peers' place, but for ``NEAR`` batches, before they wait for this replica.

        ``iterator``: it is about to give its first batch; None: there is nothing to read.
        """
        if iterator is None or not iterator.must_read:
            return
        script = self._script
        for index in range(ROUNDS_MAX):
            found, _ = matched(script.peers.now().loaders, iterator)
            places = [x for x, like in found if like is iterator]
            left = places[0].drawn - iterator.cursor.drawn if places else 0
            if left <= NEAR:
                return
            if script.mates.is_lead and not index:
                told.say(
                    f"replica {script.here.replica_id} reads and skips {left} batches of the data "
                    f"loader at {iterator.spot} to reach its peers' place, because an "
                    "IterableDataset has no indices. Its peers train on meanwhile"
                )
            follow([(iterator, iterator.go_to(None, places[0].drawn))])

    def go_to(self, place: Place, first: LoaderIterator | None, *, is_drawn: bool) -> None:
        """Set all to ``place``, in a step that has begun, and tell it.

        Args:
            first: the iterator of this step's first draw.
            is_drawn: this step's batches are drawn already, or its turn has begun.

        Raises:
            UserError: some loop cannot be set.
        """
        script, counters, tensors = self._script, self._script.counters, self._script.tensors
        self.has_moved = True
        unlike = script.peers.unlike_loops(place)
        functions = {spot.name for spot, _ in place.over}
        over = place.spans
        starts = {spot: x for spot, x in place.over if isinstance(x, int)}
        before = dict(RANGES.current({spot.name for spot, _ in place.ranges}))
        own = _ranges(RANGES.over(functions))
        inner, turns = place.turn or (None, 0)
        ranges = [(x, number, over.get(x)) for x, number in place.ranges if x != inner]
        behind = [x for x in ranges if not RANGES.set(*x)]
        if inner and not RANGES.come_to(inner, turns + is_drawn, over.get(inner)):
            behind.append((inner, turns, over.get(inner)))
        # Of a loop that draws ahead, the newcomer's own draw may be before an inner one.
        self._ranges = behind if place.entry != place.stack and not is_drawn else []
        problems = [] if self._ranges else _words_of(behind)
        problems += [loop.words for loop in unlike]
        found, without = matched(place.loaders, first)
        known = [iterator for _, iterator in found]
        known += [first] if first is not None else []
        unclear = [x for x in place.others if x.drawn and not x.spot.line]  # it may draw ahead
        others, waiting = matched([x for x in place.others if x not in unclear], None, known)
        facts = [iterator.facts() for _, iterator in (*found, *others)]
        set_epochs(place.epochs, {(x.made_at, x.made_before) for x in place.loaders})
        taken = counters.take(place)
        taken.changed += [
            f"the loop at {spot} over {_numbers(own[spot])}→{_numbers(now)}"
            for spot, now in _ranges(RANGES.over(functions)).items()
            if own.get(spot, now) != now
        ]
        taken.changed += RANGES.start_from(starts)
        taken.changed += tensors.words
        at = tensors.left.step if tensors.left is not None else place.step
        then = f" as of step {at}" if at < place.step + place.behind else ""
        taken.of_its_own[:0] = [f"{words}{then}" for words in tensors.own_words]
        taken.lacking += [*script.carried.lacking, *tensors.lacking]
        taken.lacking += around.collecting(script_frames())
        seeds = script.randomness.seeds(place.loaders[0].name if place.loaders else "")
        is_own = script.is_in_place
        if is_own and (left := [*without, *waiting]):
            without = self._await(place, left, seeds)
        without += unclear if is_own else []
        if not is_own:
            theirs = [Suspended(*x) for x in place.held]
            taken.lacking += suspended.elsewhere(counters.walk.held(), theirs)
            if first is not None and not is_drawn:  # the script may make them in this step
                self._places, self._seeds, self._place = without, seeds, place
                self._at_end = [x for x in waiting if x.drawn]
                OPEN.is_awaited, without, self._told = bool(without or self._at_end), [], taken
        taken.lacking += [_batches_at(x) for x in without]
        if place.commits and not place.has_finished:
            taken.lacking.append(f"what the script counted in the last {place.commits} steps")
        script.lacking = taken.lacking
        self._begun_with = {} if is_drawn else place.begun_with
        if place.has_finished or place.behind:
            script.ending.replay(place.taken, is_over=place.has_finished)
        if script.predecessor is not None and is_own and (kept := _in_cycles([*found, *others])):
            script.predecessor.differs(kept)
        moved = _move(found, facts[: len(found)], seeds, is_drawn=is_drawn)
        for place_of, iterator in found:
            iterator.is_training = iterator.is_moved = True
            if place_of.is_dim:
                OPEN.dim.add(iterator.loader)
        moved += _move(others, facts[len(found) :], seeds)
        follow(moved, _items(place, before))
        self._set_calls(place)
        self._tell(place.words(without), place, taken)
        _refuse(problems)
        script.standing.empty = place.empty
        script.standing.is_at(place, place.step)
        if script.ending.is_replaying:
            script.course.goes(Event.PLACED, State.REPLAYING)

    def _await(
        self, place: Place, places: list[LoaderPlace], seeds: Mapping[str, Seeds]
    ) -> list[LoaderPlace]:
        """Iterators of a predecessor that are not here may be those of generators that the script
        has made, and asked for no item so far. Returns those that are not."""
        made = (x for x in gc.get_objects() if type(x) is GeneratorType)
        self._generators = WeakSet(x for x in made if getgeneratorstate(x) == GEN_CREATED)
        self._places, self._seeds, self._place = list(places), seeds, place
        self._held = [x for x in (Suspended(*one) for one in place.held) if x.draws]
        self._own = self._script.counters.walk.held()
        return [] if self._generators else places

    def begins(self, iterator: LoaderIterator) -> None:
        """An iterator is asked for its first batch: it may be one that was waited for."""
        at_end = [x for x in self._at_end if x.drawn == _length_of(iterator)]
        if not (self._places or at_end):
            return
        running = {id(frame) for frame in script_frames()}
        is_early = self._told is not None
        if not is_early and not any(id(x.gi_frame) in running for x in self._generators):
            return
        for is_like in (is_of, is_at):
            alike = [x for x in (*self._places, *at_end) if is_like(iterator, x)]
            if len(alike) == 1:
                (self._at_end if alike[0] in at_end else self._places).remove(alike[0])
                facts, begun = [iterator.facts()], iterator.begun
                self._set_generators()
                iterator.is_training = iterator.is_moved = is_early
                follow(_move([(alike[0], iterator)], facts, self._seeds))
                if alike[0].is_dim:
                    OPEN.dim.add(iterator.loader)
                for states in begun[:1]:
                    states.set()  # its predecessor's was there: nothing was drawn to begin it
                return

    def _set_generators(self) -> None:
        """One begins that the predecessor's script has asked for items before."""
        running = {id(frame): frame for frame in script_frames()}
        for one in tuple(self._held):
            own = self._own.get((one.holder, one.path))
            frame = None if own is None else running.get(id(own.gi_frame))
            if frame is not None and one.is_one:
                self._held.remove(one)
                for spot, number in one.loops:
                    RANGES.set(spot, number)
                self._script.counters.set_generator(self._place, HeldFrame(frame, one.path))

    def step_begins(self) -> None:
        """The newcomer's first step begins: the script has set counters on its way here.

        Raises:
            UserError: it has not come to a loop in which its peers are.
        """
        self.has_moved = False
        self._script.ending.pass_begins()
        if self._told is not None:
            self._misses(self._told)
        if self._ranges:
            ranges, self._ranges = self._ranges, []
            _refuse(_words_of([x for x in ranges if not RANGES.set(*x)]))
        if self._begun_with:
            values, self._begun_with = self._begun_with, {}
            self._script.counters.set_begun_with(values)

    def _misses(self, taken: Taken) -> None:
        """A newcomer's first pass begins: what it has waited for until then does not come."""
        script, places, self._places, self._told = self._script, self._places, [], None
        self._at_end = []  # no batch of the step is one of theirs
        OPEN.is_awaited = False
        taken.lacking += map(_batches_at, places)
        if places and script.mates.is_lead:
            missed = ", ".join(map(_batches_at, places))
            told.say(f"replica {script.here.replica_id} has not restored: {missed}")
            if script.trial is not None:
                script.trial.has_joined(self._place.words(places), taken)

    def _set_calls(self, place: Place) -> None:
        noting, world = self._script.noting, self._script.world
        noting.has_place = True
        noting.idle.update(place.idle)
        noting.inner.update((within, first) for within, first in place.inner)
        world.is_following = place.has_finished
        at = place.exchanges + place.again
        world.on_live = partial(self._script.ending.meets_peers, at) if place.behind else None
        world.given.take(place.details().given)
        world.replay(place.exchanges, place.calls)

    def _tell(self, words: str, place: Place, taken: Taken) -> None:
        """``words``: for the place."""
        script = self._script
        if script.memory is not None:  # the agent tells of it
            script.memory.tell(taken.lacking)
            return
        if script.predecessor is not None and script.is_in_place:
            script.predecessor.lacks(taken.lacking)
            return
        here, is_lead = self._script.here, self._script.mates.is_lead
        if is_lead or taken.of_its_own:
            who = f"replica {here.replica_id}"
            if not is_lead:
                who += f" (its worker {here.group_rank})"
            is_new = not taken.has_left and not here.restarts
            again = "" if not place.again else f", and repeats {_steps(place.behind)}"
            told.say(f"{who} joined at {words}{again}{taken.words(is_new=is_new)}")
        was_away = here.restarts and not script.peers.have_gone_back
        if here.replica_id == "0" and was_away and not here.group_rank:
            told.say(
                "while replica 0 was away, the job skipped what rank 0 alone does, such as an "
                "evaluation or a checkpoint that was due"
            )
        if self._script.trial is not None and is_lead:
            self._script.trial.has_joined(words, taken)


def _steps(number: int) -> str:
    return "the step since then" if number == 1 else f"the {number} steps since then"


def _length_of(iterator: LoaderIterator) -> int | None:
    """How many batches an iterator has that was asked for none; None: not known."""
    iterator.measure()
    return iterator.length


def _batches_at(place: LoaderPlace) -> str:
    return f"the batches of the data loader at {place.spot}"


def _words_of(ranges: Sequence[tuple[Spot, int, range | None]]) -> list[str]:
    return [
        f"its loop at {spot} does not reach index {number}" + (f" of {theirs}" if theirs else "")
        for spot, number, theirs in ranges
    ]


def _ranges(over: Over) -> dict[Spot, range]:
    return {spot: x for spot, x in over if isinstance(x, range)}


def _numbers(over: range) -> str:
    return str(over).replace(f", {COUNT_END}", ", ...")


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise UserError(f"this replica cannot follow its peers: {'; '.join(problems)}")


def _items(place: Place, before: Mapping[Spot, int]) -> int | None:
    """How many items the generator that draws now has given at the peers, beyond those here: as
    many as the numbers of its one ``range`` loop. None: it has none."""
    for frame in script_frames():
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            name = spot_of(frame).name
            numbers = [(spot, number) for spot, number in place.ranges if spot.name == name]
            if len(numbers) == 1 and numbers[0][0] in before:
                return numbers[0][1] - before[numbers[0][0]]
            return None
    return None


def _in_cycles(moved: Sequence[tuple[LoaderPlace, LoaderIterator]]) -> list[str]:
    """What ``itertools.cycle`` has kept of loaders, to give it again, in words."""
    return [
        f"what itertools.cycle has kept of the data loader at {place.spot}"
        for place, iterator in moved
        if place.drawn and any(type(x) is itertools.cycle for x in gc.get_referrers(iterator))
    ]


def _move(
    found: Sequence[tuple[LoaderPlace, LoaderIterator]],
    facts: Sequence[Values],
    seeds: Mapping[str, Seeds],
    *,
    is_drawn: bool = False,
) -> list[tuple[LoaderIterator, int]]:
    """Set iterators to their places.

    Args:
        facts: of each, before the counters were set.
        seeds: of the predecessor's, by name.

    Returns:
        Each with the number by which it has grown.
    """
    moved = []
    for (loader, iterator), before in zip(found, facts, strict=True):
        set_to = iterator.move_to if is_drawn else iterator.go_to
        its = seeds.get(loader.name, NO_SEEDS)
        if loader.held is not None:  # other numbers may be of an earlier epoch
            here = range(loader.drawn, loader.drawn + loader.held)
            its = replace(its, held={at: x for at, x in its.held.items() if at in here})
        order = Order(loader.moved, before, its)
        by = set_to(loader.epoch, loader.drawn, order) + iterator.cursor.dropped - loader.dropped
        iterator.cursor.held, iterator.cursor.dropped = loader.held, loader.dropped
        if iterator.spot != loader.spot:  # its peers have come to a later one of this loop
            iterator.spot, iterator.number = loader.spot, loader.number
        moved.append((iterator, by))
    return moved
