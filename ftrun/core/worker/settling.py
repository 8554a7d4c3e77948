"""Which collectives of a script are complete when a rank has died in the middle of one. Pure.

Every rank numbers the calls that it makes on a group of the script's. At a death all calls under
way come to an end: each is complete at this rank or is not, for good. Then the survivors tell each
other how far they are, and each comes to the same answer by itself:

| call k at the survivors                                | what follows                          |
|--------------------------------------------------------|---------------------------------------|
| one has the result, and has kept it                    | the lowest such rank gives it         |
| one has passed the second phase                        | all have their results: these stand   |
| nobody has completed it                                | all issue it again, in order          |
| one has completed it, without a result or second phase | it cannot be settled                  |

A call that a rank has not begun yet is put down as a gift, and taken when the rank comes to it. The
*second phase* is a small all-reduce after a call whose result is large, or is another one at each
rank: who has passed it knows that all have their results, so that none of them needs a copy.

Not here: process groups and tensors (inject/zero_edit/world/), whom the survivors are (machine.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank is in one group.

    ``begun``: calls that it has begun. ``since``: all calls before this number are complete at
    every rank. Of those from there on: ``kept``, complete with a copy of the result; ``known``,
    complete at every rank, by the second phase; ``second``, complete here, in the second phase;
    ``bare``, complete here, and nothing is known of the others.
    """

    begun: int
    since: int = 0
    kept: frozenset[int] = frozenset()
    known: frozenset[int] = frozenset()
    second: frozenset[int] = frozenset()
    bare: frozenset[int] = frozenset()

    def encode(self) -> list[Any]:
        """As JSON has it."""
        parts = (self.kept, self.known, self.second, self.bare)
        return [self.begun, self.since, *(sorted(part) for part in parts)]

    @staticmethod
    def decode(known: list[Any]) -> Position:
        """What ``encode`` has made."""
        begun, since, *parts = known
        return Position(begun, since, *(frozenset(part) for part in parts))

    def has(self, number: int) -> bool:
        """Whether the call is complete here, so that this rank will not make it again."""
        return number < self.since or number in self.kept | self.known | self.bare


@dataclass(frozen=True, slots=True)
class Settled:
    """What becomes of the calls of one group.

    ``gives``: for a number the rank that gives its result, and those that lack it. ``stands``:
    numbers whose own result stands at each rank. ``again``: numbers that those who have begun them
    issue again, in order. ``impossible``: numbers that cannot be settled.
    """

    gives: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    stands: frozenset[int] = frozenset()
    again: tuple[int, ...] = ()
    impossible: tuple[int, ...] = ()


def settle(positions: Mapping[int, Position]) -> Settled:
    """Decide about all calls of one group. ``positions``: of the survivors, by rank."""
    first = max(position.since for position in positions.values())
    stop = max(position.begun for position in positions.values())
    gives: dict[int, tuple[int, tuple[int, ...]]] = {}
    stands: set[int] = set()
    again: list[int] = []
    impossible: list[int] = []
    for number in range(first, stop):
        lacking = tuple(rank for rank in sorted(positions) if not positions[rank].has(number))
        if not lacking:
            continue
        holders = [rank for rank in sorted(positions) if number in positions[rank].kept]
        is_known = any(number in position.known for position in positions.values())
        if holders:
            gives[number] = holders[0], lacking
        elif is_known and all(number in positions[rank].second for rank in lacking):
            stands.add(number)
        elif len(lacking) < len(positions):
            impossible.append(number)
        else:
            again.append(number)
    return Settled(gives, frozenset(stands), tuple(again), tuple(impossible))
