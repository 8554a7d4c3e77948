"""Simulated agents: real streams (raw_streams.py) and the real codec; their workers answer at once.

To the lighthouse each agent is like ftrun/agent/, but without processes: it takes its slots, starts
an incarnation in each, relays their messages, and sends a heartbeat once a second. All agents share
one event loop. Not here: the measurements (lighthouse.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.raw_streams import RawConnection
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.agent.lease import LeaseRequests
from ftrun.core.ids import SHARED_LINEAGE, StateId, WorkerKey
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.protocol import quorums
from ftrun.protocol.rpc import Connected, Disconnected

HEARTBEAT_S = 1.0
CONNECT_TIMEOUT_S = 120.0
CONNECTING_MAX = 64
"""The number that connect at a time. In one event loop more would wait for each other."""
STEP_S = 0.1
"""The length of a step of the simulated job; every heartbeat reports a new step."""


def _once(restore: Any) -> Any:
    """Restore each quorum once for all simulated agents. Real agents have a processor each.

    A thousand copies of a quorum of ten thousand members would not fit in memory either.
    """
    short_before: Quorum | None = None
    base_before: Quorum | None = None
    whole: Quorum | None = None

    def restore_once(short: Quorum, base: Quorum) -> Quorum:
        nonlocal short_before, base_before, whole
        if short.attempt == base.attempt:  # it is sent as its attempt only
            named: Quorum = restore(short, base)
            return named
        if whole is None or short is not short_before or base is not base_before:
            whole = restore(short, base)
            short_before, base_before = short, base
        assert whole is not None
        return whole

    return restore_once


quorums.restore = _once(quorums.restore)


@dataclass
class Replica:
    """One replica group of one worker, with the state that step.py would have."""

    key: WorkerKey
    report: m.Report
    pending: Quorum | None = None

    def answer(self, message: m.ToWorker) -> list[m.FromWorker]:
        """The worker's answer to a message of the lighthouse."""
        match message:
            case m.Interrupt(attempt):
                report = self.report
                self.report = m.Report(
                    report.state, report.endpoint, attempt, in_force=report.in_force
                )
                return [self.report]
            case m.AskReport():
                return [self.report]
            case m.NewQuorum(quorum):
                assert quorum.state is not None
                self.report = m.Report(quorum.state, self.report.endpoint, in_force=quorum)
                return [m.Built(quorum.attempt), self._in_force(quorum)]
            case m.Prepare(quorum):
                self.pending = quorum
                return [m.Built(quorum.attempt)]
            case m.ProposeSwitch(attempt, step):
                return [m.Promised(attempt, step)]
            case m.Switch(_, step):
                assert self.pending is not None
                quorum = replace(self.pending, step=step)
                state = StateId(step, SHARED_LINEAGE)
                self.report = m.Report(state, self.report.endpoint, in_force=quorum)
                return [self._in_force(quorum)]
            case _:
                return []

    def _in_force(self, quorum: Quorum) -> m.InForce:
        return m.InForce(quorum.attempt, self.report.state.step)


@dataclass
class Marks:
    """The times at which messages of each kind arrived, at any agent, since the last ``clear``."""

    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def note(self, kind: str) -> None:
        """Note that a message came."""
        now = time.perf_counter()
        self.first.setdefault(kind, now)
        self.last[kind] = now
        self.count[kind] += 1

    def clear(self) -> None:
        """A new change begins."""
        for marks in (self.first, self.last, self.count):
            marks.clear()


