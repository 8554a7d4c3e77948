"""The calls of a process, and the connections on which the calls of all ranks meet."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.replay.script import FENCES, Id, needs
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.replay.world import World


@dataclass
class Call:
    """A call of the script.

    ``at``: its index in its rank's program; ``number``: its index in its group. ``place``: its
    index in the group in force; ``found``: its result. ``is_kept``: its input is kept; not if its
    result comes from the log. ``is_bare``: no input is kept, and the call overwrites it. ``shows``:
    its index in the part of a copy that shows results (script.py); -1: none.
    """

    at: int
    group: int
    number: int
    kind: str
    root: int
    given: int
    place: int | None = None
    found: int | None = None
    is_through: bool = False
    is_kept: bool = True
    is_bare: bool = False
    shows: int = -1

    @property
    def id(self) -> Id:
        return self.group, self.number


class Group:
    """The connections of one decree, of all groups. Messages come in any order, or are lost.

    ``is_serial``: a rank carries out its calls one after the other, as on one stream of a device.
    """

    def __init__(self, world: World, number: int, is_serial: bool) -> None:
        self.number, self._world, self._is_serial = number, world, is_serial
        self._members = world.spec.groups
        self.here: set[int] = set()
        self.cut: set[int] = set()
        self.issued: list[list[tuple[str, int, int]]] = [[] for _ in self._members]
        self._counts = Counter[tuple[int, int]]()
        self._got = defaultdict[tuple[int, int, int], dict[int, int]](dict)
        self._queues = defaultdict[int, list[tuple[int, int, int]]](list)
        self._begun: set[tuple[int, int, int]] = set()
        self.misses: set[int] = set()

    @property
    def stands(self) -> bool:
        return len(self.here) == self._world.spec.workers

    def issue(self, rank: int, call: Call) -> int:
        """A rank's next call on its group; returns its place there."""
        group, issued = call.group, self.issued[call.group]
        place = self._counts[rank, group]
        self._counts[rank, group] += 1
        what = (call.kind, call.root, call.number)
        if place == len(issued):
            issued.append(what)
        if group in self.misses:
            return place  # a planted bug: calls that do not meet never end
        if issued[place] != what:
            text = f"{what} of rank {rank} meets {issued[place]} in {group} of {self.number}"
            raise Violation("meet", text)
        self._world.see_that(
            call.given == self._world.known.inputs[call.id][rank],
            "input",
            f"rank {rank} gives another input to call {call.id}",
        )
        self._queues[rank].append((group, place, call.given))
        if call.is_bare:
            call.given = -1
        self._go_on(rank)
        return place

    def _go_on(self, rank: int) -> None:
        queue = self._queues[rank]
        while queue:
            group, place, given = queue[0]
            if (rank, group, place) not in self._begun:
                self._begun.add((rank, group, place))
                self._send(rank, group, place, given)
            if self._is_serial and self.inputs(rank, group, place) is None:
                return
            queue.pop(0)

    def _send(self, rank: int, group: int, place: int, given: int) -> None:
        kind, root, _ = self.issued[group][place]
        members = self._members[group]
        self._got[rank, group, place][rank] = given
        for other in members:
            if other != rank and rank in needs(kind, root, other, members):
                self._world.network.append((self, (group, place), rank, other, given))

    def deliver(self, place: tuple[int, int], sender: int, receiver: int, given: int) -> None:
        if receiver not in self.cut and sender not in self.cut:
            group, number = place
            self._got[receiver, group, number][sender] = given
            self._go_on(receiver)

    def inputs(self, rank: int, group: int, place: int) -> dict[int, int] | None:
        """The inputs that the call at this place needs; None: some are missing."""
        if (rank, group, place) not in self._begun:
            return None
        kind, root, _ = self.issued[group][place]
        members, got = self._members[group], self._got[rank, group, place]
        if kind in FENCES:
            return got if len(got) == len(members) else None
        return got if needs(kind, root, rank, members) <= got.keys() else None
