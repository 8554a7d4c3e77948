"""An agent and its workers without processes: the real protocol, the real step machines.

Its workers compute nothing: every operation is complete as soon as it is issued. So it shows the
lighthouse's effects on a job, at the speed of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ftrun.base import clock
from ftrun.core import messages as m
from ftrun.core.ids import Attempt, StateId, Tag, WorkerKey, fresh_lineage
from ftrun.core.quorum import Endpoint
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Question
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import StepMachine
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection

TIMEOUT_S = 20.0


class ScriptedWorker:
    """One worker: a step machine, with surroundings that always work."""

    def __init__(
        self, key: WorkerKey, say: Callable[[Any], bool], offers: dict[Tag, StateId]
    ) -> None:
        host = "127.0.0.1"
        endpoint = Endpoint(host, f"{host}:{1000 + int(key.replica_id)}")
        state = StateId(0, fresh_lineage(key.incarnation))
        self.machine = StepMachine(key, endpoint, state)
        self.received: list[Any] = []
        self._say = say
        self._offers = offers
        self._wanted: Tag | None = None

    def introduce(self) -> None:
        """Send the first report."""
        self._say(m.WorkerMessage(self.machine.key, self.machine.report()))

    def receive(self, message: Any) -> None:
        """Handle the lighthouse's messages, and train on if they allow it."""
        self.received.append(message)
        self._feed(message)
        self._go_on()

    def steps(self, count: int) -> None:
        """Train for ``count`` steps, or until it has to wait."""
        for _ in range(count):
            if not self.is_ready():
                return
            self._feed(e.OperationIssued())
            assert self.machine.tag is not None
            self._feed(e.OperationCompleted(self.machine.tag.attempt, 0))
            if self.machine.healing:
                assert self.machine.in_force is not None
                self._feed(e.StateApplied(self.machine.in_force.donors, 1, 0.0))
            self._feed(e.Decided(commit=True))
            self._go_on()

    def is_ready(self) -> bool:
        """Whether it is in a step, and holds what a reduction needs."""
        return self.machine.in_step and self._is_served()

    def _is_served(self) -> bool:
        """Load the state that it has asked for, if it is offered; False if it is not."""
        if self._wanted is None:
            return True
        state = self._offers.get(self._wanted)
        if state is not None:
            tag, self._wanted = self._wanted, None
            self._feed(e.StateLoaded(tag, state))
        return state is not None

    def _go_on(self) -> None:
        if self.machine.phase in (StepPhase.IDLE, StepPhase.WAITING):
            self._feed(e.BoundaryReached())

    def _answer(self, question: Question) -> None:
        """Answer that all have the same operations."""
        entry = self.machine.look_up(replace(question, cleared=False))
        assert entry is not None
        for member in question.members:
            self._feed(e.OperationAnswered(question, member.replica_id, entry))

    def _feed(self, event: Any) -> None:
        for instruction in self.machine.handle(event, clock.now()):
            if isinstance(instruction, e.Ask):
                self._answer(instruction.question)
            elif isinstance(instruction, e.Send):
                self._say(m.WorkerMessage(self.machine.key, instruction.message))
            elif isinstance(instruction, e.BuildGroup):
                self._feed(m.Built(instruction.quorum.attempt))
            elif isinstance(instruction, e.LoadState):
                self._wanted = instruction.tag
            elif isinstance(instruction, e.OfferState):
                self._offers[instruction.tag] = instruction.state
        self.machine.check()


