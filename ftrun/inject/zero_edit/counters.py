"""The script's counters and histories: those in a place, and those that a newcomer takes.

A newcomer takes each value from its donor or from its predecessor in the slot (legacy.py), by the
table of ``core/worker/origins.py``. A predecessor's value counts only if it belongs to the same
life of the job, as it was at the step of the place. It no longer counts if its function has been
called again since, which shows in the ``range`` loops around that function.

Not here: reading and setting them (frames.py, writing.py), the place (noting.py), the loop.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

from ftrun.core.worker.origins import Known, Origin, origin
from ftrun.inject.zero_edit import around, changes, histories
from ftrun.inject.zero_edit.changes import NEVER, Changes
from ftrun.inject.zero_edit.frames import (
    DICTS,
    Spot,
    Values,
    is_loop_package,
    is_own,
    read_values,
    script_frames,
    spot_of,
    variables_of,
)
from ftrun.inject.zero_edit.frameworks import Frameworks
from ftrun.inject.zero_edit.held import Held
from ftrun.inject.zero_edit.histories import Cut, Histories, Packed, Seen, see
from ftrun.inject.zero_edit.legacy import Left, Legacy, left_at
from ftrun.inject.zero_edit.place import Details, Place
from ftrun.inject.zero_edit.single import is_single, is_tensor
from ftrun.inject.zero_edit.world.kept import Given
from ftrun.inject.zero_edit.writing import lacks, write_values
from ftrun.training.context import WorkerContext

TOLD_MAX = 12
FRAMEWORK = ""
"""Stands for a function's name, for the values that a framework keeps."""
FILE = "left-{replica_id}.{group_rank}"
_Pair = tuple[int, dict[str, Values], dict[str, dict[str, tuple[Any, int]]]]
"""A step, and by function the values of the donor and of the predecessor."""
_UNCHANGED = object()
TOGETHER = 4
"""Steps at which all replicas trained whose values are kept: the predecessor has the older ones."""


@dataclass(slots=True)
class Read:
    """Plain values and containers of some frames, innermost first; then a framework's.

    Nobody changes it. (A frozen one takes three times as long, and each draw makes one.)
    """

    functions: tuple[str, ...] = ()
    values: tuple[Values, ...] = ()
    containers: tuple[dict[str, Seen], ...] = ()

    def without_containers(self) -> Read:
        """The plain values alone, for one that is kept: a container may be large."""
        return Read(self.functions, self.values)

    def plain(self) -> Iterable[tuple[str, Values]]:
        """The plain values by function."""
        return zip(self.functions, self.values, strict=True)

    def seen(self) -> Iterable[tuple[str, dict[str, Seen]]]:
        """The containers by function."""
        return zip(self.functions, self.containers, strict=False)


@dataclass(slots=True)
class Taken:
    """The variables that a newcomer has set, in words.

    ``changed``: to its peers' values. ``of_its_own``: to its predecessor's. ``lacking``: values
    that its peers have and could not give. ``continued``: values of its own to which its donor's
    growth since is added. ``has_left``: this slot has left values on this node.
    """

    changed: list[str] = field(default_factory=list)
    of_its_own: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    continued: list[str] = field(default_factory=list)
    has_left: bool = True

    def words(self, *, is_new: bool) -> str:
        """A description for people. ``is_new``: the slot has not run on this node before."""
        text = f"; set: {_some(self.changed)}" if self.changed else ""
        text += f"; of its own: {_some(self.of_its_own)}" if self.of_its_own else ""
        text += (
            f"; with what its donor added since: {_some(self.continued)}" if self.continued else ""
        )
        text += f"; not carried: {_some(self.lacking)}" if self.lacking else ""
        if is_new:
            text += "; what it alone had counted is not carried: nothing of it is on this node"
        return text


