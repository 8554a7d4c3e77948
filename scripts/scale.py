#!/usr/bin/env python3
"""Processor time of the lighthouse for one death and one join, by the size of the job.

First the real core and the real codec, without processes and sockets: agents are simulated
(benchmarks/agents.py) and answer in no time. Only the lighthouse's own processor time is counted,
and its clock shows that, so a busy machine changes little. Then a real lighthouse process with real
streams (benchmarks/lighthouse.py): what gRPC adds, and what the simulated agents take beside it.
``--nodes N``: N nodes in groups of eight, of which the lighthouse sees one agent each; ``--groups
N``: N groups, eight on an agent; ``--streams N``: N groups with real streams. docs/SCALE.md shows
the curve.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import resource
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from benchmarks import lighthouse  # noqa: E402
from benchmarks.agents import Agent, Marks  # noqa: E402

from ftrun.core import messages as m  # noqa: E402
from ftrun.core.ids import WorkerKey  # noqa: E402
from ftrun.core.lighthouse.events import (  # noqa: E402
    AgentAttached,
    AgentSent,
    Event,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse  # noqa: E402
from ftrun.core.teams.nodes import Node as Place  # noqa: E402
from ftrun.core.teams.nodes import NodeCame, NodeGone, Standing  # noqa: E402
from ftrun.core.teams.placement import Placement, PlacementRules  # noqa: E402
from ftrun.protocol.broadcast import Broadcast  # noqa: E402
from ftrun.protocol.rpc import Connected  # noqa: E402
from ftrun.protocol.streams import StreamCodec, take_batch  # noqa: E402

EPOCH = 1_000_000
TOGETHER = 8
"""Groups per agent, or nodes per group."""
RACK = 32
"""Nodes with the same label."""
WAIT_S = 600.0
GC_THRESHOLD = 20_000
"""As in the lighthouse."""
SIZES = {"groups": (100, 1_000, 10_000), "nodes": (1_000, 12_500), "streams": (1_000, 10_000)}
PARTS = ("ms", "lighthouse_cpu_ms", "agents_cpu_ms")
ROUNDS = 3
STEADY_S = 5.0


class Line:
    """A simulated agent's replacement for its stream: the messages to send next."""

    def __init__(self) -> None:
        self.codec = StreamCodec()
        self.out: list[m.FromAgent] = []

    def send(self, message: m.FromAgent) -> bool:
        """Queue it."""
        self.out.append(message)
        return True


class Node(Agent):
    """An agent whose groups have several workers, which all answer alike."""

    def __init__(self, number: int, spec: m.JobSpec, capacity: int, marks: Marks) -> None:
        super().__init__(number, spec, capacity, "127.0.0.1:1", "0" * 64, marks)
        self.line, self.workers = Line(), spec.workers_per_replica
        self.connection = self.line  # type: ignore[assignment]
        self.name = self._hello.agent_id

    def _say(self, message: m.FromAgent) -> None:
        if not isinstance(message, m.WorkerMessage):
            self.line.send(message)
            return
        for rank in range(self.workers):
            key = WorkerKey(message.key.replica_id, message.key.incarnation, rank)
            self.line.send(replace(message, key=key))


@dataclass
class Cost:
    """CPU seconds of the lighthouse, and the number of handled messages."""

    decoding: float = 0.0
    deciding: float = 0.0
    encoding: float = 0.0
    received: int = 0
    sent: int = 0

    def row(self) -> str:
        """For a table."""
        total = self.decoding + self.deciding + self.encoding
        parts = (self.decoding, self.deciding, self.encoding, total)
        return " | ".join([*(f"{part:.2f}" for part in parts), f"{self.received:,}"])


