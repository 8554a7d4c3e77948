"""Several lighthouses that contend for one register, with agents, in a separate world.

The leadership machine and the agents' guard are the real ones. The store, the clock, the network
and a small core that journals a chain are simulated. A schedule is its seed. The store may be slow,
silent (it writes and does not answer), unreachable, or late. Processes are paused, killed and
started again. Not here: what a real lighthouse decides (world.py).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ftrun.core.agent.epochs import EpochGuard
from ftrun.core.register.events import (
    Accepted,
    Answered,
    Decided,
    Depose,
    Event,
    Failed,
    Follow,
    GivenBack,
    Lead,
    Read,
    Record,
    Refused,
    Release,
    Say,
    Stopped,
    Swap,
    TimerFired,
    Value,
)
from ftrun.core.register.leadership import Leadership, Settings
from tests.sim.violation import Violation

SILENCE_S = 1.0
LEASE_S = 1.5
BEAT_S = 0.2
CALL_TIMEOUT_S = 0.5
FAULTS_S = 20.0
CALM_S = 6 * SILENCE_S + LEASE_S
"""Within this time after the last fault all agents have a lease of one leader."""


@dataclass(frozen=True)
class Sent:
    """A leader's message to an agent. ``journal``: the record on which it depends."""

    agent: Agent
    kind: str
    epoch: int
    journal: bytes
    asked_at: float


@dataclass
class Story:
    """The events, as text."""

    lines: list[str] = field(default_factory=list)

    def note(self, now: float, *words: object) -> None:
        self.lines.append(f"{now:9.4f}  " + "  ".join(map(str, words)))


class Actor:
    """An actor that can be paused, and that ends."""

    alive = True
    paused_until = 0.0


class Store:
    """The register. ``compares``: whether writes are conditional; a planted bug sets False."""

    compares = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.version = 0
        self.value: Value | None = None
        self.journals: list[bytes] = [b""]
        self.mode, self.mode_until = "well", 0.0

    def ask(self, node: Node, call: int, request: Read | Swap) -> None:
        """Send a request; it may get lost, and so may its answer."""
        world, mode = self._world, self.mode if self._world.now < self.mode_until else "well"
        there_s, back_s = world.delay(), world.delay()
        if mode == "slow":
            there_s, back_s = world.rng.uniform(0.0, SILENCE_S), world.rng.uniform(0.0, SILENCE_S)
        elif mode == "late":
            there_s = world.rng.uniform(0.0, 4 * SILENCE_S)
        elif mode == "late to answer":
            back_s = world.rng.uniform(0.0, 0.9 * CALL_TIMEOUT_S)
        if mode == "away":
            world.at(there_s, node, node.answered, call, Failed("connection refused"))
        else:
            world.at(there_s, None, self._carry_out, node, call, request, back_s, mode == "silent")

    def _carry_out(
        self, node: Node, call: int, request: Read | Swap, back_s: float, is_silent: bool
    ) -> None:
        answer = self._answer(request)
        if not is_silent:
            self._world.at(back_s, node, node.answered, call, answer)

    def _answer(self, request: Read | Swap) -> Event:
        if isinstance(request, Read):
            value = self.value
            if value is not None:
                journal = self.journals[-1] if request.with_journal else None
                value = replace(value, journal=journal)
            return Answered(self.version, value)
        if self.compares and request.version != self.version:
            return Refused()
        self._check(request.value)
        self.version += 1
        self.value = request.value
        if request.value.journal is not None:
            self.journals.append(request.value.journal)
        self._world.note("store", self.version, request.value)
        self._world.writes += 1
        return Accepted(self.version)

    def _check(self, value: Value) -> None:
        former = self.value
        if value.journal is not None and parent_of(value.journal) != self.journals[-1]:
            raise Violation("R2", f"{value.journal!r} does not follow {self.journals[-1]!r}")
        if former is not None and value.epoch < former.epoch + (value.holder != former.holder):
            raise Violation("R3", f"epoch {value.epoch} after {former.epoch}")


def parent_of(journal: bytes) -> bytes:
    """The record before this one. Each record has all former ones, the latest last."""
    return journal.rpartition(b"/")[0]


class Core:
    """The leader's decisions: the members of the job, which are journaled; and acks, which are
    not."""

    def __init__(self, world: World, node: Node, value: Value) -> None:
        assert value.journal is not None
        self._world = world
        self._node = node
        self._epoch = value.epoch
        self._journal = value.journal
        self._heard = dict.fromkeys(world.agents, world.now)
        self._members: set[Agent] = set()

    def begin(self) -> tuple[object, ...]:
        return (self._record("begin"),)

    def handle(self, agent: Agent, kind: str, asked_at: float) -> tuple[object, ...]:
        self._heard[agent] = self._world.now
        if kind == "hello":
            self._members.add(agent)
            record = self._record(f"+{agent.name}")
            return record, Sent(agent, "welcome", self._epoch, self._journal, asked_at)
        if agent in self._members:
            return (Sent(agent, "ack", self._epoch, self._journal, asked_at),)
        return ()

    def look(self) -> tuple[object, ...]:
        """Continue without agents whose lease has expired since their last message."""
        now, outputs = self._world.now, []
        for agent, heard_at in self._heard.items():
            if now > heard_at + LEASE_S:
                self._members.discard(agent)
                outputs += [
                    self._record(f"-{agent.name}"),
                    Sent(agent, "excluded", self._epoch, self._journal, now),
                ]
                self._heard[agent] = now
        return tuple(outputs)

    def _record(self, what: str) -> Record:
        self._journal = b"%s/%d:%s:%d" % (
            self._journal,
            self._epoch,
            what.encode(),
            self._world.next(),
        )
        return Record(self._epoch, self._journal)