class Counters:
    """The counters of one replica. For the main thread; a place's details are for any thread.

    Args:
        here: this worker.
        frameworks: the trainer that runs the script's loop, if a framework does.
        step: how many steps are committed; ``life``: of the job, "" before the first step.
        last: what was given by broadcasts, which newcomers get with the details of a place.
        are_together: whether all replicas train in the step under way.
    """

    def __init__(
        self,
        here: WorkerContext,
        frameworks: Frameworks,
        step: Callable[[], int],
        life: Callable[[], str],
        last: Given,
        are_together: Callable[[], bool] = lambda: False,
    ) -> None:
        self._frameworks, self._are_together = frameworks, are_together
        self._together: deque[tuple[int, dict[str, Values]]] = deque(maxlen=TOGETHER)
        self._tried_again = NEVER
        self._step, self._life, self._last = step, life, last
        self._changes, self._histories, self._held = Changes(), Histories(), Held()
        name = FILE.format(replica_id=here.replica_id, group_rank=here.group_rank)
        self._path = Path(here.socket_path).parent / name
        self._legacy = Legacy(self._path)
        self._left_for = ""  # the life whose values are being left
        self._own: dict[str, set[str]] = {}
        self._before: list[tuple[FrameType, Values, dict[str, Packed]]] = []

    def read(
        self,
        here: Sequence[Spot],
        frames: Sequence[FrameType],
        variables: Sequence[dict[str, Any]] | None = None,
    ) -> Read:
        """The script as it stands ``here``, with its frames' variables. It runs at every draw."""
        values, containers = [], []
        known = variables or [variables_of(frame) for frame in frames]
        step = self._step()
        for spot, frame, own in zip(here, frames, known, strict=True):
            found: dict[str, Any] = {}
            plain = read_values(frame, found, own)
            if not is_loop_package(frame.f_code.co_filename):
                self._held.read(spot.name, own, step, plain, found)
            values.append(plain)
            containers.append({p: see(x) for p, x in found.items() if not _has_tensors(x)})
        values.append(self._frameworks.values())
        return Read((*[spot.name for spot in here], FRAMEWORK), tuple(values), tuple(containers))

    def begin(self, read: Read) -> None:
        """The script before its first step: nothing has changed."""
        self._held.begin()
        self._changes.begin(read.plain())
        self._histories.begin(read.seen())

    def note(
        self, read: Read, ranges: tuple[tuple[Spot, int], ...]
    ) -> tuple[tuple[Values, ...], Callable[[], Details]]:
        """The script at a place: what has ever changed, and the details for peers that ask."""
        step = self._step()
        changed = self._changes.note(read.plain(), step)
        cuts, grown = self._histories.note(read.seen(), step)
        life = self._life()
        is_new = life != self._left_for
        if life and (is_new or not self._legacy.add(step, changed, grown, ranges)):
            self._leave(life, ranges)
        counters = self._changes.changed(read.plain())
        if self._together and self._together[-1][0] == step:
            self._together.pop()  # it is tried again, with other values: nobody can compare them
            self._tried_again = step
        if self._are_together() and step != self._tried_again:
            inner_last = [*zip(read.functions, counters, strict=True)][::-1]
            self._together.append((step, dict(inner_last)))
        together = list(self._together)
        return counters, partial(_details, self._changes.steps, step, cuts, self._last, together)

    def _leave(self, life: str, ranges: tuple[tuple[Spot, int], ...]) -> None:
        self._left_for = life
        self._legacy.begin(life, self._changes.known(), self._histories.all(), ranges)

    # ------------------------------------------------------------ passing over a loop

    def remember(self) -> None:
        """A newcomer is about to pass over a loop: what it counts on its way is undone later."""
        frames = script_frames()
        read = self.read([spot_of(frame) for frame in frames], frames)
        self._before = [
            (frame, dict(values), _short_lists(containers))
            for frame, values, containers in zip(frames, read.values, read.containers, strict=False)
        ]

    def restore(self, place: Place) -> None:
        """Set what the peers do not give at ``place`` to what it was then, in the calls that have
        not returned since."""
        before, self._before = self._before, []
        given = {name: set(values) for name, values in _by_function(place).items()}
        for name, path, _, _ in place.details().lists if before else ():
            given.setdefault(name, set()).add(path)
        now = script_frames()
        for frame, values, lists in before:
            if any(frame is x for x in now):
                theirs = given.get(spot_of(frame).name, set())
                plain = {path: value for path, value in values.items() if path not in theirs}
                rest = {path: packed for path, packed in lists.items() if path not in theirs}
                write_values(frame, plain, rest)

    # ------------------------------------------------------------ joining

    def unlike_loops(self, place: Place) -> list[around.Loop]:
        """The loops around this newcomer that cannot be set to a place."""
        frames = script_frames()
        here = {spot_of(frame).name: read_values(frame) for frame in reversed(frames)}
        return around.unlike(frames, _by_function(place), here)

    def take(self, place: Place) -> Taken:
        """Set the script's variables to the place of the peers, at the state that has healed."""
        theirs = place.details()
        until = place.since(self._step())
        left = None if self._left_for else left_at(self._path, until)
        taken = Taken(lacking=list(theirs.lacking))
        taken.has_left = bool(self._left_for) or left is not None
        left = left if left is not None and left.life == self._life() else None
        pairs = [] if left is None else self._pairs(theirs, left)
        given = _by_function(place)
        frames = script_frames()
        seen: set[str] = set()
        for frame in frames:
            function = spot_of(frame).name
            if function not in seen:
                seen.add(function)
                self._take(frame, function, given.get(function, {}), place, left, pairs, taken)
        for values in place.counters[len(place.stack) :]:
            donors, own, _ = self._origins(FRAMEWORK, values, place, left, ())
            taken.changed += self._frameworks.write(donors)
            taken.of_its_own += self._frameworks.write(own)
        self._adopt(frames, theirs, left)
        return taken

    def _take(
        self,
        frame: FrameType,
        function: str,
        values: Values,
        place: Place,
        left: Left | None,
        pairs: Sequence[_Pair],
        taken: Taken,
    ) -> None:
        theirs = place.details()
        donors, own, found = self._origins(function, values, place, left, pairs)
        own_lists = self._own_lists(function, place, left)
        lists = {
            path: packed
            for name, path, step, packed in theirs.lists
            if name == function
            and path not in own_lists
            and self._histories.steps().get((name, path), NEVER) <= step
        }
        taken.changed += write_values(frame, donors, lists)
        taken.of_its_own += write_values(frame, own, own_lists)
        taken.continued += [path for path, by in found.items() if by is Origin.CONTINUED]
        taken.lacking += [
            f"its own {path} (ranks differ: it has its peer's)"
            for path, by in found.items()
            if by is Origin.STAND_IN
        ]
        taken.lacking += lacks(frame, [*values, *lists])
        self._own[function] = {*own, *own_lists}

    def _pairs(self, theirs: Details, left: Left) -> list[_Pair]:
        """The values of the donor and of the predecessor at steps at which all trained, and that
        both have noted. This replica may be a donor before all are together again."""
        known = [(step, values) for step, values in theirs.together if step in left.noted]
        pairs = [
            (step, values, then.values)
            for step, values in known
            if (then := left_at(self._path, step)) is not None
        ]
        self._together.extend(
            (step, {name: {path: x for path, (x, _) in of.items()} for name, of in own.items()})
            for step, _, own in pairs
        )
        return pairs[-2:]

    def _origins(
        self,
        function: str,
        values: Values,
        place: Place,
        left: Left | None,
        pairs: Sequence[_Pair],
    ) -> tuple[Values, Values, dict[str, Origin]]:
        """The donor's values that are taken, and this slot's own; the origin of each of both."""
        steps = place.details().changed.get(function, {})
        before = {} if left is None else left.values.get(function, {})
        is_anew = left is not None and _is_called_anew(function, place, left.ranges)
        stands_alike = left is not None and _stand_alike(place, left.ranges)
        draws_ahead = function in _that_draw_ahead(place)
        donors, own, origins = Values(), Values(), dict[str, Origin]()
        for path in dict.fromkeys([*values, *before]):
            value, step = before.get(path, (None, NEVER))
            known = Known(
                self._changes.step_of(function, path),
                steps.get(path, NEVER),
                step,
                tuple(_then(function, path, pair) for pair in pairs),
                pairs[-1][0] if pairs else NEVER,
                left is not None,
                function == FRAMEWORK,
                is_anew,
                stands_alike,
                draws_ahead and type(values.get(path)) is bool,
            )
            origins[path] = found = origin(known)
            if found is Origin.PREDECESSOR and path in before and not is_own(path):
                own[path] = value
            elif found in (Origin.SHIFTED, Origin.CONTINUED) and path in values:
                own[path] = known.as_far_from(values[path])
            elif found in (Origin.DONOR, Origin.STAND_IN) and path in values:
                donors[path] = values[path]
        return donors, own, {path: origins[path] for path in (*donors, *own)}

    def _own_lists(self, function: str, place: Place, left: Left | None) -> dict[str, Packed]:
        if left is None or _is_called_anew(function, place, left.ranges):
            return {}
        theirs = place.details()
        steps = {path: step for name, path, step, _ in theirs.lists if name == function}
        return {
            path: packed
            for (name, path), (packed, step) in left.lists.items()
            if name == function and steps.get(path, NEVER) < step and not is_own(path)
        }

    def _adopt(self, frames: list[FrameType], theirs: Details, left: Left | None) -> None:
        """Go on from what has been set, as if this worker had changed it when others did."""
        self.begin(self.read([spot_of(frame) for frame in frames], frames))
        self._changes.adopt(theirs.changed)
        self._histories.adopt({(name, path): step for name, path, step, _ in theirs.lists})
        if left is None:
            return
        for function, paths in self._own.items():
            values = left.values.get(function, {})
            self._changes.adopt({function: {p: values[p][1] for p in paths if p in values}})
            keys = ((function, path) for path in paths)
            self._histories.adopt({k: left.lists[k][1] for k in keys if k in left.lists})

    def set_begun_with(self, begun_with: Mapping[str, Values]) -> None:
        """The newcomer's first step begins: the script has set counters on its way here."""
        left = dict(begun_with)
        for frame in script_frames() if left else ():
            function = spot_of(frame).name
            values = left.pop(function, {})
            own = self._own.get(function, set())
            write_values(frame, {path: x for path, x in values.items() if path not in own})


