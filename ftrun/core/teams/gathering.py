"""The nodes of one replica group: they come, take places, are lost and replaced.

Theory of operation. The node that leads is there from the beginning. The team is *open* until it
is complete; then it is *formed*, and its workers may run.

| event \\ state  | open                                         | formed                        |
|----------------|----------------------------------------------|-------------------------------|
| a node comes   | takes a place; ``most``: formed              | takes one: formed again; full: |
|                | ``least``: last call                         | it stands by                  |
| a node is lost | its place is free                            | open, unless one stands by    |
| last call over | formed, without free places                  |                               |
| time is up     | fewer than ``least``: given up               |                               |

A place is a number. A node keeps its own while it lives, and one that comes takes the lowest free
one, or that of its rank. So a node that replaces another changes nothing for those that stay. If
the number of nodes changes, places are numbered anew, and all workers begin again, as under
torchrun.

Not here: whether a lost node's group may start again at all (core/agent/restarts.py), streams.
"""

from __future__ import annotations

import math

from ftrun.core.teams.nodes import (
    Event,
    GiveUp,
    Instruction,
    Node,
    NodeCame,
    NodeGone,
    RefuseNode,
    Show,
    TeamFormed,
    TeamRules,
    TimerFired,
)

SPARES_MAX = 64
REMIND_FIRST_S = 5.0
REMIND_S = 30.0


