"""A replica's place in the script: what a newcomer needs to stand where its peers stand.

Pure records and their JSON. Not here: a place read from the script (noting.py), or set (moving.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ftrun.inject.zero_edit.frames import GENERATOR, NOWHERE, Spot, Values

Moved = tuple[tuple[str, Any, Any], ...]
"""Names of facts, and for each two values (``LoaderIterator.moved``)."""


@dataclass(frozen=True, slots=True)
class LoaderPlace:
    """One open iterator of a loader that gives training batches.

    ``spot``: where the script began to iterate; ``number``: which of those open there, from 0.
    ``epoch``: of its sampler; None: the sampler has none. ``drawn``: the number of the first batch
    that the next step trains on. ``held``: how far the loop draws ahead (cursor.py). ``made_at``:
    where the script made the loader; ``made_before``: how many it had made there before.
    ``moved``: facts of its sampler that change: as it began, and at this place. ``is_dim``: its
    batches are drawn with gradients off. ``dropped``: its first batches that no loop has given.
    ``made_in``: the number that each ``range`` loop around had taken when the loader was made,
    outermost first.
    """

    spot: Spot
    number: int
    epoch: int | None
    drawn: int
    held: int | None = None
    made_at: Spot = NOWHERE
    made_before: int = 0
    moved: Moved = field(default=(), compare=False)
    is_dim: bool = field(default=False, compare=False)
    dropped: int = field(default=0, compare=False)
    made_in: tuple[tuple[Spot, int], ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """By which what its batches follow from is found."""
        return f"{self.spot} {self.number} {self.made_at} {self.made_before}"


def batches_at(spot: Spot) -> Spot:
    """Under which a worker leaves how many batches of a loader it has trained on."""
    return Spot(f"batches {spot.name}", spot.line)


Over = tuple[tuple[Spot, range | int], ...]
"""For each loop over a ``range`` what it goes over, and for each over an ``enumerate`` the number
with which that has begun."""
Numbers = tuple[list[tuple[Any, ...]], tuple[tuple[Spot, int], ...], Over, tuple[Spot, int] | None]
"""For each loader the fields of a LoaderPlace; for each ``range`` loop its last number; the first
number of each ``enumerate``; and the turn, if there is no loader."""


@dataclass(frozen=True, slots=True)
class Details:
    """The part of a place that only a newcomer needs.

    ``changed``: the step at which each value has changed last, by function and path. ``lists``:
    containers, as function, path, that step, and the packed values (histories.py). ``lacking``:
    containers that have changed and do not heal, in words. ``given``: by
    broadcasts (world/kept.py). ``together``: steps at which all replicas trained, and the values
    then, by function. ``random``: the states of random generators (randomness.py).
    """

    changed: dict[str, dict[str, int]] = field(default_factory=dict)
    lists: list[list[Any]] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    given: dict[str, list[str]] = field(default_factory=dict)
    together: list[tuple[int, dict[str, Values]]] = field(default_factory=list)
    random: list[Any] = field(default_factory=list)


NO_DETAILS = Details()


@dataclass(frozen=True, slots=True)
class Place:
    """Where the script stands at the boundary of a step.

    ``stack``: the script's frames at the first draw since the last step, innermost first.
    ``counters``: by function, there or held, and by module of the script's, the plain values that
    have ever changed since the first step.
    ``details``: the part that only a newcomer needs.
    ``begun_with``: the counters, by function, at the point where the step has begun; empty unless a
    newcomer comes to that point by other lines. ``entry``: the frames at which the loader's first
    batch was drawn, where a newcomer joins. ``ranges``: the number that each ``range`` loop around
    has taken last; ``over``: what it goes over, if the place was noted, and with which number each
    ``enumerate`` has begun. ``turn``: without a loader,
    the innermost loop, and how many of its turns had begun: a newcomer joins where the next one
    begins. ``exchanges``: the script's collectives before this place; ``calls``: what those since
    were given, before the step of this place.
    ``has_finished``: the script has come to its end, ``commits`` steps after this place. Else
    ``commits`` is the number of steps by which the counters are older than loaders and ranges.
    ``idle``: of passes that begin no step; ``inner``: of draws within a turn, each with that of its
    first draw (noting.py).
    ``behind``: the steps that were taken since with the batches of this place, as in a loop that
    trains two models with each batch. ``step``: how many were committed at this place; ``empty``:
    in all, how many of those committed up to now were no steps of the script's (inside.py).
    ``others``: iterators that are open and give no batches of training steps, as far as is known,
    where ``drawn`` counts all batches that each has given. ``held``: the fields of each generator
    of Python's that the script holds (suspended.py). ``within``: as ``exchanges``, of the calls
    inside this replica. ``epochs``: of the samplers of all loaders. ``again``: where all begin
    again from here: so many calls of the script's
    they make again until the state is that of the steps ``behind``.
    """

    stack: tuple[Spot, ...] = ()
    entry: tuple[Spot, ...] = ()
    loaders: tuple[LoaderPlace, ...] = ()
    ranges: tuple[tuple[Spot, int], ...] = ()
    counters: Mapping[str, Values] = field(default_factory=dict, hash=False)
    begun_with: Mapping[str, Values] = field(default_factory=dict, hash=False)
    exchanges: int = field(default=0, compare=False, hash=False)
    has_finished: bool = False
    commits: int = 0
    behind: int = 0
    details: Callable[[], Details] = field(default=lambda: NO_DETAILS, compare=False, hash=False)
    calls: Sequence[Sequence[Any]] = field(default=(), compare=False, hash=False)
    turn: tuple[Spot, int] | None = None
    idle: tuple[tuple[Spot, ...], ...] = field(default=(), compare=False, hash=False)
    inner: tuple[tuple[tuple[Spot, ...], ...], ...] = field(default=(), compare=False, hash=False)
    over: Over = field(default=(), compare=False, hash=False)
    step: int = field(default=0, compare=False, hash=False)
    empty: int = field(default=0, compare=False, hash=False)
    others: tuple[LoaderPlace, ...] = field(default=(), compare=False, hash=False)
    held: tuple[tuple[Any, ...], ...] = field(default=(), compare=False, hash=False)
    within: int = field(default=0, compare=False, hash=False)
    again: int = field(default=0, compare=False, hash=False)
    epochs: tuple[tuple[Spot, int, int], ...] = field(default=(), compare=False, hash=False)

    def encode(self) -> str:
        """As JSON."""
        known = {x.name: getattr(self, x.name) for x in fields(self)}
        details = [getattr(self.details(), x.name) for x in fields(Details)]
        return json.dumps({**known, "details": details}, default=_parts)

    @staticmethod
    def decode(text: str) -> Place:
        """The place that ``encode`` has written."""
        known = json.loads(text, object_hook=_record)
        details = Details(*known.pop("details"))
        return Place(details=lambda: details, **{name: _tuples(x) for name, x in known.items()})

    def among(self, before: int, now: int) -> Place:
        """The same place in the data among another number of replicas.

        A sampler deals the same order to all, so as many batches are behind ``now`` replicas as
        they would have taken together; of a last one that they have taken in part, some samples
        come twice.
        """
        if before == now:
            return self
        loaders, others = (
            tuple(replace(x, drawn=x.drawn * before // now) for x in places)
            for places in (self.loaders, self.others)
        )
        return replace(self, loaders=loaders, others=others)

    def for_peers(self, is_far: Callable[[str, str], bool]) -> Place:
        """The same without what is for this worker's own successor alone: values of which
        ``is_far`` is true, by function and path."""

        def near(known: Mapping[str, Any]) -> dict[str, Any]:
            return {
                function: {path: x for path, x in values.items() if not is_far(function, path)}
                for function, values in known.items()
            }

        def details() -> Details:
            all_of = self.details()
            lists = [x for x in all_of.lists if not is_far(x[0], x[1])]
            together = [(step, near(values)) for step, values in all_of.together]
            return replace(all_of, changed=near(all_of.changed), lists=lists, together=together)

        begun_with, counters = near(self.begun_with), near(self.counters)
        return replace(self, counters=counters, begun_with=begun_with, details=details)

    @property
    def spans(self) -> dict[Spot, range]:
        """What each loop over a ``range`` goes over."""
        return {spot: x for spot, x in self.over if isinstance(x, range)}

    @property
    def taken(self) -> int:
        """The steps that the peers have taken since, with its batches or to their end: a replica
        that has healed to it goes through these once more."""
        return self.commits if self.has_finished else self.behind

    def words(self, without: Sequence[LoaderPlace] = ()) -> str:
        """For people. ``without``: loaders that a newcomer has not, or not set there."""
        if self.has_finished:
            return "the end of the script"
        parts = [f"index {number} of the loop at {spot}" for spot, number in self.ranges]
        if self.turn is not None and self.turn[0] not in dict(self.ranges):
            parts.append(f"item {self.turn[1]} of the loop at {self.turn[0]}")
        for loader in (x for x in self.loaders if x not in without):
            epoch = "" if loader.epoch is None else f"epoch {loader.epoch}, "
            parts.append(f"{epoch}batch {loader.drawn} of the data loader at {loader.spot}")
        return ", ".join(parts) or "its training loop"


_RECORDS: Mapping[str, type] = {"spot": Spot, "loader": LoaderPlace, "range": range}


def _parts(record: Any) -> dict[str, list[Any]]:
    """A record inside a place, as JSON has it."""
    if type(record) is range:
        return {"range": [record.start, record.stop, record.step]}
    name = "spot" if type(record) is Spot else "loader"
    return {name: [getattr(record, x.name) for x in fields(record)]}


def _record(found: dict[str, Any]) -> Any:
    """What ``_parts`` was given; a dict that is none stays."""
    [name, *more] = found or [""]
    is_record = not more and name in _RECORDS and type(found[name]) is list
    return _RECORDS[name](*found[name]) if is_record else found


def _tuples(value: Any) -> Any:
    """A field of a place: tuples all the way, but in the values of the script."""
    return tuple(map(_tuples, value)) if type(value) is list else value


def digest(stack: Sequence[Spot]) -> str:
    """A short name of a stack, for comparison.

    It begins where the script draws from its innermost generators: one rank alone may go through
    its loader in one, as rank 0 that shows its progress.
    """
    inner = next((at for at, spot in enumerate(stack) if spot.column != GENERATOR), 0)
    columns = [0, *(spot.column for spot in stack[inner + 1 :])]
    lines = zip(stack[inner:], columns, strict=True)
    text = "|".join(f"{spot.name}:{spot.line}:{column}" for spot, column in lines)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def summary(place: Place) -> str:
    """The text of ``Progress.position``, for people: 512 characters at most."""
    return place.words()[:512]
