"""The nodes of one replica group: they join, take places, are lost and replaced.

Theory of operation. The lead is a member from the beginning. The team is *open* until it is
complete; then it is *formed*, and its workers may run.

| event \\ state  | open                                         | formed                        |
|----------------|----------------------------------------------|-------------------------------|
| a node comes   | takes a place; ``most``: formed              | takes one: formed again; full: |
|                | ``least``: last call                         | it stands by                  |
| a node is lost | its place is free                            | open, unless one stands by    |
| it comes again | it is lost, and comes                        | the same                      |
| it has altered |                                              | it is lost and refused, if    |
| parameters     |                                              | one stands by; else it stays  |
| last call over | formed, without free places                  |                               |
| time is up     | fewer than ``least``: given up               |                               |

A place is a number. A node keeps its place while it lives, and a new node takes the lowest free
place, or the one of its rank. So a replacement changes nothing for the nodes that stay. If the
number of nodes changes, places are renumbered, and all workers restart, as under torchrun.

A node is lost when its stream ends. That may take long, so a node is also lost when its host has
acknowledged no packet for ``SILENT_S``, by the kernel's counts; when it has sent nothing for
``silence_s``, for example because its agent is stopped; and when a node of the same name, host and
rank joins after it has sent nothing for ``UNHEARD_S``, because this is the same node, which was cut
off.

Not here: whether the group of a lost node may restart at all (core/agent/restarts.py), streams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ftrun.base.words import ranges
from ftrun.core.messages import HandHello
from ftrun.core.teams import nodes
from ftrun.core.version import unlike_version

SPARES_MAX = 64
REMIND_FIRST_S = 5.0
REMIND_S = 30.0
SILENT_S = 0.4
UNHEARD_S = 3.0
LOOK_S = 1.0


def why_unlike(
    hello: HandHello, lead: nodes.Node, size: str, *, writes: bool = False, sees: bool = False
) -> str:
    """Why a node that offers itself cannot be in this job; "": it can.

    Args:
        size: the lead's --nnodes.
        writes: the lead writes the states in memory to its --snapshot.
        sees: the lead finds the node's mark there.
    """
    reason = unlike_version(hello.version, "the first node")
    if not reason and hello.size != size:
        reason = f"its --nnodes is {hello.size}, and that of {lead.name} is {size}"
    elif not reason and writes != bool(hello.mark):
        one, other = ("no --snapshot", "one") if writes else ("--snapshot", "none")
        reason = f"its command has {one}, and that of {lead.name} has {other}"
    elif not reason and writes and not sees:
        reason = (
            f"what it writes to its --snapshot directory is not seen by {lead.name} in its own. "
            "All nodes must share the directory"
        )
    return reason


class Gathering:
    """See the module's table. ``lead``: this node, which cannot be lost."""

    def __init__(self, rules: nodes.TeamRules, lead: nodes.Node, now: float) -> None:
        self._rules = rules
        self._lead = lead
        self._places: dict[int, nodes.Node] = {lead.rank or 0: lead}
        self._spares: list[nodes.Node] = []
        self._silent: dict[str, float] = {}
        self._heard: Mapping[str, float] = {}
        self._looked_at = now
        self._size = 0
        self._is_formed = False
        self._gives_up_at = now + rules.join_timeout_s
        self._closes_at = now + rules.last_call_s if rules.least == 1 else None
        self._reminds_at = now + REMIND_FIRST_S
        self._out: list[nodes.Instruction] = []
        self._now = now

    def handle(self, event: nodes.Event, now: float) -> list[nodes.Instruction]:
        """Handle one event and return the instructions, in order."""
        self._now, self._out = now, []
        match event:
            case nodes.NodeCame(node):
                for former in self._formers(node):
                    self._gone(former.node_id, "it was cut off, and comes again")
                self._came(node)
            case nodes.NodeGone(node_id, reason):
                self._gone(node_id, reason)
            case nodes.NodesHeard(heard):
                self._heard = heard
                self._lose_unheard()
            case nodes.NodeAltered():
                self._altered(event)
            case nodes.HostsSilent(hosts):
                self._silent = {x: self._silent.get(x, now + SILENT_S) for x in hosts}
            case _:
                assert isinstance(event, nodes.TimerFired)
        self._lose_silent()
        self._judge()
        return self._out

    def next_deadline(self) -> float | None:
        """When to send ``TimerFired``; None: there is no deadline."""
        times = [at for at in self._silent.values() if at < math.inf]
        if len(self._places) + len(self._spares) > 1 and self._rules.silence_s < math.inf:
            times.append(self._looked_at + LOOK_S)
        if not self._is_formed:
            ends_at = self._gives_up_at if self._closes_at is None else self._closes_at
            times += [ends_at, self._reminds_at]
        return min(times, default=None)

    @property
    def is_formed(self) -> bool:
        """True while the team is complete."""
        return self._is_formed

    @property
    def members(self) -> tuple[nodes.Node, ...]:
        """The nodes that have a place, in order."""
        return tuple(node for _, node in sorted(self._places.items()))

    def check(self) -> None:
        """Assert what must hold between events."""
        numbers, rules = sorted(self._places), self._rules
        assert self._lead in self._places.values()
        assert all(0 <= number < rules.most for number in numbers)
        everybody = [node.node_id for node in (*self._places.values(), *self._spares)]
        assert len(set(everybody)) == len(everybody)
        stated = (node for node in self.members if not node.is_placed)
        ranks = [node.rank for node in stated if node.rank is not None]
        assert len(set(ranks)) == len(ranks)
        if self._is_formed:
            assert len(numbers) == self._size >= rules.least
        assert not self._spares or len(numbers) == rules.most

    # ------------------------------------------------------------ nodes

    def _formers(self, node: nodes.Node) -> list[nodes.Node]:
        """Earlier streams of the same node, which was cut off: they have been silent since."""
        alike = (node.name, node.host, node.rank)
        return [
            one
            for one in self._others()
            if (one.name, one.host, one.rank) == alike and self._unheard_s(one) > UNHEARD_S
        ]

    def _lose_unheard(self) -> None:
        """Lose the nodes that send nothing.

        After a pause of this process, not before the next check.
        """
        was_paused, self._looked_at = self._now - self._looked_at > 2 * LOOK_S, self._now
        for node in () if was_paused else self._others():
            if self._unheard_s(node) > self._rules.silence_s:
                reason = f"it has sent nothing for {self._rules.silence_s:g} s"
                self._gone(node.node_id, reason, self._unheard_s(node))

    def _lose_silent(self) -> None:
        """Lose the nodes whose hosts have acknowledged nothing for long enough; once for each
        host.
        """
        for host in [host for host, at in self._silent.items() if at <= self._now]:
            self._silent[host] = math.inf
            for node in self._others():
                if node.host == host:
                    reason = f"its host, {host}, acknowledges nothing"
                    self._gone(node.node_id, reason, SILENT_S)

    def _others(self) -> list[nodes.Node]:
        """All other nodes, those that stand by first."""
        return [*self._spares, *(node for node in self.members if node is not self._lead)]

    def _unheard_s(self, node: nodes.Node) -> float:
        return self._now - self._heard.get(node.node_id, self._now)

    def _came(self, node: nodes.Node) -> None:
        reason = self._why_not(node)
        if reason:
            self._out.append(nodes.RefuseNode(node.node_id, reason))
        elif len(self._places) < self._rules.most:
            self._seat(node)
        else:
            self._spares.append(node)
            self._out.append(
                nodes.Show(f"{node.words()} stands by: the team has its {self._size} nodes")
            )

    def _why_not(self, node: nodes.Node) -> str:
        most = self._rules.most
        if node.rank is not None and node.rank >= most:
            return f"--node-rank {node.rank}: there is no such node with --nnodes {most}"
        # A placed node whose place another one has was lost here, and the registrar will inform it:
        # until then it stands by.
        has_stated = node.rank is not None and not node.is_placed
        alike = next((x for x in self.members if x.rank == node.rank), None)
        if alike is not None and has_stated:
            return (
                f"--node-rank {node.rank} is {alike.name}'s ({alike.host}) already: each node "
                "needs one of its own"
            )
        if len(self._spares) >= SPARES_MAX:
            return f"{SPARES_MAX} nodes stand by already"
        return ""

    def _seat(self, node: nodes.Node) -> None:
        """Take the place of its rank, from a node that has it without a rank; or the lowest free
        one.

        Once there was a team its nodes keep their places, so a new one takes a free place.
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

    def _gone(self, node_id: str, reason: str, ago_s: float = 0.0) -> None:
        for spare in [one for one in self._spares if one.node_id == node_id]:
            self._spares.remove(spare)
            self._out.append(nodes.LoseNode(spare, None, reason, ago_s))
        found = next((n for n, node in self._places.items() if node.node_id == node_id), None)
        if found is None:
            return
        node = self._places.pop(found)
        self._out.append(nodes.LoseNode(node, found, reason, ago_s))
        self._out.append(nodes.Show(f"Node {node.words()} is lost: {reason}."))
        if self._spares:
            spare = self._spares.pop(0)
            self._places[found] = spare
            self._out.append(nodes.Show(f"{spare.words()}, which stood by, takes its place."))
        if self._is_formed:
            self._is_formed = False
            self._gives_up_at = self._now + self._rules.join_timeout_s
            self._reminds_at = self._now + REMIND_FIRST_S

    def _altered(self, event: nodes.NodeAltered) -> None:
        """Set a node aside, or say why not."""
        node, ranks = (
            next((x for x in self.members if x.node_id == event.node_id), None),
            event.ranks,
        )
        if node is None:
            return
        whose = f"worker{'s' * (len(ranks) > 1)} {ranges([*map(str, ranks)])}"
        why, but = f"it has altered the parameters of {whose}", ""
        if node is self._lead:
            but = "the first node is not replaced"
        elif not self._spares:
            but = "no node stands by"
        elif not event.is_copied:
            but = "no other node has its workers' states so far"
        if but:
            text = f"Node {node.words()} would be set aside, because {why}, but {but}."
            self._out.append(nodes.Show(text))
        else:
            self._out.append(nodes.RefuseNode(node.node_id, f"{node.words()}: {why}"))
            self._gone(node.node_id, f"{why}, so it is set aside")

    # ------------------------------------------------------------ the team

    def _judge(self) -> None:
        """Form the team, or wait for more nodes, or give up."""
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
            self._out.append(
                nodes.GiveUp(f"{self._missing()} within {self._rules.join_timeout_s:g} s")
            )
            self._gives_up_at = self._now + self._rules.join_timeout_s
        elif math.isfinite(self._gives_up_at):
            self._remind(f"gives up in {self._gives_up_at - self._now:.0f} s")
        else:
            self._remind("the others are on their way, or lost")

    def _remind(self, then: str) -> None:
        if self._now >= self._reminds_at:
            self._reminds_at = self._now + REMIND_S
            self._out.append(nodes.Show(f"{self._missing()}; {then}."))

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
        self._out.append(nodes.TeamFormed(members, again))
