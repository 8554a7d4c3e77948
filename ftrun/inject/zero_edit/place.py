"""A replica's place in the script: what a newcomer needs to stand where its peers stand.

Pure records and their JSON. Not here: a place read from the script (noting.py), or set (moving.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ftrun.inject.zero_edit.frames import NOWHERE, Spot, Values


@dataclass(frozen=True, slots=True)
class LoaderPlace:
    """One open iterator of a loader that gives training batches.

    ``spot``: where the script began to iterate; ``number``: which of those open there, from 0.
    ``epoch``: of its sampler; None: the sampler has none. ``drawn``: the number of the first batch
    that the next step trains on. ``held``: how far the loop draws ahead (cursor.py). ``made_at``:
    where the script made the loader; ``made_before``: how many it had made there before.
    """

    spot: Spot
    number: int
    epoch: int | None
    drawn: int
    held: int | None = None
    made_at: Spot = NOWHERE
    made_before: int = 0

    def encode(self) -> list[Any]:
        """As JSON has it."""
        made = [_spot(self.made_at), self.made_before]
        return [_spot(self.spot), self.number, self.epoch, self.drawn, self.held, *made]

    @staticmethod
    def decode(known: Sequence[Any]) -> LoaderPlace:
        """Read what ``encode`` has made. An older ftrun's may lack where the loader was made."""
        spot, number, epoch, drawn, held, *made = known
        at, before = made if made else (_spot(NOWHERE), 0)
        return LoaderPlace(Spot(*spot), number, epoch, drawn, held, Spot(*at), before)


Numbers = tuple[list[tuple[Any, ...]], tuple[tuple[Spot, int], ...], tuple[Spot, int] | None]
"""For each loader the fields of a LoaderPlace; for each ``range`` loop its last number; and the
turn, if there is no loader."""


@dataclass(frozen=True, slots=True)
class Details:
    """The part of a place that only a newcomer needs.

    ``changed``: the step at which each value has changed last, by function and path. ``lists``:
    containers, as function, path, that step, and the packed values (histories.py). ``lacking``:
    containers that have changed and do not heal, in words. ``given``: by
    broadcasts (world/kept.py). ``together``: steps at which all replicas trained, and the values
    then, by function.
    """

    changed: dict[str, dict[str, int]] = field(default_factory=dict)
    lists: list[list[Any]] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    given: dict[str, list[str]] = field(default_factory=dict)
    together: list[tuple[int, dict[str, Values]]] = field(default_factory=list)


NO_DETAILS = Details()


