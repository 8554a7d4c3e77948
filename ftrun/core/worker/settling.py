"""Which collectives of a script are complete when a rank has died in the middle of one. Pure.

Every rank numbers its calls on a group of the script. At a death all calls under way end: each is
either complete at this rank or is not, for good. Then the survivors exchange their positions, and
each computes the same outcome:

| call k at the survivors                                | outcome                               |
|--------------------------------------------------------|---------------------------------------|
| one has the result, and has kept it                    | the lowest such rank sends it         |
| one has passed the second phase                        | all have their results: these stand   |
| none has completed it                                  | all issue it again, in order          |
| one has completed it, without a result or second phase | it cannot be settled                  |

The result of a call that a rank has not begun yet is stored until the rank begins it. Where ranks
join, all count from 0 again: the call before is -1 for those that were there. The *second phase* is
a small all-reduce after a call whose result is large, or differs between ranks. A rank that has
passed it knows that all have their results, so that none of them needs a copy. An asynchronous call
has no second phase; if its result differs between ranks, no rank can send it to another.

A rank may be replaced by another process, which repeats its last calls. Their results are in a log,
where they were written before the script or the second phase could see them. So the process reports
to its peers the position of the lost rank (``Position.holding``): if the log does not have a call,
the lost rank had no result of it either.

Not here: process groups and tensors (inject/zero_edit/world/), which ranks survive (machine.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ftrun.core.ids import Attempt


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank is in one group.

    ``begun``: the number of calls that it has begun. ``since``: all calls before this number are
    complete at every rank. Of the later ones: ``kept``, complete with a copy of the result, which
    is the same at all ranks; ``known``, complete at every rank, by the second phase; ``second``,
    complete here, in the second phase; ``bare``, complete here, and unknown at the others.
    """

    begun: int
    since: int = 0
    kept: frozenset[int] = frozenset()
    known: frozenset[int] = frozenset()
    second: frozenset[int] = frozenset()
    bare: frozenset[int] = frozenset()

    def encode(self) -> list[Any]:
        parts = (self.kept, self.known, self.second, self.bare)
        return [self.begun, self.since, *(sorted(part) for part in parts)]

    @staticmethod
    def decode(known: list[Any]) -> Position:
        """The value that ``encode`` has packed."""
        begun, since, *parts = known
        return Position(begun, since, *(frozenset(part) for part in parts))

    def moved(self, base: int) -> Position:
        """The same position, where call ``base`` is the first one that counts from 0."""
        parts = (self.kept, self.known, self.second, self.bare)
        moved = (frozenset(number - base for number in part) for part in parts)
        return Position(self.begun - base, self.since - base, *moved)

    def holding(
        self,
        kept: Collection[int] = (),
        known: Collection[int] = (),
        second: Collection[int] = (),
        bare: Collection[int] = (),
    ) -> Position:
        """The same position, of a rank that has the results of these calls before it makes them.

        They come from a peer, or from the log of the rank that it replaces. They count as begun.
        """
        begun = max((self.begun, *(number + 1 for number in (*kept, *known, *second, *bare))))
        return replace(
            self,
            begun=begun,
            kept=self.kept.union(kept),
            known=self.known.union(known),
            second=self.second.union(second),
            bare=self.bare.union(bare),
        )

    def has(self, number: int) -> bool:
        """Whether the call is complete here, so that this rank will not make it again."""
        return number < self.since or number in self.kept | self.known | self.bare


@dataclass(frozen=True, slots=True)
class Counted:
    """A position, and the attempt since which its calls are counted.

    ``base``: the former number of call 0; None: there is none, because this rank has joined the
    group there, or because no rank has joined.
    """

    position: Position
    since: Attempt
    base: int | None

    def encode(self) -> list[Any]:
        since = self.since
        return [self.position.encode(), since.quorum_id, since.number, self.base]

    @staticmethod
    def decode(known: list[Any]) -> Counted:
        """The value that ``encode`` has packed."""
        position, quorum_id, number, base = known
        return Counted(Position.decode(position), Attempt(quorum_id, number), base)


