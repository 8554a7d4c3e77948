"""An agent and the real lighthouse core in memory, for real Managers in the threads of a test.

The Managers are the product's: links on a Unix socket, Gloo groups over loopback, healing by HTTP.
Only starts and deaths of processes are simulated: ``lose`` and ``restart`` send an agent's
messages.
"""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.core import messages as m
from ftrun.core.ids import WorkerKey
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentSent,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.worker.comparison import Question
from ftrun.core.worker.events import OperationAnswered
from ftrun.process_groups import ProcessGroupGloo
from ftrun.protocol.frames import FrameSocket
from ftrun.training import context
from ftrun.training.context import WorkerContext
from ftrun.training.manager import Manager

DEADLINE_S = 60.0
BEAT_S = 0.2
HOST = "127.0.0.1"
AGENT = "agent"
TOKEN = "t" * 64
STARTS = itertools.count()
"""An incarnation is one start of a replica, also in a process that has many jobs."""


class ScriptedAgent:
    """One node with ``replicas`` slots. All messages pass one thread."""

    def __init__(
        self,
        directory: Path,
        replicas: int,
        min_replicas: int,
        heal_tls: bool = False,
        join_timeout_s: float = DEADLINE_S,
    ) -> None:
        self.received: list[tuple[WorkerKey, Any]] = []
        self.ended: m.EndJob | None = None
        self.incarnations: dict[str, str] = {}
        self._replicas = replicas
        self._min_replicas = min_replicas
        self._heal_tls = heal_tls
        self._join_timeout_s = join_timeout_s
        self._store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self._inbox: queue.Queue[Any] = queue.Queue()
        self._links: dict[WorkerKey, FrameSocket] = {}
        self._changed = threading.Condition()
        self._path = str(directory / "agent.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen()
        self._closing = False
        settings = LighthouseSettings(
            takeover_grace_s=0.05, assign_gather_s=0.01, rejoin_timeout_s=DEADLINE_S
        )
        self._lighthouse = Lighthouse(settings, JournalState(), clock.now())
        self._threads = [
            threading.Thread(target=self._serve, name="agent-loop", daemon=True),
            threading.Thread(target=self._accept, name="agent-accept", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._inbox.put(AgentAttached(AGENT, self._hello()))
        self.wait(lambda: len(self.incarnations) == replicas, "slots")

    def context(self, replica_id: str) -> WorkerContext:
        """The identity of the worker of a slot."""
        return WorkerContext(
            job_id="job",
            key=WorkerKey(replica_id, self.incarnations[replica_id], 0),
            replicas=self._replicas,
            min_replicas=self._min_replicas,
            workers_per_replica=1,
            host=HOST,
            socket_path=self._path,
            token=TOKEN,
            heal_tls=self._heal_tls,
            quorum_timeout_s=self._join_timeout_s,
        )

    def tell(self, replica_id: str, message: Any) -> None:
        """Send the worker of a slot an agent's own message: a lease, or the order to leave."""
        key = WorkerKey(replica_id, self.incarnations[replica_id], 0)
        self.wait(lambda: key in self._links, "the worker's link")
        self._send(key, message)

    def lose(self, replica_id: str) -> None:
        """Report that the worker of a slot has died."""
        lost = m.ReplicaLost(replica_id, self.incarnations[replica_id], "killed by the test")
        self._inbox.put(AgentSent(AGENT, (lost,)))

    def restart(self, replica_id: str) -> None:
        """Report that a new incarnation of a slot begins."""
        self.incarnations[replica_id] += "+"
        started = m.ReplicaStarted(replica_id, self.incarnations[replica_id], 1)
        self._inbox.put(AgentSent(AGENT, (started,)))

    def sent(self, replica_id: str, kind: type) -> list[Any]:
        """The messages of one kind that the workers of a slot have sent."""
        return [
            x for key, x in list(self.received) if key.replica_id == replica_id and type(x) is kind
        ]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a message to the agent makes ``condition`` true."""
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), f"waited in vain for {what}"

    def threads(self) -> set[threading.Thread]:
        """The agent's threads: its loop, and one for each worker's link, which starts when it is
        allowed."""
        return set(self._threads)

    def close(self) -> None:
        """End everything."""
        self._closing = True
        self._inbox.put(None)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in list(self._links.values()):
            link.shut_down()  # its reading thread closes it
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), thread.name

    def _hello(self) -> m.Hello:
        spec = m.JobSpec(
            job_id="job",
            replicas=self._replicas,
            workers_per_replica=1,
            min_replicas=self._min_replicas,
            join_timeout_s=DEADLINE_S,
            heartbeat_timeout_s=DEADLINE_S,
            isolation_limit_s=DEADLINE_S,
        )
        return m.Hello(AGENT, spec, self._replicas, HOST, f"{HOST}:{self._store.port}")

    # ------------------------------------------------------------ the loop

    def _serve(self) -> None:
        while True:
            event = self._next()
            if event is None:
                return
            for instruction in self._lighthouse.handle(event, clock.now()):
                if isinstance(instruction, SendToAgent):
                    self._carry_out(instruction.message)
            self._lighthouse.check()
            with self._changed:
                self._changed.notify_all()

    def _next(self) -> Any:
        deadline = self._lighthouse.next_deadline()
        patience_s = BEAT_S if deadline is None else min(BEAT_S, max(0.0, deadline - clock.now()))
        try:
            return self._inbox.get(timeout=patience_s)
        except queue.Empty:
            is_due = deadline is not None and clock.now() >= deadline
            return TimerFired() if is_due else AgentSent(AGENT, (m.Heartbeat(),))

    def _carry_out(self, message: Any) -> None:
        if isinstance(message, m.AssignSlots):
            for replica_id in message.replica_ids:
                if replica_id not in self.incarnations:
                    incarnation = f"i{next(STARTS)}-{replica_id}"
                    self.incarnations[replica_id] = incarnation
                    self._inbox.put(
                        AgentSent(AGENT, (m.ReplicaStarted(replica_id, incarnation, 0),))
                    )
        elif isinstance(message, m.ToWorkers):
            for target in message.targets:
                key = WorkerKey(target.replica_id, target.incarnation, 0)
                self._send(key, message.message)
        elif isinstance(message, m.EndJob):
            self.ended = message

    def _send(self, key: WorkerKey, message: Any) -> None:
        link = self._links.get(key)
        if link is not None:
            try:
                link.send(message)
            except PeerError:
                self._links.pop(key)

    # ------------------------------------------------------------ the workers' links

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(
                target=self._listen, args=(FrameSocket(sock),), name="agent-link", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _listen(self, link: FrameSocket) -> None:
        hello = link.receive(DEADLINE_S)
        assert hello is not None and hello.token == TOKEN
        with self._changed:
            self._links[hello.key] = link
            self._changed.notify_all()
        while True:
            try:
                message = link.receive(DEADLINE_S)
            except PeerError:
                link.close()
                return
            if message is not None:
                self.received.append((hello.key, message))
                self._inbox.put(AgentSent(AGENT, (m.WorkerMessage(hello.key, message),)))


def takes_peers_for_alike(manager: Manager) -> None:
    """Launch its operations, also in a first step in which its peers issue none."""

    def look_up(question: Question) -> None:
        entry = manager.session.machine.look_up(replace(question, cleared=False))
        assert entry is not None
        for member in question.members:
            manager.session.engine.feed(OperationAnswered(question, member.replica_id, entry))

    manager.session.engine._comparing.ask = look_up  # type: ignore[method-assign]


class Job:
    """Managers by slot, and the state that each heals: one tensor."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self.agent = agent
        self.managers: dict[str, Manager] = {}
        self.weights: dict[str, torch.Tensor] = {}

    def add(self, replica_id: str, weight: float | None = None, **arguments: Any) -> Manager:
        """The Manager of a slot. Its state is ``weight``, by default the slot's number."""
        tensor = torch.full((3,), float(replica_id) if weight is None else weight)
        context.install(self.agent.context(replica_id))
        arguments.setdefault("load_state_dict", lambda state: tensor.copy_(state["weight"]))
        arguments.setdefault("state_dict", lambda: {"weight": tensor})
        limit = timedelta(seconds=DEADLINE_S)
        for name in ("timeout", "quorum_timeout", "connect_timeout"):
            arguments.setdefault(name, limit)
        manager = Manager(arguments.pop("pg", None) or ProcessGroupGloo(limit), **arguments)
        self.managers[replica_id] = manager
        self.weights[replica_id] = tensor
        return manager

    def run(self, replica: Callable[[str, Manager], Any], slots: Sequence[str] = ()) -> list[Any]:
        """Run ``replica(slot, manager)`` in a thread for each of ``slots`` (default: all)."""
        names = list(slots or self.managers)
        with ThreadPoolExecutor(len(names)) as pool:
            tasks = [pool.submit(replica, name, self.managers[name]) for name in names]
            done, _ = wait(tasks, DEADLINE_S, FIRST_EXCEPTION)
            failed = [task for task in tasks if task in done and task.exception() is not None]
            if len(done) < len(tasks):
                for name in names:  # the others may wait for the failed one
                    self.managers[name].session.close(None)
            return [task.result(DEADLINE_S) for task in (*failed, *tasks)]

    def step(self, slots: Sequence[str] = (), value: float | None = None) -> list[bool]:
        """Make a step in each: reduce the slot's number, and add the result to the weight."""

        def one(slot: str, manager: Manager) -> bool:
            manager.start_quorum()
            gradient = torch.full((3,), float(slot) if value is None else value)
            manager.allreduce(gradient).wait()
            committed = manager.should_commit()
            if committed:
                self.weights[slot] += gradient
            return committed

        return self.run(one, slots)

    def train(self, until: int) -> None:
        """Make steps until each holds ``until``; then each leaves, so that none waits for it."""

        def loop(slot: str, manager: Manager) -> None:
            while manager.state_dict()["step"] < until:
                manager.start_quorum()
                manager.allreduce(torch.full((3,), float(slot))).wait()
                manager.should_commit()
            manager.leave()

        self.run(loop)

    def reach(self, step: int, slots: str) -> None:
        """Wait until all of ``slots`` hold ``step``.

        A replica that dies before that may lose its last bytes. A survivor that misses them
        heals, because its peers have committed the step.
        """
        managers = [self.managers[slot] for slot in slots]
        self.agent.wait(
            lambda: all(manager.current_step() >= step for manager in managers), f"step {step}"
        )

    def die(self, slot: str) -> None:
        """End the process of a slot without a message; its agent sees the death."""
        self.managers.pop(slot).session.close(None)
        self.agent.lose(slot)


@contextmanager
def job(
    directory: Path,
    replicas: int,
    min_replicas: int | None = None,
    heal_tls: bool = False,
    join_timeout_s: float = DEADLINE_S,
) -> Iterator[Job]:
    """A job of ``replicas`` slots; closes its Managers and its agent at the end."""
    least = replicas if min_replicas is None else min_replicas
    former = context.current()
    agent = ScriptedAgent(directory, replicas, least, heal_tls, join_timeout_s)
    running = Job(agent)
    try:
        yield running
    finally:
        for manager in running.managers.values():
            manager.session.close(None)
        agent.close()
        context.Process.context = former  # else a later test's Manager seeks this agent