@dataclass(frozen=True, slots=True)
class Place:
    """Where the script stands at the boundary of a step.

    ``stack``: the script's frames at the first draw since the last step, innermost first.
    ``counters``: for each of them the plain values that have ever changed since the first step,
    and then those of a framework. ``details``: the part that only a newcomer needs.
    ``begun_with``: the counters, by function, at the point where the step has begun; empty unless a
    newcomer comes to that point by other lines. ``entry``: the frames at which the loader's first
    batch was drawn, where a newcomer joins. ``ranges``: the number that each ``range`` loop around
    has taken last; ``over``: what it goes over, if the place was noted. ``turn``: without a loader,
    the innermost loop, and how many of its turns had begun: a newcomer joins where the next one
    begins. ``exchanges``: the script's collectives before this place; ``calls``: what those since
    were given, before the step of this place.
    ``has_finished``: the script has come to its end, ``commits`` steps after this place. Else
    ``commits`` is the number of steps by which the counters are older than loaders and ranges.
    ``idle``: of passes that begin no step (noting.py).
    ``behind``: the steps that were taken since with the batches of this place, as in a loop that
    trains two models with each batch.
    """

    stack: tuple[Spot, ...] = ()
    entry: tuple[Spot, ...] = ()
    loaders: tuple[LoaderPlace, ...] = ()
    ranges: tuple[tuple[Spot, int], ...] = ()
    counters: tuple[Values, ...] = field(default=(), hash=False)
    begun_with: tuple[tuple[str, Values], ...] = field(default=(), hash=False)
    exchanges: int = field(default=0, compare=False, hash=False)
    has_finished: bool = False
    commits: int = 0
    behind: int = 0
    details: Callable[[], Details] = field(default=lambda: NO_DETAILS, compare=False, hash=False)
    calls: Sequence[Sequence[Any]] = field(default=(), compare=False, hash=False)
    turn: tuple[Spot, int] | None = None
    idle: tuple[tuple[Spot, ...], ...] = field(default=(), compare=False, hash=False)
    over: tuple[tuple[Spot, range], ...] = field(default=(), compare=False, hash=False)

    def encode(self) -> str:
        """As JSON."""
        details = self.details()
        return json.dumps(
            {
                "stack": [_spot(spot) for spot in self.stack],
                "entry": [_spot(spot) for spot in self.entry],
                "loaders": [x.encode() for x in self.loaders],
                "ranges": [[_spot(spot), number] for spot, number in self.ranges],
                "over": [[_spot(x), y.start, y.stop, y.step] for x, y in self.over],
                "counters": list(self.counters),
                "begun_with": list(self.begun_with),
                "exchanges": self.exchanges,
                "has_finished": self.has_finished,
                "commits": self.commits,
                "behind": self.behind,
                "calls": [list(x) for x in self.calls],
                "turn": self.turn and [_spot(self.turn[0]), self.turn[1]],
                "idle": [[_spot(spot) for spot in stack] for stack in self.idle],
                "details": [getattr(details, x.name) for x in fields(Details)],
            }
        )

    @staticmethod
    def decode(text: str) -> Place:
        """The place that ``encode`` has written."""
        known = json.loads(text)
        details, turn = Details(*known.get("details", ())), known.get("turn")
        return Place(
            stack=tuple(Spot(*spot) for spot in known["stack"]),
            entry=tuple(Spot(*spot) for spot in known["entry"]),
            loaders=tuple(LoaderPlace.decode(x) for x in known["loaders"]),
            ranges=tuple((Spot(*spot), number) for spot, number in known["ranges"]),
            over=tuple((Spot(*spot), range(*x)) for spot, *x in known.get("over", ())),
            counters=tuple(known["counters"]),
            begun_with=tuple((name, values) for name, values in known["begun_with"]),
            exchanges=known["exchanges"],
            has_finished=known["has_finished"],
            commits=known["commits"],
            behind=known.get("behind", 0),
            details=lambda: details,
            calls=known.get("calls", ()),
            turn=turn and (Spot(*turn[0]), turn[1]),
            idle=tuple(tuple(Spot(*x) for x in stack) for stack in known.get("idle", ())),
        )

    def among(self, before: int, now: int) -> Place:
        """The same place in the data among another number of replicas.

        A sampler deals the same order to all, so as many batches are behind ``now`` replicas as
        they would have taken together; of a last one that they have taken in part, some samples
        come twice.
        """
        if before == now:
            return self
        loaders = tuple(replace(x, drawn=x.drawn * before // now) for x in self.loaders)
        return replace(self, loaders=loaders)

    def since(self, step: int) -> int:
        """The step of this place, of a replica that has healed to ``step``: it goes through the
        steps once more that its peers have taken since."""
        return step - (self.commits if self.has_finished else self.behind)

    def words(self) -> str:
        """For people."""
        if self.has_finished:
            return "the end of the script"
        parts = [f"{number} of the loop at {spot}" for spot, number in self.ranges]
        if self.turn is not None and self.turn[0] not in dict(self.ranges):
            parts.append(f"item {self.turn[1]} of the loop at {self.turn[0]}")
        for loader in self.loaders:
            epoch = "" if loader.epoch is None else f"epoch {loader.epoch}, "
            parts.append(f"{epoch}batch {loader.drawn} of the loader at {loader.spot}")
        return ", ".join(parts) or "its training loop"


def _spot(spot: Spot) -> list[str | int]:
    return [spot.name, spot.line, *([spot.column] if spot.column else [])]


def digest(stack: Sequence[Spot]) -> str:
    """A short name of a stack, for comparison."""
    text = "|".join(f"{spot.name}:{spot.line}:{spot.column}" for spot in stack)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def summary(place: Place) -> str:
    """The text of ``Progress.position``, for people: 512 characters at most."""
    return place.words()[:512]