@dataclass(frozen=True, slots=True)
class Alike:
    """The positions of all ranks, counted ``since`` one attempt, where call ``base`` became call 0.

    ``joined``: the ranks that joined the group at call 0, so that no earlier call is theirs.
    """

    positions: dict[int, Position]
    joined: frozenset[int]
    since: Attempt
    base: int | None


def count_alike(told: Mapping[int, Counted]) -> Alike:
    """Convert all positions to the count since the last boundary at which ranks have joined."""
    since = max(counted.since for counted in told.values())
    there = {rank: counted.base for rank, counted in told.items() if counted.since == since}
    base = max((known for known in there.values() if known is not None), default=None)
    positions = {rank: counted.position for rank, counted in told.items()}
    for rank in told.keys() - there.keys():  # it has not reached that boundary
        positions[rank] = Position(0) if base is None else positions[rank].moved(base)
    joined = frozenset(rank for rank, known in there.items() if known is None)
    return Alike(positions, joined, since, base)


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of the calls of one group.

    ``gives``: by number, the rank that sends the result, and the ranks that lack it. ``stands``:
    numbers whose own result stands at each rank. ``again``: numbers that are issued again, in
    order, by the ranks that have begun them. ``impossible``: numbers that cannot be settled.
    """

    gives: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    stands: frozenset[int] = frozenset()
    again: tuple[int, ...] = ()
    impossible: tuple[int, ...] = ()


def settle(positions: Mapping[int, Position], joined: Collection[int] = ()) -> Settled:
    """Decide about all calls of one group.

    Args:
        positions: of the survivors, by rank.
        joined: the ranks that joined the group at call 0.
    """
    before = {rank: position for rank, position in positions.items() if rank not in joined}
    gives: dict[int, tuple[int, tuple[int, ...]]] = {}
    stands: set[int] = set()
    again: list[int] = []
    impossible: list[int] = []
    stop = max(position.begun for position in positions.values())
    for number in (*range(_since(before), 0), *range(max(0, _since(positions)), stop)):
        those = positions if number >= 0 else before
        lacking = tuple(rank for rank in sorted(those) if not those[rank].has(number))
        if not lacking:
            continue
        holders = [rank for rank in sorted(those) if number in those[rank].kept]
        is_known = any(number in position.known for position in those.values())
        if holders:
            gives[number] = holders[0], lacking
        elif is_known and all(number in positions[rank].second for rank in lacking):
            stands.add(number)
        elif len(lacking) < len(positions):
            impossible.append(number)
        else:
            again.append(number)
    return Settled(gives, frozenset(stands), tuple(again), tuple(impossible))


def live_from(
    steps: Mapping[int, int], groups: Mapping[str, Mapping[int, Counted]]
) -> dict[str, int] | None:
    """From which call of the step under way newcomers make the calls of each group with the others.

    A job that cannot go on without a newcomer waits for it in the middle of a step. The newcomer
    heals to the beginning of that step, is given the results of the calls that are complete, and
    meets its peers in the first one that is not.

    Args:
        steps: by survivor, the number of the step under way, or of the next one, which may be that
            of the quorum's state to which it heals. One step at least is under way.
        groups: by name, the positions of the survivors in each group that changes.

    Returns:
        By group, the number of its first call that is not complete, counted alike. None: newcomers
        join where the next step begins, because the survivors are at different steps, or one has
        not begun a call that is complete, or a later call is complete.
    """
    if len({*steps.values()}) != 1:
        return None
    found = dict[str, int]()
    for name, told in groups.items():
        alike = count_alike(told)
        stop = max(position.begun for position in alike.positions.values())
        again = settle(alike.positions, alike.joined).again
        found[name] = min(again, default=stop)
        are_behind = any(position.begun < found[name] for position in alike.positions.values())
        if alike.base is None:  # nobody is left that could tell one that counts from before
            are_behind |= any(counted.since != alike.since for counted in told.values())
        if are_behind or again != tuple(range(found[name], stop)):
            return None
    return found


def _since(positions: Mapping[int, Position]) -> int:
    return max((position.since for position in positions.values()), default=0)