class Node(Actor):
    """One lighthouse's process: the machine, its one request, and its core while it leads."""

    def __init__(self, world: World, host: int) -> None:
        self._world = world
        self.host = host
        self.name = f"n{host}.{world.next()}"
        self.leadership = world.leadership(Settings(self.name, f"{host}", SILENCE_S, 100))
        self.core: Core | None = None
        self._events: deque[Callable[[Core], tuple[object, ...]]] = deque()
        self._call = 0
        self._timer = 0

    def start(self) -> None:
        self.feed(TimerFired())
        self._look()

    def feed(self, event: Event) -> None:
        world = self._world
        for instruction in self.leadership.handle(event, world.now):
            match instruction:
                case Read() | Swap():
                    self._call += 1
                    world.store.ask(self, self._call, instruction)
                    late = Failed(f"no answer in {CALL_TIMEOUT_S:g} s")
                    world.at(CALL_TIMEOUT_S, self, self.answered, self._call, late)
                case Lead(value):
                    world.note(self.name, "leads", value.epoch)
                    world.leaders += 1
                    self.core = Core(world, self, value)
                    self._events.appendleft(lambda core: core.begin())
                case Release(output):
                    assert isinstance(output, Sent)
                    self._send(output)
                case Depose(reason):
                    world.note(self.name, "is deposed:", reason)
                    self.core = None
                    self._events.clear()
                case Say() | Follow():
                    pass
                case GivenBack():
                    self.alive = False
                    world.note(self.name, "has given the register back")
        self._pump()
        self._arm()

    def answered(self, call: int, answer: Event) -> None:
        if call == self._call:
            self._call += 1
            self.feed(answer)

    def received(self, agent: Agent, kind: str, asked_at: float) -> None:
        if self.core is not None:
            self._events.append(lambda core: core.handle(agent, kind, asked_at))
            self._pump()

    def _pump(self) -> None:
        while self._events and self.core is not None and self.may_decide():
            self._decided(self._events.popleft()(self.core))

    def may_decide(self) -> bool:
        return self.leadership.may_decide(self._world.now)

    def _decided(self, outputs: tuple[object, ...]) -> None:
        if outputs:
            self.feed(Decided(outputs))

    def _look(self) -> None:
        self._world.at(BEAT_S, self, self._look)
        if self.core is not None and self.may_decide():
            self._decided(self.core.look())

    def _send(self, sent: Sent) -> None:
        """Send a message that counts: no other lighthouse may lead now, and the record is in the
        register (R1)."""
        world = self._world
        holder = world.store.value.holder if world.store.value is not None else ""
        if holder != self.name:
            raise Violation("R1", f"{self.name} sends {sent.kind} while {holder} leads")
        if sent.journal != world.store.journals[-1]:
            raise Violation("R1", f"{self.name} sends {sent.kind} before its record is written")
        if sent.kind == "excluded" and sent.agent.lease_until > world.now:
            raise Violation("Q3", f"{sent.agent.name} has a lease until {sent.agent.lease_until}")
        world.sent += 1
        if sent.kind != "excluded":
            world.at(world.delay(), sent.agent, sent.agent.received, self, sent)

    def _arm(self) -> None:
        self._timer += 1
        due = self.leadership.next_deadline()
        if due is not None:
            self._world.at(max(0.001, due - self._world.now), self, self._ring, self._timer)

    def _ring(self, timer: int) -> None:
        if timer == self._timer:
            self.feed(TimerFired())