def _short_lists(containers: Mapping[str, Seen]) -> dict[str, Packed]:
    return {
        path: histories.packed_values(type(seen.container), seen.values)
        for path, seen in containers.items()
        if seen.values is not None
    }


def _has_tensors(container: Any) -> bool:
    """Whether a container may be a batch, whose memory the script wants back."""
    values = container.values() if type(container) in DICTS else container
    first = next(iter(values), None)
    return is_tensor(cast(Hashable, type(first))) and not is_single(first)


def _some(names: list[str]) -> str:
    more = len(names) - TOLD_MAX
    return ", ".join(names[:TOLD_MAX]) + (f" and {more} more" if more > 0 else "")


def _by_function(place: Place) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for spot, values in zip(place.stack, place.counters, strict=False):
        found.setdefault(spot.name, values)
    return found


def _then(function: str, path: str, pair: _Pair) -> tuple[Any, Any]:
    """The donor's and the predecessor's value at a step; one that had not changed is like no other,
    unless it had changed on neither."""
    _, donors, left = pair
    there = donors.get(function, {}).get(path, _UNCHANGED)
    here, _ = left.get(function, {}).get(path, (_UNCHANGED, NEVER))
    return there, here


def _stand_alike(place: Place, then: Mapping[Spot, int]) -> bool:
    """Whether the loops around that of the steps stand where they stood."""
    around_it = place.ranges if place.loaders or place.turn else place.ranges[:-1]
    inner = place.turn and place.turn[0]
    return all(then.get(spot, number) == number for spot, number in around_it if spot != inner)


