"""Random lives of the nodes of one group, which copy their states and resume from them.

A state is a number that is unique to its step and the group's life, and equal on all ranks: a
script need not compute the same step twice. So the oracle is simple: all ranks resume from one
state, and it is not older than the pinned one, unless another node was lost since. Memory alters
parameters: then the states of a rank differ until all resume.

A planted bug is a subclass of ``Copying`` or of ``Node``.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ftrun.core.replay.copying import Copying, Had
from ftrun.core.replay.settling import Mark
from tests.sim.violation import Violation

EVENTS = 400
KEPT, AHEAD = 2, 2
LEAD = "n0"


@dataclass
class Order:
    """The order of a round, or to resume from a step. ``sources``: by rank, a node."""

    step: int
    number: int
    pinned: int | None
    sources: dict[int, str]


@dataclass
class Node:
    """One node. ``own``, ``copies``: by rank and step, the state; ``pins``: the steps that it
    keeps. ``odd``: the ranks whose parameters it has altered, with states below 0. ``is_marked``:
    the ranks hold the same."""

    name: str
    label: str
    ranks: tuple[int, ...]
    own: dict[int, dict[int, int]] = field(default_factory=dict)
    copies: dict[int, dict[int, int]] = field(default_factory=dict)
    pins: set[int] = field(default_factory=set)
    odd: set[int] = field(default_factory=set)
    is_marked: bool = True
    number: int = 0
    orders: deque[Order] = field(default_factory=deque)
    reports: deque[Had] = field(default_factory=deque)

    def take(self, step: int, state: int, *, is_late: bool) -> None:
        """Its workers have their states of a step; it keeps at once what it was asked to keep.

        ``is_late``: unless the order has not arrived yet.
        """
        if not is_late:
            self.pins |= {order.step for order in self.orders if order.step == step}
        for rank in self.ranks:
            known = self.own.setdefault(rank, {})
            known[step] = -10 * state - rank if rank in self.odd else state
            newest = sorted(known)[-KEPT:]
            self.own[rank] = {x: y for x, y in known.items() if x in newest or x in self.pins}

    def report(self, copied: int | None = None, *, has_failed: bool = False) -> None:
        """Report the states on this node."""
        own = {rank: tuple(steps) for rank, steps in self.own.items()}
        copies = {rank: tuple(steps) for rank, steps in self.copies.items()}
        had = Had(own, copies, self.label, True, copied, has_failed)
        states = [(x, y) for known in (self.own, self.copies) for x, y in known.items()]
        marks = {(x, step): Mark(1, state, 1) for x, y in states for step, state in y.items()}
        had = replace(had, marks=marks if self.is_marked else {}, number=self.number)
        self.reports.append(had)

    def keep(self, order: Order, nodes: dict[str, Node]) -> None:
        """Carry out the order of a round."""
        if order.number != self.number:
            return
        is_there = all(order.step in self.own.get(rank, {}) for rank in self.ranks)
        found = {r: nodes[n].find(r, order.step) for r, n in order.sources.items() if n in nodes}
        self.pins &= self.pinned(order)
        if is_there and len(found) == len(order.sources) and None not in found.values():
            self.pins.add(order.step)
            for rank, state in found.items():
                known = self.copies.setdefault(rank, {})
                known[order.step] = state or 0
                self.copies[rank] = {x: known[x] for x in sorted(known)[-KEPT:]}
            self.report(order.step)
        else:
            self.report(has_failed=True)

    def pinned(self, order: Order) -> set[int]:
        """The step that it keeps during a round."""
        return {x for x in (order.step, order.pinned) if x is not None}

    def find(self, rank: int, step: int) -> int | None:
        """The state that another node reads here."""
        known = self.own if rank in self.ranks else self.copies
        return known.get(rank, {}).get(step)

    def rewind(self, order: Order, nodes: dict[str, Node]) -> None:
        """All resume from a step."""
        for rank, name in order.sources.items():
            state = nodes[name].find(rank, order.step) if name in nodes else None
            if state is not None:
                self.own.setdefault(rank, {})[order.step] = state
        self.number = order.number
        self.pins = {x for x in self.pins if x <= order.step} | {order.step}
        for known in self.forgets():
            for rank, steps in known.items():
                known[rank] = {x: y for x, y in steps.items() if x <= order.step}

    def forgets(self) -> list[dict[int, dict[int, int]]]:
        """The steps whose later states are dropped."""
        return [self.own, self.copies]


class World:
    """One schedule. ``restored``: the number of resumes; ``from_copies``: those that used a
    copy."""

    def __init__(
        self, seed: int, copying: type[Copying] = Copying, node: type[Node] = Node
    ) -> None:
        self.draws = random.Random(seed)
        self.kind = node
        self.has_mates = seed % 4 == 3
        self.labels = self.draws.choice([("",), ("a", "b"), ("a", "b", "c")])
        self.nodes: dict[str, Node] = {}
        self.count = self.states = self.restored = self.from_copies = self.pins = 0
        self.odd = self.aside = 0
        self.now, self.step, self.number, self.life = 0.0, 0, 0, 0
        self.pinned: int | None = None  # by a round, with no node lost since
        first = 0
        for _ in range(self.draws.randint(2, 4)):
            width = self.draws.randint(1, 2)
            self._add(tuple(range(first, first + width)))
            first += width
        self.ranks = range(first)
        self.copying = copying(LEAD)
        self.copying.places = self._places()
        self.made: dict[str, int] = dict.fromkeys(self.nodes, 0)

    def _add(self, ranks: tuple[int, ...], at: int | None = None) -> None:
        name = f"n{self.count}"
        self.count += 1
        made = self.kind(name, self.draws.choice(self.labels), ranks, is_marked=self.has_mates)
        items = list(self.nodes.items())
        items.insert(len(items) if at is None else at, (name, made))
        self.nodes = dict(items)

    def _places(self) -> dict[str, tuple[int, ...]]:
        return {name: node.ranks for name, node in self.nodes.items()}

    def run(self) -> None:
        """Run the schedule, then let it come to rest: the newest step is then pinned."""
        for _ in range(EVENTS):
            self._one()
        if self.has_mates:
            self._go_on()
        since = self.step
        for _ in range(20):
            self._drain()
            for _ in range(2 * len(self.nodes)):
                self._take()
            for node in self.nodes.values():
                node.report()
            self._drain()
            self._time(10.0)
            self._drain()
        pinned = self.copying.pinned
        if pinned is None or pinned < since:
            raise Violation("copies", f"pinned is {pinned} at rest, at step {self.step}")

    def _one(self) -> None:
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._take, 30), (self._report, 10), (self._deliver, 40), (self._obey, 40),
            (lambda: self._time(self.draws.choice([0.1, 1.0, 6.0])), 20),
            (self._go_on, 5), (self._loss, 4),
        ]  # fmt: skip
        if self.has_mates:
            kinds += [(self._alter, 3), (self._compare, 20)]
        work, weights = zip(*kinds, strict=True)
        self.draws.choices(work, weights)[0]()

    def _take(self) -> None:
        """One node's workers reach a next step; no node is more than one step behind."""
        name = self.draws.choice(list(self.nodes))
        if min(self.made.values()) < self.made[name]:
            name = min(self.made, key=lambda x: self.made[x])
        self.made[name] += 1
        self.step = max(self.made.values())
        is_late = self.draws.random() < 0.1
        self.nodes[name].take(self.made[name], self.made[name] * 1000 + self.life, is_late=is_late)

    def _report(self) -> None:
        self.draws.choice(list(self.nodes.values())).report()

    def _time(self, for_s: float) -> None:
        self.now += for_s
        step = max(self.made.values()) + AHEAD
        if self.copying.begin(step, self.now):
            pinned = self.copying.pinned
            for name, node in self.nodes.items():
                order = Order(step, self.number, pinned, self.copying.copies_of(name))
                node.orders.append(order)

    def _deliver(self) -> None:
        """Deliver a report to the leading node."""
        name, node = self.draws.choice(list(self.nodes.items()))
        if node.reports:
            before = self.copying.pinned
            self.copying.has(name, node.reports.popleft(), self.now)
            if self.copying.pinned != before:
                self.pins += 1
                self.pinned = self.copying.pinned

    def _obey(self) -> None:
        node = self.draws.choice(list(self.nodes.values()))
        self._carry_out(node)

    def _carry_out(self, node: Node) -> None:
        """Carry out the next order, if its step has been reached."""
        if node.orders and (node.orders[0].step <= self.made[node.name]):
            node.keep(node.orders.popleft(), self.nodes)

    def _drain(self) -> None:
        while any(node.orders or node.reports for node in self.nodes.values()):
            self._deliver()
            self._obey()
            if any(node.orders for node in self.nodes.values()):
                self._take()

    def _alter(self) -> None:
        node = self.draws.choice(list(self.nodes.values()))
        node.odd.add(self.draws.choice(node.ranks))

    def _compare(self) -> None:
        """If workers are found to differ, all resume; if they can, without the odd ones' nodes."""
        if self.draws.random() < 0.5:
            self._report_all()
        if (found := self.copying.unlike()) is None:
            return
        self.odd += 1
        altered = set().union(*(node.odd for node in self.nodes.values()))
        is_whole = found.mates == tuple(self.ranks)
        if not altered or not altered.issuperset(found.odd) or not is_whole:
            raise Violation("copies", f"{found}, and {altered} are altered")
        if self.copying.step is None and self.pinned is not None and found.agreed < self.pinned:
            raise Violation("copies", f"{found}, and all were equal at step {self.pinned}")
        self._report_all()
        theirs = [name for name, node in self.nodes.items() if node.odd & {*found.odd}]
        aside = [name for name in theirs if name != LEAD]
        if aside and self.copying.can_lose(aside[0], self.ranks):
            self._loss(aside[0])
            self.aside += 1
            if not self.step:
                raise Violation("copies", f"{aside[0]} is set aside, and all begin anew")
        else:
            self._go_on()

    def _report_all(self) -> None:
        for name, node in self.nodes.items():
            node.report()
            while node.reports:
                self.copying.has(name, node.reports.popleft(), self.now)

    def _loss(self, name: str = "") -> None:
        """Lose a node with its states; another takes its place."""
        others = [name for name in self.nodes if name != LEAD]
        name = name or self.draws.choice(others)
        at, ranks = list(self.nodes).index(name), self.nodes[name].ranks
        del self.nodes[name], self.made[name]
        self.copying.gone(name)
        self._add(ranks, at)
        self._go_on()
        self.pinned = None

    def _go_on(self) -> None:
        """No process runs: all nodes report what they have, and all resume from one step."""
        for name, node in self.nodes.items():
            while node.orders and self.draws.random() < 0.5:
                self._carry_out(node)
            node.report()
            while node.reports:
                self.copying.has(name, node.reports.popleft(), self.now)
            node.report()  # one more report is in flight
        self.copying.places = self._places()
        step = self.copying.step_for(self.ranks)
        self.number += 1
        self.life += 1
        if step is None:
            if self.pinned is not None:
                raise Violation("copies", f"nothing to go on from, and {self.pinned} was pinned")
            self._begin_anew()
            return
        if self.pinned is not None and step < self.pinned:
            raise Violation("copies", f"all go on from {step}, and {self.pinned} was pinned")
        sources = self.copying.restore(step, self.now, self.number)
        for node in self.nodes.values():
            theirs = {rank: sources[rank] for rank in node.ranks if rank in sources}
            node.rewind(Order(step, self.number, None, theirs), self.nodes)
            node.odd.clear()
        found = {node.own.get(r, {}).get(step) for node in self.nodes.values() for r in node.ranks}
        if len(found) != 1 or None in found:
            raise Violation("copies", f"step {step} is {found}")
        self.restored += 1
        self.from_copies += bool(sources)
        self.step, self.made = step, dict.fromkeys(self.nodes, step)

    def _begin_anew(self) -> None:
        """All is lost: new memory, and a new life of the group."""
        kept = [(node.name, node.label, node.ranks) for node in self.nodes.values()]
        self.nodes = {
            name: self.kind(name, label, ranks, is_marked=self.has_mates)
            for name, label, ranks in kept
        }
        self.copying = type(self.copying)(LEAD)
        self.copying.places = self._places()
        self.number, self.pinned = 0, None
        self.step, self.made = 0, dict.fromkeys(self.nodes, 0)
