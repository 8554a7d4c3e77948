"""The script at its draws: what the place of a step is made of.

The place of a step is where the script stood at the first draw since the step before: a newcomer
that is set to it there draws all batches of the step, however many these are. It joins where its
own loop draws for the first time, because a loop that draws ahead holds wrong batches afterwards.

A turn of the script's loop may have several steps. A step without a draw, or with one at another
line than that at which the turn begins, has no place of its own: who joins in it is set to the
beginning of its turn, and goes through the steps before it alone (ending.py).

Not here: when a step begins (loop.py), how a newcomer is set to a place (moving.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ftrun.inject.zero_edit import suspended
from ftrun.inject.zero_edit.appended import Sizes
from ftrun.inject.zero_edit.around import developed, drawn, handed_on, innermost, read_later
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.frames import (
    NOWHERE,
    Spot,
    Values,
    near_frame,
    script_frames,
    spot_of,
    spots_of,
    stack,
    variables_of,
)
from ftrun.inject.zero_edit.loaders import (
    OPEN,
    LoaderIterator,
    Positions,
    epochs,
    refuse_thread,
)
from ftrun.inject.zero_edit.place import LoaderPlace, Numbers, Over, Place
from ftrun.inject.zero_edit.randomness import Left, States
from ftrun.inject.zero_edit.sent import Position
from ftrun.inject.zero_edit.values.changes import differing
from ftrun.inject.zero_edit.values.counters import Read, plain
from ftrun.inject.zero_edit.values.kinds import is_result, packed
from ftrun.inject.zero_edit.values.walk import frames_of

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

ENTRIES_MAX = 256
TURN_MAX = 8
"""So many draws after the last one at the beginning of a turn, it was none."""
LOOKED_AT = 64
"""At so many first draws of steps of a loop all replicas look where the script stands."""
PHASE_STEPS = 64
"""A script that has drawn batches, but none for this many steps, trains in another phase, without a
loader."""


@dataclass(slots=True)
class Noted:
    """The script at one draw; nobody changes it.

    ``exchanges``: collectives before it. ``is_passed``: only the draw was counted (sparing.py).
    ``random``: the generators. ``lengths``: of the files to which the script appends, and its
    places in them; ``printed``: where its standard streams stood, and ``opened`` the iterators of
    loaders. ``held``: generators of Python's.
    """

    stack: tuple[Spot, ...] = ()
    read: Read = field(default_factory=list)
    ranges: tuple[tuple[Spot, int], ...] = ()
    exchanges: int = 0
    is_passed: bool = False
    turn: tuple[Spot, int] | None = None
    random: States | None = None
    over: Over = ()
    lengths: Sizes = field(default_factory=dict)
    printed: tuple[Position, ...] = ()
    opened: Positions = ()
    held: tuple[suspended.Suspended, ...] = ()
    within: int = 0

    def others(self, draws: Sequence[LoaderIterator]) -> list[tuple[LoaderIterator, int]]:
        """Those of ``opened`` that are not among ``draws``, and may go on."""
        every = [(one, drawn) for ref, drawn in self.opened if (one := ref()) is not None]
        known = [(one, drawn) for one, drawn in every if one.may_go_on]
        return [(one, drawn) for one, drawn in known if all(one is not x for x in draws)]


_PASSED = Noted(is_passed=True)
_FIRST = attrgetter("cursor.first")
_NUMBERS = LoaderIterator.numbers


@dataclass(slots=True)
class _Loop:
    """A loop over one loader.

    ``entry``: the frames at its first draw. ``renews``: it makes later iterators at other lines.
    ``since``: the frames at each first draw for a step since one at ``entry``; ``looked_at``: so
    many first draws. ``is_known``: it is, whether the script comes back to ``entry``.
    """

    entry: tuple[Spot, ...]
    renews: bool = False
    since: list[tuple[Spot, ...]] = field(default_factory=list)
    looked_at: int = 0
    is_known: bool = False


class Noting:
    """Notes the script's draws.

    Attributes:
        first: the script at its first step.
        has_place: this replica has shown its peers a place, or has joined them at one.
        idle: the stacks of passes in training that are of no step (``passes_again``).
        inner: the stacks of draws within a turn, each with that of the draw at which it begins.
        begun_at: the first pass of the step under way; empty: it is not idle.
    """

    def __init__(self, script: Script) -> None:
        self._script, self._counters = script, script.counters
        self._sparing, self._randomness = script.sparing, script.randomness
        self._order = 0
        self._steps_without = 0  # steps since the last draw of a training batch
        self._has_drawn = self.has_place = False
        self.idle: set[tuple[Spot, ...]] = set()
        self.inner: dict[tuple[Spot, ...], tuple[Spot, ...]] = {}
        self._turns: list[Noted] = []  # the script where those of the step began, innermost last
        self._has_passed = self._is_told = False  # since the last step; the last loop's turns are
        self._is_left = False  # a draw since the last step has left values to a successor
        self._functions: set[str] = set()  # at the last note
        self._noted_turns: Counter[Spot] = Counter()  # of each loop
        self.first: Noted | None = None
        self.begun_at: tuple[Spot, ...] = ()
        self._entries: dict[tuple[str, ...], tuple[Spot, ...]] = {}
        self._loops: WeakKeyDictionary[Any, dict[tuple[str, ...], _Loop]] = WeakKeyDictionary()

    def draw(self, iterator: LoaderIterator) -> None:
        """A loader is asked for a batch."""
        is_first = not iterator.entry
        draws_ahead = iterator.cursor.held != 0  # or it is not known yet
        ends_next = iterator.cursor.drawn + 1 == iterator.length
        is_noted = self._sparing.notes(must=is_first or draws_ahead or ends_next)
        begins = iterator.noted is None
        looks = is_first or (begins and (self.inner or iterator.turns.looked_at < LOOKED_AT))
        if not (is_noted or looks) and iterator.drawn_again:
            if begins:
                self._order = iterator.drawn_at = self._order + 1
                iterator.noted, iterator.is_within = _PASSED, False
            return
        began = time.thread_time()
        frames = script_frames()
        here = spots_of(frames)
        if is_first:
            iterator.entry, iterator.began = here, self._order
            iterator.turns = self._loop_of(iterator)
            iterator.measure()
        if begins:
            self._turns_in(iterator.turns, iterator, here)
        if not (is_first or iterator.drawn_again):
            iterator.drawn_again = here
        if begins:
            self._order = iterator.drawn_at = self._order + 1
            noted = self._note(here, frames, begins=is_first) if is_noted else _PASSED
            iterator.noted = noted
            if is_noted:
                iterator.note_facts()
            is_between = is_noted and not self._has_passed
            if is_between and (is_first or not (self._is_left or draws_ahead)):
                self._is_left = True
                self._counters.leave(noted.read, noted.ranges, here, iterator.cursor.drawn)
        if is_noted:
            self._sparing.took_s += time.thread_time() - began

    def _turns_in(self, loop: _Loop, iterator: LoaderIterator, here: tuple[Spot, ...]) -> None:
        """The first draw for a step, at ``here``: whether a turn begins there. Where the script has
        come back to the beginning, that shows which draws are within."""
        loop.looked_at += 1
        if here in {loop.entry, iterator.entry} - self.inner.keys():
            is_turn = len(loop.since) <= TURN_MAX and not iterator.cursor.held
            if is_turn and len(self.inner) + TURN_MAX < ENTRIES_MAX:
                self.inner.update(dict.fromkeys(loop.since, here))
            loop.is_known |= bool(loop.since)
            loop.since, iterator.is_within = [], False
            return
        loop.since = [*loop.since[-TURN_MAX:], here]
        loop.is_known |= iterator.is_moved or len(loop.since) > TURN_MAX
        is_new = not loop.is_known and here != iterator.drawn_again
        iterator.is_within = here in self.inner or is_new

    def stands(self, draws: Sequence[LoaderIterator], *, passes: bool = False) -> Noted:
        """The script where it stands, in a step without a draw of its own; ``passes``: nowhere.

        A loop that draws early is noted at each step: where a newcomer joins it follows from all.
        What follows a loop has no place: who is set to the loop's end runs what is in between
        again, as where weights are exchanged for their average.
        """
        must = bool(draws) or RANGES.has_new or RANGES.one_ends()
        is_loaded = bool(draws) or self._is_unclear(draws)
        is_left = bool(self._turns) and not is_loaded
        if is_left:
            self._is_told, self._turns = True, self._under_way()
            if self._turns:
                return self._turns[-1]
        if not (passes or any(x.cursor.is_drawn_within for x in draws)):
            self.begun_at = stack()
        if passes or is_left or not self._sparing.notes(must=must):
            return _PASSED
        RANGES.has_new = False
        self._is_told = not is_loaded and self.tells_turns()
        return _PASSED if self._is_told else self.note(is_drawn=bool(draws))

    def turn(self, spot: Spot) -> None:
        """A turn begins of a loop whose turns are told of. Of a step without a loader the first
        pass is in the turn that began last: its place is where that begins."""
        frame = near_frame() if spot in RANGES.heard else None
        if frame is None or spot_of(frame) != spot:
            return  # of a generator in the header itself
        if self._turns and self._has_passed:
            if not RANGES.turns(spot):
                self.note(begins=True)  # later turns may read what was made since
            return
        turn = spot, RANGES.turns(spot)
        must = not turn[1] or RANGES.one_ends() or self._noted_turns[spot] < 2
        if self._sparing.notes(must=must):
            self._noted_turns[spot] += (
                1  # the place before, at a pass, is not alike: see Tensors.look
            )
            now = replace(self.note(begins=not turn[1]), turn=turn)
            self._counters.leave(now.read, now.ranges, now.stack, turn[1])
        else:
            ranges = RANGES.current(self._functions)
            now = replace(_PASSED, turn=turn, ranges=ranges, over=RANGES.starts)
        self._turns = [*self._under_way(), now]

    def _under_way(self) -> list[Noted]:
        """The turns in which the loops are: each tells of one more when it ends."""
        turns = [(x, *x.turn) for x in self._turns if x.turn is not None]
        return [noted for noted, spot, before in turns if RANGES.turns(spot) == before + 1]

    def tells_turns(self, spot: Spot | None = None) -> bool:
        """Whether the turns of the innermost loop, or of that with its header at ``spot``, are
        told of; if not, they are from now on."""
        frames = script_frames()
        loop = innermost(frames) if spot is None else (frames[0].f_code, spot.line)
        return loop is not None and not RANGES.tell(*loop)

    def note(self, *, begins: bool = False, is_drawn: bool = False) -> Noted:
        """The script where it stands. ``begins``: at the first turn of a loop. ``is_drawn``: it has
        a batch already, as in the second step of a batch."""
        began = time.thread_time()
        frames = script_frames()
        noted = self._note(
            spots_of(frames), frames, begins=begins, is_drawn=is_drawn, hands_on=not is_drawn
        )
        self._sparing.took_s += time.thread_time() - began
        return noted

    def passes_again(self, draws: Sequence[LoaderIterator]) -> None:
        """A further pass of the step under way.

        If its batch was drawn since the first pass, and nothing was reduced in between, the first
        one was *idle*: a loss after the step, or a policy that collects data. It had an older batch
        or none. A step that begins at it would be one in which nobody can join, so from the next
        time on it begins none.
        """
        is_new = any(x.is_fresh for x in draws) or (bool(self._turns) and self._is_told)
        if self.begun_at and is_new and len(self.idle) < ENTRIES_MAX:
            self.idle.add(self.begun_at)
            self.begun_at = ()

    def _note(
        self,
        here: tuple[Spot, ...],
        frames: list[FrameType],
        *,
        begins: bool,
        is_drawn: bool = False,
        hands_on: bool = False,
    ) -> Noted:
        variables = [variables_of(frame) for frame in frames]
        self._script.frameworks.look(variables)
        every = self._counters.walk.with_others(frames)
        variables += [variables_of(frame) for frame in every[len(frames) :]]
        reached = self._counters.walk.walk(every, variables)
        held = self._counters.walk.held(reached)
        of_held = frames_of(held)
        if of_held:
            reached += self._counters.walk.walk(of_held)
        for to, frame, known in zip(reached, frames, variables, strict=False):
            results = handed_on(frame.f_code, frame.f_lineno, seldom=True)
            if is_drawn:
                results |= read_later(frame.f_code, frame.f_lineno)
            for name in results & known.keys():
                if is_result(known[name]):
                    to.values[name] = packed(known[name].detach())
            ways = developed(frame.f_code, frame.f_lineno) & known.keys()
            self._script.tensors.develop(to, ways - to.values.keys(), known)
        if self._script.memory is None:
            names = [handed_on(x.f_code, x.f_lineno) for x in frames]
            self._script.tensors.hand_on(reached, names, batches=hands_on)
        batches = [drawn(frame.f_code, frame.f_lineno) for frame in frames]
        batches += [set[str]() for _ in every[len(frames) :]]
        batches += [drawn(frame.f_code, frame.f_lineno) for frame in of_held]
        # What it has made of its batch would be there at two looks, as if it were kept.
        if not is_drawn or self._script.tensors.keeps_all:
            self._script.tensors.look(
                reached, batches, place=here, begins=begins, has_batch=is_drawn
            )
        read = self._counters.read(reached)
        generators = suspended.look(held)
        self._functions = {spot.name for spot in here}
        self._functions |= {x.function for x in generators if not x.draws}
        ranges, over = RANGES.current(self._functions), RANGES.over(self._functions)
        own = {f"{x.function} {path}": y for x in reached for path, y in x.generators.items()}
        own |= {x.name: y for x in OPEN.all() if (y := x.generator) is not None}
        kept = self._script.predecessor
        if kept is not None:
            kept.is_noted()
        exchanges, random = self._script.world.count, self._randomness.now(own)
        noted = Noted(here, read, ranges, exchanges, random=random, over=over)
        noted = replace(noted, opened=OPEN.positions(), held=generators)
        if kept is None:
            return noted
        noted = replace(noted, within=kept.keeper.world.count)
        return replace(noted, lengths=kept.appended.lengths(), printed=kept.printed.counts())

    def training(self) -> list[LoaderIterator]:
        """A forward pass in training: the iterators that give its batches, by their first draws.

        Those without a draw since the last step come last.
        """
        self._has_passed = True
        opened = OPEN.all()
        if OPEN.has_dim:
            self._see_dim(opened)
        found = []
        for iterator in opened:
            cursor = iterator.cursor
            if iterator.is_fresh and not iterator.is_training:  # mostly none
                self._mark_training([x for x in opened if x.is_fresh])
            if not iterator.is_training or (cursor.has_ended and iterator.is_done):
                continue
            if iterator.is_elsewhere:
                refuse_thread(iterator)
            found.append(iterator)
            cursor.begin(learns=not iterator.is_within)
            if iterator.learned != cursor.held:
                OPEN.learn(iterator)
            if iterator.is_fresh:
                self._has_drawn, self._steps_without = True, 0
        if len(found) > 1:
            found.sort(key=lambda x: (x.noted is None, 0 if x.noted is None else x.drawn_at))
        return found

    def _see_dim(self, opened: list[LoaderIterator]) -> None:
        """The model trains on batches of the first step that were drawn with gradients off, and on
        later ones of their loaders. Of a loop over other things alone turns are steps' places."""
        OPEN.has_dim = False
        if any(x.is_fresh for x in opened) or innermost(script_frames()) is None:
            for iterator in opened:
                is_known = iterator.loader in OPEN.dim or not self._steps_without
                if iterator.is_dim and is_known and not iterator.cursor.has_ended:
                    OPEN.dim.add(iterator.loader)
                    iterator.is_fresh = True

    def _mark_training(self, fresh: list[LoaderIterator]) -> None:
        """Find out whose batches the forward pass has got: of those that were drawn since the step
        before, and of those that have ended only if there is no doubt."""
        is_found = False
        for iterator in fresh:
            iterator.is_training |= not iterator.cursor.has_ended or OPEN.has_learned(iterator)
            is_found |= iterator.is_training
        if not is_found:
            ended = [it for it in fresh if it.noted is not None and not it.is_sampler]
            for iterator in sorted(ended, key=lambda x: x.drawn_at)[-1:]:
                iterator.is_training = True

    @property
    def has_drawn_next(self) -> bool:
        """Whether the script has drawn for its next step, as far as is known: from loaders that
        give training batches, or by a turn of a loop without one."""
        fresh = [x for x in OPEN.all() if x.is_fresh]
        if not fresh:
            return self._is_told and not self._has_passed and bool(self._under_way())
        return all(x.is_training or OPEN.has_learned(x) for x in fresh)

    def reduces(self, *, reduces: bool = True) -> None:
        """The step under way, which is noted, reduces gradients, or, if not, was committed."""
        began = time.thread_time()
        self._randomness.step_ended(reduces=reduces)
        self._sparing.took_s += time.thread_time() - began

    def commit(self) -> None:
        if self._randomness.is_noted:
            self.reduces(reduces=False)
        self._steps_without += 1
        self._sparing.is_noted = None
        self._turns, self._has_passed, self.begun_at = [], False, ()
        self._is_left = False
        opened = OPEN.all()
        for iterator in opened:
            if iterator.is_fresh:  # unless its first batch belongs to the next step
                iterator.is_fresh = not iterator.is_training and any(
                    x.is_training and x.loader is iterator.loader for x in opened
                )
            iterator.noted, iterator.is_dim = None, False
            iterator.cursor.commit()
        OPEN.ended_ones.clear()  # the script has dropped them, and has no batches left of them

    def begin(self, noted: Noted) -> Noted:
        """The script is noted at its first step."""
        self._script.tensors.begin()
        self.first = replace(noted, read=plain(noted.read))
        return self.first

    def begins(self) -> None:
        """The first step has begun, and the job has a life: leave what was noted at its place."""
        if self.first is not None:
            self._randomness.begins()
            self._counters.begins(self.first.ranges)

    def place(self, draws: Sequence[LoaderIterator], noted: Noted) -> Place | None:
        """The place of a step; None: it is passed, or peers can only be set to one of a later step.

        Args:
            draws: the iterators of training batches, as ``training`` gives them.
            noted: the script at the first draw from these; without such a draw, where it stands.
        """
        first = self.first
        if first is None:
            self._counters.begin(noted.read)
            first = self.begin(noted)
        if noted.is_passed:
            return None
        began = time.thread_time()
        if draws and noted is draws[0].noted:  # it knows what was open
            draws = [x for x in draws if x.began < draws[0].drawn_at]
        place = self._place(draws, noted, first)
        if place is None:
            self._counters.leave_within(noted.read, noted.ranges, noted.stack)
        if place is not None and noted.random is not None:
            self._randomness.note(noted.random, self._seeds(draws, noted))
            place = replace(place, details=self._randomness.shown(place.details))
        if place is not None and (kept := self._script.predecessor) is not None:
            kept.appended.at_place, kept.printed.at_place = noted.lengths, noted.printed
        self._sparing.took_s += time.thread_time() - began
        return place

    def _place(self, draws: Sequence[LoaderIterator], noted: Noted, first: Noted) -> Place | None:
        entry = self._entry(draws[0]) if draws else noted.stack
        is_unclear = self._is_unclear(draws) or (bool(draws) and entry is None)
        if is_unclear and self.has_place:
            return None
        self.has_place = True
        loaders = tuple(LoaderPlace(*x.numbers()) for x in draws)
        entry = entry or noted.stack
        counters, details = self._counters.note(noted.read, noted.ranges)
        begun_with = self._changed_here(first) if entry != noted.stack else {}
        return Place(
            noted.stack,
            entry,
            loaders,
            noted.ranges,
            counters,
            begun_with,
            noted.exchanges,
            details=details,
            turn=noted.turn,
            idle=tuple(self.idle),
            inner=tuple(self.inner.items()),
            over=noted.over,
            others=tuple(LoaderPlace(*x.numbers(drawn)) for x, drawn in noted.others(draws)),
            held=noted.held,
            within=noted.within,
            epochs=epochs(),
        )

    def _seeds(self, draws: Sequence[LoaderIterator], noted: Noted) -> Left:
        """What the batches of all iterators follow from, where the script was noted."""
        drawn = dict(noted.opened)
        firsts = [(x, x.cursor.first or 0) for x in draws]
        found = [(x.name, x.seeds(first, drawn.get(x.here, first))) for x, first in firsts]
        return [*found, *((x.name, x.seeds(count, count)) for x, count in noted.others(draws))]

    def numbers(
        self, draws: Sequence[LoaderIterator], functions: Collection[str]
    ) -> Numbers | None:
        """The batches that a step trains on, and the numbers of ``range`` loops in ``functions``.

        None: the step goes on with the batches of the one before, or it is not known.
        """
        if self._is_unclear(draws):
            return None
        if not draws and self._is_told:
            turn = self._turns[-1] if self._turns else None
            return ([], turn.ranges, turn.over, turn.turn) if turn is not None else None
        ranges = RANGES.current(functions)
        return [*map(_NUMBERS, draws)], ranges, RANGES.starts, None

    def _is_unclear(self, draws: Sequence[LoaderIterator]) -> bool:
        if not draws:
            return self._has_drawn and self._steps_without < PHASE_STEPS
        first, cursor = draws[0], draws[0].cursor
        is_late = first.noted is None and not cursor.is_drawn_early
        is_late |= first.is_within and not cursor.held
        return is_late or None in map(_FIRST, draws)

    def _entry(self, iterator: LoaderIterator) -> tuple[Spot, ...] | None:
        """The frames at which a newcomer, whose iterator is another one, draws for the first time.

        A loop that draws early begins its later iterators in the middle of a step, at other lines
        than the first one. So does a loop that makes an iterator when ``next`` has found the end of
        the one before. That loop is known by its second draw: it is at the lines of the first
        iterator's first draw. In another loop over the same loader it is not.

        Returns:
            None if they cannot be known yet.
        """
        if not iterator.entry or iterator.entry in self.inner:
            return self.inner.get(iterator.entry, ())
        loop: _Loop = iterator.turns
        names = _names_of(iterator.entry)
        if iterator.entry != loop.entry:
            loop.renews |= iterator.drawn_again == loop.entry
            if loop.renews:
                return loop.entry
            if not iterator.drawn_again:
                return None
        is_early = iterator.noted is None and iterator.cursor.is_drawn_early
        if not is_early or names not in self._entries:
            if len(self._entries) < ENTRIES_MAX:
                self._entries.setdefault(names, iterator.entry)
            return iterator.entry
        return self._entries[names]

    def _loop_of(self, iterator: LoaderIterator) -> _Loop:
        of_loader = self._loops.setdefault(iterator.loader, {})
        return of_loader.setdefault(_names_of(iterator.entry), _Loop(iterator.entry))

    def _changed_here(self, first: Noted) -> dict[str, Values]:
        """Of each function on the stack the values that have changed since the first step."""
        here, names = self.note(), [spot.name for spot in first.stack]
        return {
            spot.name: differing(first.read[names.index(spot.name)][1], values)
            for spot, (_, values) in zip(here.stack, plain(here.read), strict=False)
            if spot.name in names
        }