class Agent(Actor):
    """An agent: it requests a lease, and tries another lighthouse if it gets no answer.

    Its network is worse than a stream: messages of a lighthouse that it has left still arrive.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.guard = world.guard()
        self._at = 0
        self._answered_at = -1.0
        self._follows: Node | None = None
        self._epoch = 0
        self.lease_until = 0.0

    def beat(self) -> None:
        world = self._world
        world.at(BEAT_S, self, self.beat)
        if world.now - self._answered_at > 2 * BEAT_S:
            self._at = world.rng.randrange(len(world.nodes))
            self._follows = None
        node = world.nodes[self._at]
        kind = "beat" if self._follows is node else "hello"
        world.at(world.delay(), node, node.received, self, kind, world.now)

    def received(self, node: Node, sent: Sent) -> None:
        if sent.kind == "welcome":
            if not self.guard.accepts(sent.epoch):
                return
            if sent.epoch < self._epoch:
                raise Violation("R3", f"{self.name} goes from epoch {self._epoch} to {sent.epoch}")
            self._epoch = sent.epoch
            self._follows = node
        elif self._follows is not node:
            return
        self._answered_at = self._world.now
        self.lease_until = max(self.lease_until, sent.asked_at + LEASE_S)


class World:
    """One schedule, from its seed."""

    def __init__(
        self,
        seed: int,
        leadership: type[Leadership] = Leadership,
        guard: type[EpochGuard] = EpochGuard,
        store: type[Store] = Store,
    ) -> None:
        self.rng = random.Random(f"register/{seed}")
        self.seed = seed
        self.now = 0.0
        self.leadership, self.guard = leadership, guard
        self.story = Story()
        self._queue: list[tuple[float, int, Actor | None, Callable[..., None], Any]] = []
        self._count = 0
        self.writes = self.leaders = self.sent = self.stops = 0
        self.store = store(self)
        self.agents = [Agent(self, f"a{i}") for i in range(2)]
        self.nodes: list[Node] = []
        self.nodes += [Node(self, host) for host in range(2 + seed % 2)]
        self.calm = False

    def next(self) -> int:
        self._count += 1
        return self._count

    def note(self, *words: object) -> None:
        self.story.note(self.now, *words)

    def delay(self) -> float:
        """The delay of a message or a request: mostly short, sometimes longer than T."""
        if not self.calm and self.rng.random() < 0.02:
            return self.rng.uniform(0.0, 2 * SILENCE_S)
        return self.rng.uniform(0.0005, 0.01)

    def at(
        self, delay_s: float, actor: Actor | None, action: Callable[..., None], *args: Any
    ) -> None:
        """Call ``action`` in ``delay_s``: later if ``actor`` is paused then, never if it has
        ended."""
        heapq.heappush(self._queue, (self.now + delay_s, self.next(), actor, action, args))

    def run(self) -> None:
        """Run with faults for a while, then without; then all agents have a lease (R4).

        Raises:
            Violation: an invariant is broken with this seed.
        """
        try:
            for node in self.nodes:
                self.at(self.rng.uniform(0.0, 0.5), node, node.start)
            for agent in self.agents:
                self.at(self.rng.uniform(0.0, 0.5), agent, agent.beat)
            self.at(self.rng.uniform(0.0, 2.0), None, self._fault)
            self._run_until(FAULTS_S)
            self.calm = True
            self.store.mode_until = 0.0
            for actor in (*self.nodes, *self.agents):
                actor.paused_until = min(actor.paused_until, self.now)
            self._run_until(FAULTS_S + CALM_S)
            for agent in self.agents:
                if agent.lease_until < self.now:
                    raise Violation(
                        "R4", f"{agent.name} has no lease {CALM_S:g} s after all faults"
                    )
        except Violation as violation:
            violation.seed = self.seed
            raise

    def _run_until(self, end: float) -> None:
        queue = self._queue
        while queue[0][0] <= end:
            when, _, actor, action, args = heapq.heappop(queue)
            if actor is not None and not actor.alive:
                continue
            if actor is not None and actor.paused_until > when:
                heapq.heappush(queue, (actor.paused_until, self.next(), actor, action, args))
                continue
            self.now = when
            action(*args)
        self.now = end

    # ------------------------------------------------------------ faults

    def _fault(self) -> None:
        if self.calm:
            return
        rng = self.rng
        kind = rng.choice(("stop", "stop", "stop the holder", "kill", "end", "store", "store"))
        node = rng.choice(self.nodes)
        holder = [x for x in self.nodes if x.leadership.leads]
        if kind == "stop the holder" and holder:
            node = holder[0]
        if kind.startswith("stop"):
            self.stops += 1
            node.paused_until = self.now + rng.choice((0.3, 0.6, 1.0, 2.0, 3.0)) * SILENCE_S
            self.note(node.name, "is stopped until", node.paused_until)
        elif kind == "kill":
            node.alive = False
            self.note(node.name, "is killed")
            self.at(rng.uniform(0.1, 3.0), None, self._start, node)
        elif kind == "end":
            self.at(0.0, node, node.feed, Stopped())
            self.at(rng.uniform(1.0, 3.0), None, self._start, node)
        else:
            modes = ("slow", "late", "late to answer", "silent", "away")
            self.store.mode = rng.choice(modes)
            self.store.mode_until = self.now + rng.uniform(0.2, 5.0)
            self.note("store", "is", self.store.mode, "until", self.store.mode_until)
        self.at(rng.expovariate(1.0), None, self._fault)

    def _start(self, former: Node) -> None:
        """Start a new life of the process, if the former one has ended."""
        if former.alive:
            former.alive = False
        if former in self.nodes:
            node = Node(self, former.host)
            self.nodes[self.nodes.index(former)] = node
            node.start()