class Gathering:
    """See the module's table. ``lead``: this node, which nobody can lose."""

    def __init__(self, rules: TeamRules, lead: Node, now: float) -> None:
        self._rules = rules
        self._lead = lead
        self._places: dict[int, Node] = {lead.rank or 0: lead}
        self._spares: list[Node] = []
        self._size = 0
        self._is_formed = False
        self._gives_up_at = now + rules.join_timeout_s
        self._closes_at = now + rules.last_call_s if rules.least == 1 else None
        self._reminds_at = now + REMIND_FIRST_S
        self._out: list[Instruction] = []
        self._now = now

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event and return what to do, in order."""
        self._now, self._out = now, []
        match event:
            case NodeCame(node):
                self._came(node)
            case NodeGone(node_id, reason):
                self._gone(node_id, reason)
            case _:
                assert isinstance(event, TimerFired)
        self._judge()
        return self._out

    def next_deadline(self) -> float | None:
        """When to send ``TimerFired``; None: there is nothing to wait for."""
        if self._is_formed:
            return None
        ends_at = self._gives_up_at if self._closes_at is None else self._closes_at
        return min(ends_at, self._reminds_at)

    @property
    def is_formed(self) -> bool:
        """True while the team is complete."""
        return self._is_formed

    @property
    def members(self) -> tuple[Node, ...]:
        """Those that have a place, in order."""
        return tuple(node for _, node in sorted(self._places.items()))

    def check(self) -> None:
        """Assert what must hold between events."""
        numbers, rules = sorted(self._places), self._rules
        assert self._lead in self._places.values()
        assert all(0 <= number < rules.most for number in numbers)
        everybody = [node.node_id for node in (*self._places.values(), *self._spares)]
        assert len(set(everybody)) == len(everybody)
        ranks = [node.rank for node in self.members if node.rank is not None]
        assert len(set(ranks)) == len(ranks)
        if self._is_formed:
            assert len(numbers) == self._size >= rules.least
        assert not self._spares or len(numbers) == rules.most

    # ------------------------------------------------------------ nodes

    def _came(self, node: Node) -> None:
        reason = self._why_not(node)
        if reason:
            self._out.append(RefuseNode(node.node_id, reason))
        elif len(self._places) < self._rules.most:
            self._seat(node)
        else:
            self._spares.append(node)
            self._out.append(Show(f"{node.words()} stands by: the team has its {self._size} nodes"))

    def _why_not(self, node: Node) -> str:
        most = self._rules.most
        if node.rank is not None and node.rank >= most:
            return f"--node-rank {node.rank}: there is no such node with --nnodes {most}"
        alike = next((x for x in self.members if x.rank is not None and x.rank == node.rank), None)
        if alike is not None:
            return (
                f"--node-rank {node.rank} is {alike.name}'s ({alike.host}) already: each node "
                "needs one of its own"
            )
        if len(self._spares) >= SPARES_MAX:
            return f"{SPARES_MAX} nodes stand by already"
        return ""

    def _seat(self, node: Node) -> None:
        """Take the place of its rank, from one that has it without a rank; or the lowest free.

        Once there was a team its nodes keep their places, so one that comes takes what is free.
        """
        free = (number for number in range(self._rules.most) if number not in self._places)
        wanted = node.rank
        if wanted is None or self._size:
            self._places[next(free)] = node
            return
        other = self._places.pop(wanted, None)
        self._places[wanted] = node
        if other is not None:
            free = (number for number in range(self._rules.most) if number not in self._places)
            self._places[next(free)] = other

    def _gone(self, node_id: str, reason: str) -> None:
        self._spares = [node for node in self._spares if node.node_id != node_id]
        found = next((n for n, node in self._places.items() if node.node_id == node_id), None)
        if found is None:
            return
        node = self._places.pop(found)
        self._out.append(Show(f"Node {node.words()} is lost: {reason}."))
        if self._spares:
            spare = self._spares.pop(0)
            self._places[found] = spare
            self._out.append(Show(f"{spare.words()}, which stood by, takes its place."))
        if self._is_formed:
            self._is_formed = False
            self._gives_up_at = self._now + self._rules.join_timeout_s
            self._reminds_at = self._now + REMIND_FIRST_S

    # ------------------------------------------------------------ the team

    def _judge(self) -> None:
        """Form the team, or wait for more, or give up."""
        there, rules, before = len(self._places), self._rules, self._size
        if self._is_formed and there == before:
            return
        if there < rules.least:
            self._closes_at = None
            self._wait()
            return
        if self._closes_at is None:
            self._closes_at = self._now + rules.last_call_s
        is_whole = there == rules.most or (there == before and not self._has_gaps())
        if is_whole or self._is_formed or self._now >= self._closes_at:
            self._form()
        else:
            self._remind(f"more may come for {self._closes_at - self._now:.0f} s")

    def _has_gaps(self) -> bool:
        return sorted(self._places) != list(range(len(self._places)))

    def _wait(self) -> None:
        if self._now >= self._gives_up_at:
            self._out.append(GiveUp(f"{self._missing()} within {self._rules.join_timeout_s:g} s"))
            self._gives_up_at = self._now + self._rules.join_timeout_s
        elif math.isfinite(self._gives_up_at):
            self._remind(f"gives up in {self._gives_up_at - self._now:.0f} s")
        else:
            self._remind("the others are on their way, or lost")

    def _remind(self, then: str) -> None:
        if self._now >= self._reminds_at:
            self._reminds_at = self._now + REMIND_S
            self._out.append(Show(f"{self._missing()}; {then}."))

    def _missing(self) -> str:
        rules = self._rules
        there = ", ".join(node.words() for node in self.members)
        words = f"{len(self._places)} of {rules.size()} nodes have come: {there}"
        ranks = {node.rank for node in self.members}
        if None not in ranks and len(ranks) < rules.least:
            lacking = [str(rank) for rank in range(rules.least) if rank not in ranks]
            words += f"; no node has come with --node-rank {', '.join(lacking)}"
        return words

    def _form(self) -> None:
        members, before = self.members, self._size
        moved = before and (len(members) != before or self._has_gaps())
        self._places = dict(enumerate(members))
        self._size, self._is_formed, self._closes_at = len(members), True, None
        again = ""
        if moved:
            again = f"the team has {len(members)} nodes, and had {before}"
        self._out.append(TeamFormed(members, again))