class World:
    """One lighthouse and all its agents. Messages are delivered at once, in order."""

    def __init__(self, groups: int, agents: int, workers: int) -> None:
        self.marks, self.cost, self._now = Marks(), Cost(), 0.0
        spec = m.JobSpec("scale", groups, workers, 1, WAIT_S, WAIT_S, WAIT_S, agents)
        found = (Node(n, spec, -(-groups // agents), self.marks) for n in range(agents))
        self.agents = {agent.name: agent for agent in found}
        self._codecs = {name: StreamCodec() for name in self.agents}
        self._broadcast, self._mail = Broadcast(), deque[tuple[str, bytes]]()
        self._core = Lighthouse(LighthouseSettings(), JournalState(epoch=EPOCH), 0.0)

    def form(self) -> None:
        """Connect all agents, until the first quorum is in force."""
        self._handle(TimerFired())
        for name, agent in self.agents.items():
            agent._on_event(Connected("there"))
            self._post(name)
        self._until("notice formed")

    def death(self, replica_id: str) -> Cost:
        """A replica dies. Measures until all others train in the next quorum."""
        agent = self._begin(replica_id)
        agent.kill(replica_id)
        return self._end(agent, "notice formed")

    def join(self, replica_id: str) -> Cost:
        """A replacement joins. Measures until it trains with the others."""
        agent = self._at
        self._start_over()
        agent.start(replica_id, 1)
        return self._end(agent, "notice switched")

    def _begin(self, replica_id: str) -> Node:
        self._at = next(x for x in self.agents.values() if replica_id in x.replicas)
        self._start_over()
        return self._at

    def _start_over(self) -> None:
        self.marks.clear()
        self.cost = Cost()

    def _end(self, agent: Node, kind: str) -> Cost:
        self._post(agent.name)
        self._until(kind)
        return self.cost

    def _until(self, kind: str) -> None:
        deadline = self._now + WAIT_S
        while True:
            while self._mail:
                name, data = self._mail.popleft()
                agent = self.agents[name]
                for message in agent.line.codec.decode(data):
                    agent._on_event(message)
                self._post(name)
            if self.marks.count[kind] >= len(self.agents):
                return
            due = self._core.next_deadline()
            assert due is not None and due < deadline, dict(self.marks.count)
            self._now = max(self._now, due)
            self._handle(TimerFired())

    def _post(self, name: str) -> None:
        line = self.agents[name].line
        if not line.out:
            return
        batch = take_batch(deque(map(line.codec.encode, line.out)))
        line.out = []
        began = time.process_time()
        messages = self._codecs[name].decode(batch)
        took_s = time.process_time() - began
        self._now += took_s
        self.cost.decoding += took_s
        self.cost.received += len(messages)
        if isinstance(messages[0], m.Hello):
            self._handle(AgentAttached(name, messages.pop(0)))
        if messages:
            self._handle(AgentSent(name, tuple(messages)))

    def _handle(self, event: Event) -> None:
        began = time.process_time()
        instructions = self._core.handle(event, self._now)
        between = time.process_time()
        orders = [one for one in instructions if isinstance(one, SendToAgent)]
        for one in orders:
            data = self._broadcast.encode(one.message, self._codecs[one.agent_id].memory)
            self._mail.append((one.agent_id, take_batch(deque([data]))))
        ended = time.process_time()
        self._now += ended - began
        self.cost.deciding += between - began
        self.cost.encoding += ended - between
        self.cost.sent += len(orders)


def measure(groups: int, agents: int, workers: int, what: str) -> None:
    """Print a row for a death and one for a join: the median of some rounds."""
    gc.unfreeze()
    world = World(groups, agents, workers)
    world.form()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    found: dict[str, list[Cost]] = {"a death": [], "a join": []}
    for number in range(ROUNDS):
        replica_id = str(number * 7919 % groups)
        found["a death"].append(world.death(replica_id))
        found["a join"].append(world.join(replica_id))
    for name, costs in found.items():
        costs.sort(key=lambda cost: cost.deciding + cost.decoding + cost.encoding)
        print(f"| {what} | {name} | {costs[ROUNDS // 2].row()} |", flush=True)


def measure_placement(nodes: int) -> None:
    """Print the cost of placing the groups: at the start, at a loss, after a restart."""
    teams, spares = nodes // TOGETHER - 1, TOGETHER + nodes % TOGETHER
    rules = PlacementRules(teams, TOGETHER, nodes, spares, WAIT_S)
    places = [Place(f"n{n}", f"n{n}", "", 1, n, f"rack {n // RACK}") for n in range(nodes)]
    placement = Placement(rules, 0.0)
    took = {"all nodes come": _placing_s(placement, [NodeCame(place) for place in places], teams)}
    standing = {
        node.node_id: Standing(number, tuple(one.node_id for one in team))
        for number, team in placement.teams.items()
        for node in team
    }
    took["a node is lost"] = _placing_s(placement, [NodeGone("n0", "")], teams)
    again = [NodeCame(place, standing.get(place.node_id)) for place in places]
    random.Random(nodes).shuffle(again)
    took["all come to a new lighthouse"] = _placing_s(Placement(rules, 0.0), again, teams)
    for what, seconds in took.items():
        print(f"| {nodes:,} nodes in groups of {TOGETHER} | {what} | {seconds:.3f} |", flush=True)


def _placing_s(placement: Placement, events: list[NodeCame] | list[NodeGone], teams: int) -> float:
    began = time.process_time()
    for event in events:
        placement.handle(event, 0.0)
    assert len(placement.teams) == teams
    return time.process_time() - began


def measure_streams(groups: int) -> None:
    """Print a row for a death and one for a join with real streams, again medians."""
    agents, load = -(-groups // TOGETHER), os.getloadavg()[0]
    found = asyncio.run(lighthouse.samples(groups, agents, ROUNDS, STEADY_S))
    for name, kind in (("a death", "death"), ("a join", "join")):
        ms = [median(found[f"{kind}_{part}"]) for part in PARTS]
        parts = " | ".join(f"{part / 1e3:.2f}" for part in ms)
        messages = median(found[f"{kind}_messages"])
        what = f"{groups:,} groups, {agents:,} agents, load {load:.1f}"
        print(f"| {what} | {name} | {parts} | {messages:,.0f} |", flush=True)
    steady, own = (found[name][0] for name in ("steady_percent", "steady_agents_percent"))
    print(f"Between them: lighthouse {steady:.0f} %, agents {own:.0f} % of a core.", flush=True)


def main() -> int:
    """Measure the requested sizes, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="*", metavar="N")
    parser.add_argument("--nodes", type=int, nargs="*", metavar="N")
    parser.add_argument("--streams", type=int, nargs="*", metavar="N")
    parser.add_argument("--workers", type=int, default=8, help="of a group of eight nodes")
    given = parser.parse_args()
    is_all = all(getattr(given, name) is None for name in SIZES)
    sizes = {name: getattr(given, name) or (SIZES[name] if is_all else ()) for name in SIZES}
    if sizes["groups"] or sizes["nodes"]:
        print("| job | | decoding, s | deciding, s | encoding, s | together, s | messages |")
        print("|---|---|---:|---:|---:|---:|---:|")
    for count in sizes["groups"]:
        agents = -(-count // TOGETHER)
        measure(count, agents, 1, f"{count:,} groups, {agents:,} agents")
    for count in sizes["nodes"]:
        groups = -(-count // TOGETHER)
        what = f"{count:,} nodes: {groups:,} groups of {given.workers} workers"
        measure(groups, groups, given.workers, what)
    if sizes["nodes"]:
        print("| placement | | seconds |")
        print("|---|---|---:|")
    for count in sizes["nodes"]:
        measure_placement(count)
    if sizes["streams"]:
        print("| real streams | | time, s | lighthouse, s | agents, s | gRPC messages |")
        print("|---|---|---:|---:|---:|---:|")
    for count in sizes["streams"]:
        measure_streams(count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"Peak memory with all simulated agents: {peak:.0f} MiB.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
