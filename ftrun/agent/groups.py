"""The incarnations that run on this node, with their workers' processes and logs.

Not here: how they start and end (fleet.py), the decision after an exit (core/agent/supervisor.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ftrun.agent.logs import WorkerLog
from ftrun.agent.memory import MemoryWatch
from ftrun.core.agent.events import StartReplica, WorkerExited
from ftrun.core.ids import WorkerKey


@dataclass
class Worker:
    """A worker that runs.

    ``pidfd`` becomes readable once it has exited. ``end``: its exit while it is being handled.
    """

    pid: int
    pidfd: int
    log: WorkerLog
    memory: MemoryWatch
    end: WorkerExited | None = None


@dataclass
class Group:
    """One incarnation. ``workers``: those whose exit status is not known yet.

    ``is_killed``: this agent has sent it SIGKILL. ``lives``: for each worker that was replaced, the
    count of restarts at its start. ``port``: the port of the store at which the group meets.
    ``is_held``: the group exists even without a worker.
    """

    start: StartReplica
    store: str
    workers: dict[int, Worker] = field(default_factory=dict)
    expected: set[int] = field(default_factory=set)
    is_killed: bool = False
    lives: dict[int, int] = field(default_factory=dict)
    port: int = 0
    is_held: bool = False

    def life(self, group_rank: int) -> StartReplica:
        """The start of this worker, which may be later than the start of the group."""
        restarts = self.lives.get(group_rank, self.start.restarts)
        return replace(self.start, restarts=restarts)


class Groups(dict[str, Group]):
    """The groups by incarnation."""

    def workers(self) -> list[tuple[WorkerKey, int]]:
        """All workers whose exit is not known yet, with their pids."""
        return [
            (WorkerKey(group.start.replica_id, incarnation, rank), worker.pid)
            for incarnation, group in self.items()
            for rank, worker in sorted(group.workers.items())
        ]

    def worker(self, key: WorkerKey) -> Worker | None:
        """A worker whose exit is not known yet; None if there is no such worker."""
        group = self.get(key.incarnation)
        return group.workers.get(key.group_rank) if group is not None else None

    def knows(self, key: WorkerKey, pid: int) -> bool:
        """True if ``key`` is a worker that runs now, with this pid."""
        group = self.get(key.incarnation)
        if group is None or group.start.replica_id != key.replica_id:
            return False
        worker = group.workers.get(key.group_rank)
        # A quick worker connects before the spawner's message with its pid arrives.
        return worker.pid == pid if worker is not None else key.group_rank in group.expected
