"""Whose value a newcomer takes: its donor's, or its predecessor's in the slot (legacy.py).

The table is ``core/worker/origins.py``; what it asks for is found out here. A predecessor's value
counts only if it belongs to the same life of the job, as it was at the step of the place. It no
longer counts if its function has been called again since, which shows in the ``range`` loops around
that function.

Not here: setting the values (counters.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import CO_GENERATOR
from typing import Any

from ftrun.base.words import first_of
from ftrun.core.worker.origins import Known, Origin, origin
from ftrun.inject.zero_edit.frames import OF_MODULE, Spot, Values, script_frames, spot_of
from ftrun.inject.zero_edit.place import Place, batches_at
from ftrun.inject.zero_edit.values.changes import NEVER
from ftrun.inject.zero_edit.values.histories import DIGEST, length_of
from ftrun.inject.zero_edit.values.kinds import (
    is_batch,
    is_container,
    is_fraction,
    is_own,
    is_renamed,
    packed,
)
from ftrun.inject.zero_edit.values.legacy import Left
from ftrun.inject.zero_edit.values.walk import KEPT
from ftrun.inject.zero_edit.values.writing import FrameVariables

Pair = tuple[int, dict[str, Values], dict[str, Values]]
"""A step, and by function the plain values of the donor and of the predecessor."""
_UNCHANGED = object()


@dataclass(frozen=True, slots=True)
class Sources:
    """The donor and the predecessor of a newcomer.

    Attributes:
        place: of the donor; ``left``: by the predecessor, in this life of the job.
        pairs: the values of both at steps at which all replicas trained.
        step_of: when this replica itself has changed a value last, by function and path.
    """

    place: Place
    left: Left | None
    pairs: Sequence[Pair]
    step_of: Callable[[str, str], int]

    def of(self, function: str, values: Values) -> tuple[Values, Values, dict[str, Origin]]:
        """The donor's ``values`` that are taken; this slot's own; the origin of each of both, in
        the order in which they have changed first."""
        place, left, pairs = self.place, self.left, self.pairs
        theirs = place.details()
        lists = {path: step for name, path, step, _ in theirs.lists if name == function}
        steps = {**theirs.changed.get(function, {}), **lists}
        before = {} if left is None else left.values.get(function, {})
        is_anew = left is not None and _is_called_anew(function, place, left.ranges)
        stands_alike = left is not None and _stand_alike(place, left.ranges)
        draws_ahead = function in _that_draw_ahead(place)
        donors, own, origins = Values(), Values(), dict[str, Origin]()
        for path in dict.fromkeys([*before, *values]):
            value, step = before.get(path, (None, NEVER))
            now = values.get(path), value
            known = Known(
                self.step_of(function, path),
                steps.get(path, NEVER),
                step,
                tuple(_then(function, path, pair) for pair in pairs),
                pairs[-1][0] if pairs else NEVER,
                left is not None,
                is_anew,
                stands_alike and not is_batch(values.get(path)),
                draws_ahead and type(values.get(path)) is bool,
                now,
                _lengths(function, path, pairs[-1], now) if pairs else (),
                bool(pairs) and path not in before and _is_new(function, path, now[0], pairs),
            )
            origins[path] = found = origin(known)
            if found is Origin.PREDECESSOR and path in before and not is_own(path):
                own[path] = value
            elif known.is_emptied and found is Origin.CONTINUED:
                donors[path] = values[path]
            elif found in (Origin.SHIFTED, Origin.CONTINUED) and path in values:
                own[path] = known.as_far_from(values[path])
            elif found in (Origin.DONOR, Origin.STAND_IN, Origin.UNSEEN) and path in values:
                donors[path] = values[path]
        given = donors.keys() | own.keys()
        return donors, own, {path: x for path, x in origins.items() if path in given}

    def names_of(self, frame: Any, function: str, donors: Values) -> Values:
        """The predecessor's texts of its set-up, where this life has others by the time: the name
        of a run, by which the script may yet make directories."""
        names = {} if self.left is None else self.left.names.get(function, {})
        here = FrameVariables(frame)
        own = {path: packed(here.value(path)) for path in names.keys() - donors.keys()}
        return {path: names[path] for path, x in own.items() if is_renamed(x, names[path])}

    def is_missed(self, function: str, path: str) -> bool:
        """Whether a value of the donor's is lost if this replica lacks what has it: not if its
        predecessor lacked that too, as a writer of rank 0."""
        if self.left is None or path in self.left.values.get(function, {}):
            return not path.endswith(DIGEST)
        known = max((step for step, *_ in self.pairs), default=NEVER)
        details = self.place.details()
        lists = {at: step for name, at, step, _ in details.lists if name == function}
        changed = {**details.changed.get(function, {}), **lists}.get(path, NEVER)
        return changed > known and not path.endswith(DIGEST)

    def differed(self, function: str, values: Values, ending: str) -> list[str]:
        """The paths with this ending among the donor's ``values`` of which donor and predecessor
        had something, and not the same, when all replicas trained last."""
        if not self.pairs:
            return []
        theirs, left = (of.get(function, {}) for of in self.pairs[-1][1:])
        found = [x for x in values if x.endswith(ending) and values[x] and theirs.get(x)]
        return [x for x in found if left.get(x) not in ("", None, theirs[x])]


@dataclass(slots=True)
class Taken:
    """The variables that a newcomer has set, in words.

    ``changed``: to its peers' values. ``of_its_own``: to its predecessor's. ``lacking``: values
    that its peers have and could not give. ``continued``: values of its own to which its donor's
    growth since is added. ``has_left``: this slot has left values on this node. ``as_of``: the step
    at which its predecessor has noted them last, before it died.
    """

    changed: list[str] = field(default_factory=list)
    of_its_own: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    continued: list[str] = field(default_factory=list)
    has_left: bool = True
    as_of: int = NEVER

    def words(self, *, is_new: bool) -> str:
        then = f", as of step {self.as_of}" if self.as_of != NEVER else ""
        told = {
            "restored from its peers": self.changed,
            f"restored from its predecessor{then}": self.of_its_own,
            "plus what its donor has added since": self.continued,
            "not restored": self.lacking,
        }
        text = "".join(f"; {what}: {first_of(names)}" for what, names in told.items() if names)
        if is_new:
            text += "; not restored: what it alone had counted, because this node has none of it"
        return text


def _then(function: str, path: str, pair: Pair) -> tuple[Any, Any]:
    """The donor's and the predecessor's value at a step; one that had not changed is like no other,
    unless it had changed on neither. Of containers digests are compared, if both have changed."""
    donors, left = (of.get(function, {}) for of in pair[1:])
    digest = path + DIGEST
    if digest in donors and digest in left:
        return donors[digest], left[digest]
    return donors.get(path, _UNCHANGED), left.get(path, _UNCHANGED)


def _is_new(function: str, path: str, now: Any, pairs: Sequence[Pair]) -> bool:
    """Whether ``now`` is a fraction, in a place that had none at the steps of ``pairs``."""
    then = (x for pair in pairs for x in _then(function, path, pair))
    return is_fraction(now) and all(x is _UNCHANGED for x in then)


def _lengths(function: str, path: str, then: Pair, now: tuple[Any, Any]) -> tuple[int, ...]:
    """``Known.lengths``."""
    digests = [of.get(function, {}).get(path + DIGEST) for of in then[1:]]
    is_known = all(digests) and all(map(is_container, now))
    return tuple(map(length_of, (*digests, *now))) if is_known else ()


def _stand_alike(place: Place, then: Mapping[Spot, int]) -> bool:
    """Whether the loops around that of the steps stand where they stood, and its loaders have not
    begun anew since: they may have no loop around, or one that is not counted (``while``)."""
    if any(then.get(batches_at(x.spot), 0) > x.drawn for x in place.loaders):
        return False
    around_it = place.ranges if place.loaders or place.turn else place.ranges[:-1]
    inner = place.turn and place.turn[0]
    return all(then.get(spot, number) == number for spot, number in around_it if spot != inner)


def _that_draw_ahead(place: Place) -> set[str]:
    """The functions between a loader and the loop that has its batches some draws later."""
    if not any(loader.held for loader in place.loaders):
        return set()
    frames = script_frames()
    codes = enumerate(frame.f_code for frame in frames)
    gives = [at for at, x in codes if x.co_flags & CO_GENERATOR or x.co_name == "__next__"]
    return {spot_of(frame).name for frame in frames[: max(gives, default=-1) + 1]}


def _is_called_anew(function: str, place: Place, ranges: Mapping[Spot, int]) -> bool:
    """Whether a ``range`` loop of a function around this one has gone on since.

    Then the variables of that call are gone. So they are if the function is off the peers' stack.
    """
    names = [spot.name for spot in place.stack]
    if function not in names:
        return function != KEPT and OF_MODULE not in function
    outer = set(names[names.index(function) + 1 :]) - {function}
    now = {spot: number for spot, number in place.ranges if spot.name in outer}
    then = {spot: number for spot, number in ranges.items() if spot.name in outer}
    return now != then
