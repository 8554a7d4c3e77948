"""Random lives of the nodes of one team, with a simple oracle of what a team is.

The oracle knows only which nodes live, and since when one is stopped or its host silent; it counts.
``World(seed, gathering)`` runs one schedule of a class of gatherings: a planted bug is a subclass.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from ftrun.core.teams.gathering import LOOK_S, SILENT_S, UNHEARD_S, Gathering
from ftrun.core.teams.nodes import (
    Event,
    GiveUp,
    HostsSilent,
    LoseNode,
    Node,
    NodeCame,
    NodeGone,
    NodesHeard,
    RefuseNode,
    TeamFormed,
    TeamRules,
)
from tests.sim.violation import Violation

EVENTS = 40
FIRED_MAX = 100
EPSILON_S = 1e-6
JOIN_S, LAST_CALL_S, SILENCE_S = 100.0, 10.0, 5.0


@dataclass
class World:
    """One schedule. ``formed``: the number of teams; ``gave_up``: how the last one ended."""

    seed: int
    kind: type[Gathering] = Gathering
    formed: int = 0
    gave_up: bool = False
    now: float = 0.0
    story: list[str] = field(default_factory=list)
    stopped: dict[str, float] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    again: int = 0
    cut: int = 0

    def run(self) -> None:
        """Run the schedule; raises Violation."""
        draws = random.Random(self.seed)
        most = draws.randint(2, 5)
        least = draws.choice([most, draws.randint(1, most)])
        with_ranks = draws.random() < 0.5
        self.rules = TeamRules(least, most, JOIN_S, LAST_CALL_S, SILENCE_S)
        self.lead = Node("lead", "n0", "h0", 2, 0 if with_ranks else None)
        self.alive = {"lead": self.lead}
        self.order = ["lead"]
        self.team: tuple[Node, ...] | None = None
        self.last: tuple[Node, ...] = ()
        self.short_since: float | None = 0.0 if least > 1 else None
        self.enough_since: float | None = None if least > 1 else 0.0
        self.gathering = self.kind(self.rules, self.lead, 0.0)
        for number in range(EVENTS):
            if self.gave_up:
                return
            self._step(draws, number, with_ranks)

    def _step(self, draws: random.Random, number: int, with_ranks: bool) -> None:
        others = [name for name in self.alive if name != "lead"]
        kind = draws.choice(["come", "come", "go", "time", "stop", "silent", "again"])
        if kind == "go" and others:
            name = draws.choice(others)
            self._forget(name)
            self._tell(NodeGone(name, "it is gone"))
        elif kind == "come" and len(self.alive) < self.rules.most + 2:
            self._tell(self._heard())
            rank = draws.randrange(self.rules.most) if with_ranks else None
            node = Node(f"id{number}", f"n{number}", f"h{number}", draws.randint(1, 3), rank)
            self.alive[node.node_id] = node
            self.order.append(node.node_id)
            self._tell(NodeCame(node))
        elif kind == "stop" and others:
            self._stop(draws.choice(others))
        elif kind == "silent" and others:
            self._silent(self.alive[draws.choice(others)].host)
            self._pass(draws.choice([0.2, 1.0]))
        elif kind == "again" and others:
            self._again(self.alive[draws.choice(sorted(self.stopped) or others)], number)
        else:
            self._pass(draws.choice([1.0, 5.0, 30.0]))

    def _stop(self, name: str) -> None:
        """Stop its agent, or continue it if it was stopped."""
        if self.stopped.pop(name, None) is None:
            self.stopped[name] = self.now

    def _silent(self, host: str) -> None:
        """The kernel reports a host as silent, or no longer."""
        if self.silent.pop(host, None) is None:
            self.silent[host] = self.now
        self._tell(HostsSilent(tuple(self.silent)))

    def _again(self, former: Node, number: int) -> None:
        """A node reconnects while its former stream may still be open here."""
        self._tell(self._heard())
        if former.node_id not in self.alive:
            return
        node = replace(former, node_id=f"id{number}")
        alike = [x for x in self.alive.values() if replace(x, node_id=node.node_id) == node]
        for one in alike:
            if self.now - self.stopped.get(one.node_id, self.now) > UNHEARD_S:
                self.again += 1
                self._forget(one.node_id)
        self.alive[node.node_id] = node
        self.order.append(node.node_id)
        self._tell(NodeCame(node))

    def _heard(self) -> NodesHeard:
        return NodesHeard({name: self.stopped.get(name, self.now) for name in self.alive})

    def _forget(self, name: str) -> None:
        """For the oracle it does not live any more."""
        del self.alive[name]
        self.order.remove(name)
        self.stopped.pop(name, None)
        if self.team is not None and any(node.node_id == name for node in self.team):
            self.team, self.enough_since = None, self.now

    def _lost(self, node: Node) -> None:
        """Given up although its stream has not ended: allowed only after a silence."""
        if node.node_id not in self.alive:
            return
        unheard_s = self.now - self.stopped.get(node.node_id, self.now)
        silent_s = self.now - self.silent.get(node.host, self.now)
        if unheard_s <= SILENCE_S and silent_s < SILENT_S - EPSILON_S:
            self._fail("a node is given up that lives and is heard")
        self.cut += 1
        self._forget(node.node_id)

    def _pass(self, for_s: float) -> None:
        end, fired = self.now + for_s, 0
        while not self.gave_up:
            fired += 1
            if fired > FIRED_MAX:
                self._fail("timers without an end")
            at = self.gathering.next_deadline()
            if at is None or at > end:
                break
            if at < self.now:
                self._fail(f"a deadline of the past, {at} at {self.now}")
            self.now = at
            self._tell(self._heard())
        self.now = max(self.now, end)

    def _tell(self, event: Event) -> None:
        self.story.append(f"{self.now:g} {event}")
        for instruction in self.gathering.handle(event, self.now):
            self.story.append(f"    {instruction}")
            match instruction:
                case RefuseNode(node_id):
                    self._refused(self.alive.pop(node_id))
                    self.order.remove(node_id)
                case LoseNode(node):
                    self._lost(node)
                case TeamFormed(nodes, again):
                    self._formed(nodes, again)
                case GiveUp():
                    self.gave_up = True
                case _:
                    pass
        self.gathering.check()
        self._check()

    def _refused(self, node: Node) -> None:
        taken = {x.rank for x in self.alive.values()}
        if node.rank is None or node.rank not in taken:
            self._fail("a node is refused whose place nobody has")

    def _formed(self, nodes: tuple[Node, ...], again: str) -> None:
        self.formed += 1
        ids = [node.node_id for node in nodes]
        if len(set(ids)) != len(ids) or not set(ids) <= set(self.alive):
            self._fail("a team has a node twice, or one that is gone")
        if not self.rules.least <= len(nodes) <= self.rules.most:
            self._fail("a team of a size that nobody has asked for")
        if self.lead not in nodes:
            self._fail("a team without its lead")
        ranks = [node.rank for node in nodes if node.rank is not None]
        if len(set(ranks)) != len(ranks):
            self._fail("two nodes of one rank")
        if len(nodes) == self.rules.most and not self.last and ranks != sorted(ranks):
            self._fail("a whole team is not in the order of its ranks")
        before = {node.node_id: at for at, node in enumerate(self.last)}
        moved = [x for at, x in enumerate(ids) if before.get(x, at) != at]
        if self.last and not again and (moved or len(nodes) != len(self.last)):
            self._fail("workers go on although their world is another one")
        if again and not moved and len(nodes) == len(self.last):
            self._fail("workers begin again for nothing")
        self.team = self.last = nodes

    def _check(self) -> None:
        """Check what must hold of any team, by counting the living nodes."""
        for name, since in self.stopped.items():
            if self.now - since > SILENCE_S + 2 * LOOK_S:
                self._fail(f"{name} has sent nothing for long, and is not lost")
        there = len(self.alive)
        if there < self.rules.least:
            self.enough_since = None
            self.short_since = self.now if self.short_since is None else self.short_since
            if self.team is not None:
                self._fail("a team of too few")
            if not self.gave_up and self.now >= self.short_since + JOIN_S:
                self._fail("nobody gave up")
            return
        self.short_since = None
        if self.gave_up:
            self._fail("given up although there are enough nodes")
        if self.enough_since is None or self.team is not None:
            self.enough_since = self.now
        if self.team is None and there >= self.rules.most:
            self._fail("there are nodes for a whole team, and none is formed")
        if self.team is None and self.now > self.enough_since + LAST_CALL_S:
            self._fail("the last call is over, and no team is formed")
        if self.team is not None and len(self.team) != min(there, self.rules.most):
            self._fail("a node could be in the team, and is not")

    def _fail(self, words: str) -> None:
        raise Violation("team", f"seed {self.seed}: {words}\n" + "\n".join(self.story))
