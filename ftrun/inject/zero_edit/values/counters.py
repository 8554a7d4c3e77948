"""The script's counters and histories: those in a place, and those that a newcomer is set to.

Not here: reading and setting them (walk.py, writing.py), whose value is taken (sources.py), the
place (noting.py), the loop.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from ftrun.core.worker.origins import Origin
from ftrun.inject.zero_edit import around
from ftrun.inject.zero_edit.frames import (
    OF_MODULE,
    Spot,
    Values,
    innermost_of,
    script_frames,
    spot_of,
    stack,
)
from ftrun.inject.zero_edit.place import Details, Place
from ftrun.inject.zero_edit.values import changes, histories
from ftrun.inject.zero_edit.values.changes import NEVER, Changes
from ftrun.inject.zero_edit.values.histories import (
    DIGEST,
    Copy,
    Cut,
    copies_in,
    digests_of,
    plain_of,
    see,
)
from ftrun.inject.zero_edit.values.kinds import GONE
from ftrun.inject.zero_edit.values.legacy import Left, Legacy, left_at
from ftrun.inject.zero_edit.values.sources import Pair, Sources, Taken
from ftrun.inject.zero_edit.values.walk import CLASS, Reached, Walk
from ftrun.inject.zero_edit.values.writing import (
    is_removed,
    lacks,
    settable,
    without_gone,
    write_values,
    written,
)

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

FILE = "left-{replica_id}.{group_rank}"
TOGETHER = 4
"""Steps at which all replicas trained whose values are kept: the predecessor has the older ones."""


Read = list[tuple[str, Values]]
"""The functions and values of some frames, innermost first. Of containers the copies. Nobody
changes it."""


def plain(read: Read) -> Read:
    """The plain values alone, for one that is kept: a container may be large."""
    return [(function, plain_of(values)) for function, values in read]


class Counters:
    """The counters of one replica. For the main thread; a place's details are for any thread.

    Attributes:
        walk: reads the script.
        has_all: a place of its own predecessor's is all that it takes.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._together: deque[tuple[int, dict[str, Values]]] = deque(maxlen=TOGETHER)
        self._tried_again = self._compared_until = NEVER
        self.walk, self._changes = Walk(self._step), Changes()
        self.walk.trainer = lambda: script.frameworks.trainer
        self._path = script.file(FILE)
        self._legacy = Legacy(self._path)
        self._left_for = ""  # the life whose values are being left
        self._has_begun_anew = False  # values were set since
        self.has_all = False
        self._own: dict[str, set[str]] = {}
        self._refused: dict[str, set[str]] = {}  # of the donor's
        self.batches: Callable[[], tuple[tuple[Spot, int], ...]] = tuple  # that loaders have given
        self._within = 0, dict[str, Values]()  # the mark, and what the predecessor had there
        self._before: list[tuple[FrameType, Values]] = []
        self._made: list[
            tuple[str, str]
        ] = []  # objects that peers have made since their first step

    def _step(self) -> int:
        """How many steps are committed."""
        return self._script.manager().current_step()

    def read(self, reached: Sequence[Reached]) -> Read:
        """The script as it stands, from what its frames reach. It runs at every draw."""
        for one in reached:
            before = self._changes.before(one.function)
            for path, container in one.containers.items():
                one.values[path] = see(container, before.get(path))
            for path in before.keys() - one.values.keys() if one.dicts else ():
                if is_removed(path, one.dicts):
                    one.values[path] = GONE
        return [(x.function, x.values) for x in reached]

    def begin(self, read: Read) -> None:
        """The script before its first step: nothing has changed."""
        self.walk.begin(self._made)
        self._changes.begin(read)
        self._has_begun_anew = True

    def begins(self, ranges: tuple[tuple[Spot, int], ...]) -> None:
        """The first step has begun, at a place with these ``ranges``."""
        if life := self._script.life():
            self._left_for, self._has_begun_anew = life, False
            known, at = self._changes.known(), (*ranges, *self.batches())
            self._legacy.begin(life, known, at, self._step(), self._changes.names())

    def note(
        self, read: Read, ranges: tuple[tuple[Spot, int], ...]
    ) -> tuple[dict[str, Values], Callable[[], Details]]:
        """The script at a place: what has ever changed, and the details for peers that ask."""
        step = self._step()
        self._leave(read, ranges, self._script.life())
        ever = self._changes.changed(read)
        step_of = self._changes.step_of
        cuts = [(name, path, step_of(name, path), x) for name, path, x in copies_in(ever)]
        counters = {name: plain_of(values) for name, values in ever.items()}
        if self._together and self._together[-1][0] == step:
            self._together.pop()  # it is tried again, with other values: nobody can compare them
            self._tried_again = step
        if self._script.are_together:
            self._compared_until = step + 1  # which a peer may have noted before it died
        if step <= self._compared_until and step != self._tried_again:
            with_lists = {
                name: counters[name] | digests_of(values) for name, values in ever.items()
            }
            self._together.append((step, with_lists))
        together = list(self._together)
        return counters, partial(
            _details, self._changes.steps, step, cuts, self._script.world.given.encoded, together
        )

    def leave(
        self,
        read: Read,
        ranges: tuple[tuple[Spot, int], ...],
        here: tuple[Spot, ...],
        number: int,
    ) -> None:
        """Leave what has changed to a successor between two steps: before a batch is loaded, which
        may take long, and before an evaluation. More may change until the next step begins.

        ``here``: where the script draws. ``number``: of the batch that it draws, or of the turn."""
        if life := self._script.life():
            self._leave(read, ranges, life, _mark_of(here, ranges, number))

    def leave_within(
        self, read: Read, ranges: tuple[tuple[Spot, int], ...], here: tuple[Spot, ...]
    ) -> None:
        """Leave what has changed within a turn of several steps, where a step begins ``here``. Who
        goes through those before it again computes that by newer models."""
        if self._script.life():
            step = self._step()
            changed, mark = self._changes.note(read, step), _mark_of(here, (), step)
            at = (*ranges, *self.batches())
            self._has_begun_anew |= not self._legacy.add(step, changed, at, early_at=mark)

    def take_within(self) -> None:
        """Steps of a turn were gone through again: take what the predecessor had, if it has left
        that at this point of this step."""
        mark, values = self._within
        if values and mark == _mark_of(stack(), (), self._step()):
            self._within = 0, {}
            for function, frame in innermost_of(script_frames()).items():
                write_values(frame, values.get(function, {}))

    def _leave(
        self, read: Read, ranges: tuple[tuple[Spot, int], ...], life: str, early_at: int = 0
    ) -> None:
        step, ranges = self._step(), (*ranges, *self.batches())
        changed = self._changes.note(read, step)
        is_new = life != self._left_for or self._has_begun_anew
        if life and (is_new or not self._legacy.add(step, changed, ranges, early_at=early_at)):
            self._left_for, self._has_begun_anew = life, False
            at = NEVER if early_at else step
            self._legacy.begin(life, self._changes.known(), ranges, at, self._changes.names())
        if life:
            self._script.own.leave(step, compares=not early_at)

    def changing(self) -> list[str]:
        """The containers that have changed and do not heal, in words."""
        return [
            f"{path} ({x.kind.__name__}, {function.partition(':')[0]})"
            for function, values in self._changes.known().items()
            for path, (x, _) in values.items()
            if type(x) is Copy and not x.heals
        ]

    # ------------------------------------------------------------ passing over a loop

    def remember(self) -> None:
        """A newcomer is about to pass over a loop: what it counts on its way is undone later."""
        frames = self.walk.with_others(script_frames())
        read = self.read(self.walk.walk(frames))
        self._before = [
            (
                frame,
                {
                    path: x.packed() if type(x) is Copy else x
                    for path, x in values.items()
                    if type(x) is not Copy or x.heals
                },
            )
            for frame, (_, values) in zip(frames, read, strict=False)
        ]

    def restore(self, place: Place) -> None:
        """Set what the peers do not give at ``place`` to what it was then, in the calls that have
        not returned since."""
        self.let_go()
        before, self._before = self._before, []
        for frame, values in before:
            theirs = _given(place, spot_of(frame).name)
            write_values(frame, {path: x for path, x in values.items() if path not in theirs})

    def let_go(self) -> None:
        """Forget the calls that have returned, whose frames hold what they were given."""
        now = {id(x) for x in script_frames()}
        self._before = [
            x for x in self._before if not isinstance(x[0], FrameType) or id(x[0]) in now
        ]

    # ------------------------------------------------------------ joining

    def unlike_loops(self, place: Place) -> list[around.Loop]:
        """The loops around this newcomer that cannot be set to a place."""
        frames = script_frames()
        reached = Walk().walk([*innermost_of(frames).values()])  # whatever was there before
        here = {one.function: one.values for one in reached}
        there = {spot.name: place.counters.get(spot.name, {}) for spot in place.stack}
        return around.unlike(frames, there, here)

    def take(self, place: Place) -> Taken:
        """Set the script's variables to the place of the peers, at the state that has healed."""
        theirs = place.details()
        until = place.step
        is_own = self._script.is_in_place or self.has_all  # all of it is of its predecessor
        left = None if self._left_for or is_own else left_at(self._path, until, _mark_at(place))
        taken = Taken(lacking=list(theirs.lacking))
        taken.has_left = bool(self._left_for) or left is not None
        left = left if left is not None and left.life == self._script.life() else None
        within = left_at(self._path, until + place.behind) if left and place.behind else None
        if within is not None:
            changed = {
                function: {path: value for path, (value, step) in of.items() if step > until}
                for function, of in within.values.items()
            }
            self._within = within.early_at, changed
        pairs = [] if left is None else self._pairs(place, theirs, left)
        sources = Sources(place, left, pairs, self._changes.step_of)
        frames = self.walk.frames()
        here = innermost_of(frames)
        for function, frame in here.items():
            self._take(frame, function, _given(place, function), sources, taken)
        modules = (x.partition(OF_MODULE)[2] for x in place.counters if x not in here)
        taken.lacking += [f"the values of {x}, which it has not imported" for x in modules if x]
        self._adopt(frames, theirs, left)
        return taken

    def _take(
        self,
        frame: FrameType,
        function: str,
        values: Values,
        sources: Sources,
        taken: Taken,
    ) -> None:
        values = without_gone(settable(frame, values))
        donors, own, found = sources.of(function, values)
        own = without_gone({**sources.names_of(frame, function, donors), **own})
        made = {path: x for path, x in own.items() if path.endswith(f".{CLASS}")}
        taken.of_its_own += write_values(frame, made)  # what its donor has changed there is set too
        made.update((path, x) for path, x in donors.items() if path.endswith(f".{CLASS}"))
        self._made += [(function, path.removesuffix(f".{CLASS}")) for path in made]
        # At once, in the order in which the script has set them: that of a dict's keys is seen.
        words = written(frame, {x: own[x] if x in own else donors[x] for x in (*found, *own)})
        taken.changed += [text for path, text in words.items() if path not in own]
        mine = [text for path, text in words.items() if path in own]
        if mine and sources.left is not None:
            taken.as_of = sources.left.step
        taken.of_its_own += mine
        taken.continued += [path for path, by in found.items() if by is Origin.CONTINUED]
        stands_in = (path for path, by in found.items() if by is Origin.STAND_IN)
        unseen = [path for path, by in found.items() if by is Origin.UNSEEN]
        differ = [path for path in stands_in if not path.endswith(DIGEST)]
        differ += [x.removesuffix(DIGEST) for x in sources.differed(function, values, DIGEST)]
        taken.lacking += [f"its own {x} (ranks differ: it has its peer's)" for x in differ]
        taken.lacking += [f"its own {x} (it has its peer's, computed meanwhile)" for x in unseen]
        taken.lacking += lacks(frame, (x for x in values if sources.is_missed(function, x)))
        self._own[function] = set(own)
        self._refused[function] = {*values, *own} - {*donors}

    def _pairs(self, place: Place, theirs: Details, left: Left) -> list[Pair]:
        """The values of the donor and of the predecessor at steps at which all trained, and that
        both have noted, or have come to the same draw of. This replica may be a donor before all
        are together again."""
        is_there = left.early_at == (mark := _mark_at(place))
        noted = left.noted | ({place.step} if is_there else set())
        known = [(step, values) for step, values in theirs.together if step in noted]
        pairs = [
            (step, values, then.compared())
            for step, values in known
            if (then := left_at(self._path, step, mark)) is not None
        ]
        self._together.extend((step, own) for step, _, own in pairs)
        return pairs[-2:]

    def _adopt(self, frames: list[FrameType], theirs: Details, left: Left | None) -> None:
        """Go on from what has been set, as if this worker had changed it when others did."""
        self.begin(self.read(self.walk.walk(frames)))
        self._changes.adopt(theirs.changed)
        for name, path, step, _ in theirs.lists:
            self._changes.adopt({name: {path: step}})
        left_values = {} if left is None else left.values
        for function, paths in self._own.items():
            values = left_values.get(function, {})
            self._changes.adopt({function: {p: values[p][1] for p in paths if p in values}})

    def set_generator(self, place: Place, frame: Any) -> None:
        """A generator of the script's begins, which had begun before this ``place``."""
        write_values(frame, _given(place, spot_of(frame).name))

    def set_begun_with(self, begun_with: Mapping[str, Values]) -> None:
        """The newcomer's first step begins: the script has set counters on its way here."""
        for function, frame in innermost_of(script_frames()).items():
            values, refused = begun_with.get(function, {}), self._refused.get(function, set())
            write_values(frame, {path: x for path, x in values.items() if path not in refused})


@lru_cache(maxsize=256)
def _mark_of(here: tuple[Spot, ...], ranges: tuple[tuple[Spot, int], ...], number: int) -> int:
    """Of one draw: the draw that finds the end of a loader is at the lines of the next first one,
    and what is in between (an evaluation) changes values."""
    return zlib.crc32(repr((here, ranges, number)).encode())


def _mark_at(place: Place) -> int:
    """Of the draw of a place."""
    number = place.loaders[0].drawn if place.loaders else place.turn[1] if place.turn else 0
    return _mark_of(place.stack, place.ranges, number)


def _given(place: Place, function: str) -> Values:
    lists = {path: x for name, path, _, x in place.details().lists if name == function}
    return {**place.counters.get(function, {}), **lists}


def _details(
    steps: changes.Steps,
    until: int,
    cuts: Sequence[Cut],
    last: Callable[[], dict[str, list[str]]],
    together: list[tuple[int, dict[str, Values]]],
) -> Details:
    """The details of a place. In any thread."""
    lists, lacking = histories.within_limits(cuts)
    changed = changes.copied(steps, until)
    for function, path, *_ in cuts:
        changed[function].pop(path, None)  # the step stands with the container, if that is given
    return Details(changed, lists, lacking, last(), together)