class Agent:
    """One node: a stream, a few slots, and the incarnations in them."""

    def __init__(
        self, number: int, spec: m.JobSpec, capacity: int, address: str, token: str, marks: Marks
    ) -> None:
        self.replicas: dict[str, Replica] = {}
        self.connection = RawConnection(address, token, self._on_event)
        self.reason = ""
        self._requests = LeaseRequests(HEARTBEAT_S, spec.isolation_limit_s, spec.nodes)
        self._started = 0
        self._marks = marks
        host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self._host = host
        self._hello = m.Hello(f"agent-{number:05d}", spec, capacity, host, f"{host}:29400")

    def kill(self, replica_id: str) -> None:
        """Simulate a SIGKILL of the replica's worker."""
        lost = self.replicas.pop(replica_id)
        cause = f"rank 0 (pid {4000 + int(replica_id)}) was killed by SIGKILL"
        self._say(m.ReplicaLost(replica_id, lost.key.incarnation, cause))

    def start(self, replica_id: str, restarts: int) -> None:
        """Start a new incarnation, whose worker reports."""
        self._started += 1
        incarnation = f"{self._started:08x}{int(self._hello.agent_id[6:]):08x}"
        port = 20_000 + int(replica_id) % 40_000
        report = m.Report(StateId(0, SHARED_LINEAGE), Endpoint(self._host, f"{self._host}:{port}"))
        replica = Replica(WorkerKey(replica_id, incarnation, 0), report)
        self.replicas[replica_id] = replica
        self._say(m.ReplicaStarted(replica_id, incarnation, restarts))
        self._say(m.WorkerMessage(replica.key, report))

    def beat(self, step: int) -> None:
        """Send a heartbeat: the workers train, and are at a new step at every heartbeat."""
        now = time.perf_counter()
        asks = self._requests.asks(now)
        if not self._requests.is_needed(asks):
            return
        lines = self._progress(step) if self._requests.carries_progress(asks) else ()
        if self.connection.send(m.Heartbeat(lines, quiet=not asks)) and asks:
            self._requests.sent(now)

    def _progress(self, step: int) -> tuple[m.ReplicaProgress, ...]:
        progress = m.Progress(step, step * 64, Activity.STEP, (("loss", 1.0 / (step + 1)),))
        keys = [replica.key for replica in self.replicas.values()]
        return tuple(m.ReplicaProgress(k.replica_id, k.incarnation, progress) for k in keys)

    def _say(self, message: m.FromAgent) -> None:
        self.connection.send(message)
        self._requests.spoke()

    def _on_event(self, event: Any) -> None:
        match event:
            case Connected():
                self._marks.note("Connected")
                self._requests.sent(time.perf_counter())
                self._say(self._hello)
            case Disconnected(reason):
                self._marks.note("Disconnected")
                self._requests.disconnected()
                self.reason = reason
            case m.AssignSlots(replica_ids):
                self._marks.note("AssignSlots")
                for replica_id in replica_ids:
                    if replica_id not in self.replicas:
                        self.start(replica_id, 0)
            case m.ToWorkers(targets, message):
                self._marks.note(type(message).__name__)
                for target in targets:
                    self._relay(target, message)
            case m.Notice(kind):
                self._marks.note(f"notice {kind}")
            case m.Welcome() | m.HeartbeatAck():
                self._requests.answered()
            case _:
                self._marks.note(type(event).__name__)

    def _relay(self, target: m.RunningReplica, message: m.ToWorker) -> None:
        replica = self.replicas.get(target.replica_id)
        if replica is not None and replica.key.incarnation == target.incarnation:
            for word in replica.answer(message):
                self._say(m.WorkerMessage(replica.key, word))


class Agents:
    """All agents of one job, in this process's event loop."""

    def __init__(self, spec: m.JobSpec, address: str, token: str) -> None:
        self.marks = Marks()
        capacity = -(-spec.replicas // spec.nodes)
        self.all = [
            Agent(number, spec, capacity, address, token, self.marks)
            for number in range(spec.nodes)
        ]
        self._began = time.perf_counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect all; the streams are open when this returns."""
        for count, agent in enumerate(self.all):
            self._tasks.append(asyncio.create_task(agent.connection.run()))
            await self.until("Connected", count + 1 - CONNECTING_MAX, CONNECT_TIMEOUT_S)
        self._beating = asyncio.create_task(self._beat())
        await self.until("Connected", len(self.all), CONNECT_TIMEOUT_S)

    async def close(self) -> None:
        """End all streams."""
        for agent in self.all:
            agent.connection.close()
        if self._beating is not None:
            self._beating.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def agent_of(self, replica_id: str) -> Agent:
        """The agent of this replica."""
        return next(agent for agent in self.all if replica_id in agent.replicas)

    def traffic(self) -> tuple[int, int]:
        """gRPC messages and their bytes, both directions, of all streams."""
        flows = [agent.connection.traffic for agent in self.all]
        return sum(f.messages for f in flows), sum(f.nbytes for f in flows)

    async def until(self, kind: str, count: int, timeout_s: float) -> float:
        """Wait for ``count`` messages of a kind since ``marks.clear``; returns the last one's time.

        Raises:
            TimeoutError: they did not arrive.
        """
        deadline = time.perf_counter() + timeout_s
        while self.marks.count[kind] < count:
            if time.perf_counter() > deadline:
                broken = {agent.reason for agent in self.all if agent.reason}
                raise TimeoutError(f"{count} × {kind}: got {dict(self.marks.count)}, {broken}")
            await asyncio.sleep(0.005)
        return self.marks.last.get(kind, 0.0)

    async def _beat(self) -> None:
        """Send each agent's heartbeat once in ``HEARTBEAT_S``, spread evenly as in a real job."""
        turn = 0
        while True:
            await asyncio.sleep(HEARTBEAT_S / len(self.all))
            elapsed_s = time.perf_counter() - self._began
            while turn < elapsed_s / HEARTBEAT_S * len(self.all):
                self.all[turn % len(self.all)].beat(int(elapsed_s / STEP_S))
                turn += 1
