"""Random lives of the nodes of one group that also write their states to a shared disk.

The oracle: a published snapshot has a part of each rank, all of one state, which the group has not
given up, and its step is newer than before. A node holds the step that it has to write, unless a
node was lost since the step was chosen.

A planted bug is a subclass of ``Parts``, of ``Copying`` or of ``GroupSnapshots``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ftrun.core.replay.copying import Copying
from ftrun.core.replay.parts import Parts
from ftrun.core.worker.group_snapshots import GroupSnapshots, InMemory
from ftrun.core.worker.snapshots import Decision
from tests.sim.replay.nodes import Node, Order, World
from tests.sim.violation import Violation

EVERY_S = 1.0
EVENTS = 1000


@dataclass
class Write(Order):
    """The order to write a part."""

    name: str = ""


@dataclass
class Disk:
    """The shared directory: by step the state of each whole snapshot, and by name each draft."""

    whole: dict[int, int] = field(default_factory=dict)
    drafts: dict[str, dict[int, int]] = field(default_factory=dict)


class DiskWorld(World):
    """One schedule. ``resumed``: how many times the group began from the disk."""

    def __init__(
        self,
        seed: int,
        parts: type[Parts] = Parts,
        copying: type[Copying] = Copying,
        plan: type[GroupSnapshots] = GroupSnapshots,
    ) -> None:
        super().__init__(seed, copying)
        self.kind_of_parts = parts
        self.plan = plan(EVERY_S)
        self.disk = Disk()
        self.history: dict[int, int] = {}
        self.taken: int | None = None
        self.parts: Parts | None = None
        self.answers: deque[tuple[str, str, str]] = deque()
        self.late: deque[tuple[str, str, str]] = deque()
        self.is_calm = False
        self.tries = self.resumed = 0
        self.pace = 0.5

    # ------------------------------------------------------------ the lead

    def _lead(self, *, is_quick: bool = False) -> None:
        """Begin a snapshot, order its parts, or check their results.

        ``is_quick``: the draft is made at once.
        """
        if self.parts is not None:
            if self.parts.is_over:
                self._settle(self.parts)
        elif self.taken is not None:
            if is_quick or self.draws.random() < self.pace:
                self._order_parts(self.taken)
        else:
            seen = InMemory(self.copying.pinned)
            match self.plan.look(seen, self.now):
                case Decision.LOOK:
                    self.plan.schedule(self.now).looked(None, self.now)
                case Decision.PREPARE:
                    self.plan.schedule(self.now).prepared()
                case Decision.TAKE:
                    self.taken, self.copying.is_taken, self.is_calm = seen.step, True, True
                    self.pace = self.draws.choice([0.5, 0.03, 0.005])

    def _order_parts(self, step: int) -> None:
        self.tries += 1
        name = f"draft {self.tries}"
        self.disk.drafts[name] = {}
        self.parts = self.kind_of_parts(name, step)
        for node in self.parts.ask(list(self.nodes)):
            self.nodes[node].orders.append(Write(step, self.number, None, {}, name))
        self.taken, self.copying.is_taken = None, False

    def _settle(self, parts: Parts) -> None:
        draft = self.disk.drafts.pop(parts.name)
        self.parts = None
        if parts.why_not is not None:
            self.plan.schedule(self.now).failed()
            return
        states = {draft.get(rank) for rank in self.ranks}
        if len(states) != 1 or None in states:
            raise Violation("disk", f"the parts of step {parts.step} are {states}")
        if self.history.get(parts.step) not in states:
            raise Violation("disk", f"step {parts.step} was given up, and is published")
        if parts.step in self.disk.whole:
            raise Violation("disk", f"step {parts.step} is published twice")
        self.disk.whole[parts.step] = self.history[parts.step]
        self.plan.written(parts.step, self.now)

    def _give_up(self) -> None:
        """A node takes too long, or the draft cannot be made."""
        if self.parts is not None:
            del self.disk.drafts[self.parts.name]
        self.parts = self.taken = None
        self.copying.is_taken = False
        self.plan.schedule(self.now).failed()

    # ------------------------------------------------------------ the nodes

    def _carry_out(self, node: Node) -> None:
        if not (node.orders and isinstance(node.orders[0], Write)):
            super()._carry_out(node)
            return
        order = node.orders.popleft()
        assert isinstance(order, Write), "seen before"
        held = {rank: node.own.get(rank, {}).get(order.step) for rank in node.ranks}
        has = None not in held.values()
        is_current = self.parts is not None and self.parts.name == order.name
        if not has and self.is_calm and is_current:
            raise Violation("disk", f"{node.name} does not hold step {order.step} any more")
        draft = self.disk.drafts.get(order.name)
        if has and draft is not None:
            draft.update({rank: state or 0 for rank, state in held.items()})
        reason = "" if has and draft is not None else "it is not there"
        self.answers.append((node.name, order.name, reason))

    def _answer(self) -> None:
        """A report arrives at the leading node, unless its node is lost first. Some take very
        long."""
        if self.answers and self.draws.random() < 0.3:
            self.late.append(self.answers.popleft())
        elif self.answers:
            self._came(*self.answers.popleft())

    def _came(self, node: str, name: str, reason: str) -> None:
        if self.parts is not None and node in self.nodes:
            self.parts.answered(node, name, reason)

    # ------------------------------------------------------------ as World

    def _one(self) -> None:
        what = self.draws.random()
        if what < 0.25:
            self._lead()
        elif what < 0.3:
            self._answer()
        elif what < 0.304:
            if self.late:
                self._came(*self.late.popleft())
        elif what < 0.314:
            self._give_up()
        elif what < 0.318:
            self._begin_anew()
        else:
            super()._one()

    def _drain(self) -> None:
        super()._drain()
        for _ in range(4):
            self._lead(is_quick=True)
            super()._drain()
            while self.answers or self.late:
                self._answer()
                if self.late:
                    self._came(*self.late.popleft())

    def run(self) -> None:
        """See World, with more events; at rest the disk has what all nodes hold."""
        for _ in range(EVENTS):
            self._one()
        super().run()
        self.now += 2 * EVERY_S
        self._drain()
        newest = max(self.disk.whole, default=None)
        if newest != self.copying.pinned:
            raise Violation("disk", f"{newest} is the newest at rest, {self.copying.pinned} pinned")

    def _take(self) -> None:
        super()._take()
        for name, made in self.made.items():
            for rank in self.nodes[name].ranks:
                if made in self.nodes[name].own.get(rank, {}):
                    self.history[made] = self.nodes[name].own[rank][made]

    def _loss(self, name: str = "") -> None:
        if not name and self.draws.random() < 0.8:
            return
        before = set(self.nodes)
        self.is_calm = False
        super()._loss(name)
        for node in before - set(self.nodes):
            if self.parts is not None:
                self.parts.gone(node)

    def _go_on(self) -> None:
        super()._go_on()
        self.history = {x: y for x, y in self.history.items() if x <= self.step}

    def _begin_anew(self) -> None:
        """All memory is lost: the group begins from the disk."""
        self._give_up()
        self.answers.clear()
        self.late.clear()
        super()._begin_anew()
        self.history = {}
        if not self.disk.whole:
            return
        step = max(self.disk.whole)
        state = self.disk.whole[step]
        self.plan.begins_from(step)
        for node in self.nodes.values():
            node.own = {rank: {step: state} for rank in node.ranks}
        self.step, self.made = step, dict.fromkeys(self.nodes, step)
        self.history, self.life = {step: state}, self.life + 1
        self.resumed += 1