def _that_draw_ahead(place: Place) -> set[str]:
    """The functions between a loader and the loop that has its batches some draws later."""
    if not any(loader.held for loader in place.loaders):
        return set()
    frames = script_frames()
    draw = [at for at, frame in enumerate(frames) if _gives_items(frame)]
    return {spot_of(frame).name for frame in frames[: max(draw, default=-1) + 1]}


def _gives_items(frame: FrameType) -> bool:
    is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
    return bool(is_generator) or frame.f_code.co_name == "__next__"


def _is_called_anew(function: str, place: Place, ranges: Mapping[Spot, int]) -> bool:
    """Whether a ``range`` loop of a function around this one has gone on since.

    Then the variables of that call are gone. So they are if the function is off the peers' stack.
    """
    names = [spot.name for spot in place.stack]
    if function not in names:
        return function != FRAMEWORK
    outer = set(names[names.index(function) + 1 :]) - {function}
    now = {spot: number for spot, number in place.ranges if spot.name in outer}
    then = {spot: number for spot, number in ranges.items() if spot.name in outer}
    return now != then


def _details(
    steps: changes.Steps,
    until: int,
    cuts: tuple[Cut, ...],
    last: Given,
    together: list[tuple[int, dict[str, Values]]],
) -> Details:
    """The details of a place. In any thread."""
    lists, lacking = histories.within_limits(cuts)
    return Details(changes.copied(steps, until), lists, lacking, last.encoded(), together)