def _names_of(here: tuple[Spot, ...]) -> tuple[str, ...]:
    return tuple(spot.name for spot in here)


def matched(
    loaders: Sequence[LoaderPlace],
    first: LoaderIterator | None,
    besides: Sequence[LoaderIterator] = (),
) -> tuple[list[tuple[LoaderPlace, LoaderIterator]], list[LoaderPlace]]:
    """The iterators of this replica that are to go to its peers' places, and places without one.

    The first one is that of the step's first draw. How many other iterators are open at the same
    line may differ, because a newcomer has not evaluated yet: so the others are counted from it.
    One that the peers have begun at another line, because the one before had ended, is found by
    its loader. ``besides``: iterators that have a place already.
    """

    def is_there(iterator: LoaderIterator, place: LoaderPlace) -> bool:
        more = 0
        if first is not None and place.spot == first.spot:
            more = first.number - loaders[0].number
        return is_at(iterator, place, more)

    found: list[tuple[LoaderPlace, LoaderIterator]] = []
    left = [x for x in OPEN.all() if x is not first and all(x is not y for y in besides)]
    without = list(loaders)
    if first is not None and loaders:
        found.append((loaders[0], first))
        del without[0]
    for is_like in (is_there, is_of, _is_made_at):
        for place in tuple(without):
            alike = [x for x in left if is_like(x, place)]
            if len(alike) == 1:
                found.append((place, alike[0]))
                left.remove(alike[0])
                without.remove(place)
    return found, without


