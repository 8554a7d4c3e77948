"""The calls of a process, and the connections on which those of all ranks meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.replay.script import FENCES, needs
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.replay.world import World


@dataclass
class Call:
    """A call of the script. ``place``: in the group in force; ``found``: its result.

    ``is_kept``: its input is; not if its result comes from the log.
    """

    number: int
    kind: str
    root: int
    given: int
    place: int | None = None
    found: int | None = None
    is_through: bool = False
    is_kept: bool = True


class Group:
    """The connections of one decree. Messages may come in any order, or be lost at a cut."""

    def __init__(self, world: World, number: int) -> None:
        self.number, self._world = number, world
        workers = world.spec.workers
        self.here: set[int] = set()
        self.cut: set[int] = set()
        self.issued: list[tuple[str, int, int]] = []
        self._counts = [0] * workers
        self._got: list[dict[int, dict[int, int]]] = [{} for _ in range(workers)]

    @property
    def stands(self) -> bool:
        return len(self.here) == self._world.spec.workers

    def issue(self, rank: int, call: Call) -> int:
        """A rank's next call on this group; returns its place."""
        place = self._counts[rank]
        self._counts[rank] += 1
        what = (call.kind, call.root, call.number)
        if place == len(self.issued):
            self.issued.append(what)
        if self.issued[place] != what:
            text = f"{what} of rank {rank} meets {self.issued[place]} in group {self.number}"
            raise Violation("meet", text)
        self._world.see_that(
            call.given == self._world.known.inputs[call.number][rank],
            "input",
            f"rank {rank} gives another input to call {call.number}",
        )
        self._got[rank].setdefault(place, {})[rank] = call.given
        for other in range(self._world.spec.workers):
            if other != rank and rank in needs(call.kind, call.root, other, len(self._counts)):
                self._world.network.append((self, place, rank, other, call.given))
        return place

    def deliver(self, place: int, sender: int, receiver: int, given: int) -> None:
        if receiver not in self.cut and sender not in self.cut:
            self._got[receiver].setdefault(place, {})[sender] = given

    def inputs(self, rank: int, place: int) -> dict[int, int] | None:
        """What the call at this place needs; None: not all of it is there."""
        kind, root, _ = self.issued[place]
        got = self._got[rank].get(place, {})
        if kind in FENCES:
            return got if len(got) == len(self._counts) else None
        return got if needs(kind, root, rank, len(self._counts)) <= got.keys() else None