class ScriptedAgent:
    """An agent that runs a worker in each slot it is given, over a real connection."""

    def __init__(
        self, agent_id: str, spec: m.JobSpec, addresses: Sequence[str], token: str
    ) -> None:
        self.agent_id = agent_id
        self.spec = spec
        self.workers: dict[str, ScriptedWorker] = {}
        self.received: list[Any] = []
        self._offers: dict[Tag, StateId] = {}
        self.connection = LighthouseConnection(addresses, token, self._on_event, job_id=spec.job_id)
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self.connection.run())
        self._task.add_done_callback(lambda _: self._changed.set())
        self._heart = asyncio.ensure_future(self._beat())

    def start(self, replica_id: str, incarnation: str) -> None:
        """Start a worker in a slot."""
        restarts = sum(replica_id == name for name in self.workers)
        self.connection.send(m.ReplicaStarted(replica_id, incarnation, restarts))
        key = WorkerKey(replica_id, incarnation, 0)
        self.workers[replica_id] = ScriptedWorker(key, self.connection.send, self._offers)
        self.workers[replica_id].introduce()

    def kill(self, replica_id: str, cause: str = "killed by SIGKILL") -> None:
        """Report that a worker has died."""
        incarnation = self.workers.pop(replica_id).machine.key.incarnation
        self.connection.send(m.ReplicaLost(replica_id, incarnation, cause))

    def attempt(self) -> Attempt | None:
        """The attempt under which all workers train; None while they do not."""
        found = {w.machine.in_force.attempt if w.machine.in_force else None for w in self._all()}
        return found.pop() if len(found) == 1 else None

    def trains(self, members: int) -> bool:
        """Whether all workers are in a step of one quorum of this number of members."""
        machines = [worker.machine for worker in self._all()]
        return self.attempt() is not None and all(
            x.in_step and x.in_force is not None and len(x.in_force.members) == members
            for x in machines
        )

    def states(self) -> set[StateId]:
        """The states of the workers: one, once all are healed and at the same step."""
        return {worker.machine.state for worker in self._all()}

    def step(self) -> bool:
        """Make one step for each quorum whose members are all there: a reduction needs all of
        them."""
        for worker in [worker for worker in self._all() if self._can_reduce(worker)]:
            worker.steps(1)
        return True

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked after every event."""

        async def wait() -> None:
            while not condition():
                if self._task.done():
                    await self._task  # for example an error of a step machine
                self._changed.clear()
                await self._changed.wait()

        try:
            await asyncio.wait_for(wait(), TIMEOUT_S)
        except asyncio.TimeoutError:
            stories = [line for w in self._all() for line in w.machine.story()]
            raise AssertionError("\n".join([*map(str, self.received[-20:]), *stories])) from None

    async def close(self) -> None:
        """End the stream in order."""
        self.connection.send(m.Goodbye())
        self.connection.close()
        self._heart.cancel()
        await asyncio.wait_for(self._task, TIMEOUT_S)

    def _can_reduce(self, worker: ScriptedWorker) -> bool:
        """Whether all members of the worker's quorum run here, under its attempt, and are ready."""
        quorum = worker.machine.in_force
        if quorum is None or not worker.is_ready():
            return False
        found = {x.machine.key.incarnation: x for x in self._all()}
        peers = [found.get(member.incarnation) for member in quorum.members]
        return all(
            peer is not None
            and peer.is_ready()
            and peer.machine.in_force is not None
            and peer.machine.in_force.attempt == quorum.attempt
            for peer in peers
        )

    def _all(self) -> list[ScriptedWorker]:
        return list(self.workers.values())

    async def _beat(self) -> None:
        while True:
            self.connection.send(m.Heartbeat())
            await asyncio.sleep(self.spec.heartbeat_timeout_s / 4)

    def _on_event(self, event: Any) -> None:
        self.received.append(event)
        if isinstance(event, Connected):
            self._say_hello()
        elif isinstance(event, m.AssignSlots):
            for replica_id in event.replica_ids:
                if replica_id not in self.workers:
                    self.start(replica_id, f"{self.agent_id}-{replica_id}-1")
        elif isinstance(event, m.ToWorkers):
            self._deliver(event)
        elif isinstance(event, Disconnected):
            assert not event.refused
        self._changed.set()

    def _say_hello(self) -> None:
        keys = [worker.machine.key for worker in self._all()]
        hello = m.Hello(self.agent_id, self.spec, 8, "127.0.0.1", "127.0.0.1:9")
        running = tuple(m.RunningReplica(key.replica_id, key.incarnation) for key in keys)
        self.connection.send(replace(hello, running=running))
        for worker in self._all():
            worker.introduce()

    def _deliver(self, message: m.ToWorkers) -> None:
        for target in message.targets:
            worker = self.workers.get(target.replica_id)
            if worker is not None and worker.machine.key.incarnation == target.incarnation:
                worker.receive(message.message)