def is_at(iterator: LoaderIterator, place: LoaderPlace, more: int = 0) -> bool:
    """Whether it was begun at the same line, as the same one of those open there, but for some."""
    return (iterator.spot, iterator.number) == (place.spot, place.number + more)


def is_of(iterator: LoaderIterator, place: LoaderPlace) -> bool:
    """Whether it is over the same loader."""
    return _is_made_at(iterator, place) and iterator.made[1] == place.made_before


def made_elsewhere(place: Place) -> tuple[Spot, int, str] | None:
    """The outermost ``range`` loop that this replica has to turn, because the peers' script has
    made the loader of their step in another turn than this one's: its header, the number of their
    turn, and the reason in words. None: there is none, or it stands in that turn."""
    for theirs in place.loaders:
        alike = [x for x in OPEN.all() if _is_made_at(x, theirs)]
        own = dict(alike[-1].made_in) if alike else {}
        now = dict(RANGES.current({spot.name for spot in own})) if own else {}
        for spot, number in theirs.made_in:
            if own.get(spot, number) != number != now.get(spot, number):
                return spot, number, f"its peers have made the data loader at {theirs.made_at}"
    return None


def headed_elsewhere(place: Place) -> tuple[Spot, int, str] | None:
    """As ``made_elsewhere``, if a loop goes over other numbers than the peers', or over a generator
    that was made in another turn: its header depends on the turn of one around it."""
    now, spans = dict(RANGES.current({spot.name for spot, _ in place.ranges})), place.spans
    known = place.ranges
    inner = [x for x, taken in known if not RANGES.can_be_set(x, taken, spans.get(x))]
    is_anew = place.turn is not None and not RANGES.are_predecessors  # else it is set
    if is_anew and place.turn is not None and RANGES.is_generated(place.turn[0]):
        inner.append(place.turn[0])
    for one in inner:
        for spot, number in known:
            if spot != one and now.get(spot, number) != number:
                return spot, number, f"its peers' loop at {one} has begun"
    return None


def _is_made_at(iterator: LoaderIterator, place: LoaderPlace) -> bool:
    return iterator.made[0] == place.made_at != NOWHERE
