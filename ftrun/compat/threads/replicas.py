"""Replica groups whose workers are threads of one process: their names, slots and incarnations.

torchft's tests and notebooks make a Manager in each of several threads. Such a Manager takes a
*seat*: a rank of a replica group. The group has the name that the script chooses, and gets a free
slot of the job: the slot whose number is the name, otherwise the first free one. All ranks of one
life of a group are one incarnation:

| what happens                              | the group                                           |
|-------------------------------------------|-----------------------------------------------------|
| a Manager of a new name                   | gets a slot, and its first incarnation starts       |
| one of another rank, with the same store  | joins the incarnation                               |
| a Manager is shut down normally           | when all ranks are: finished, and its slot is over  |
| one is shut down by an exception, or its  | is lost: its other ranks are ended first, and then  |
| thread ends without a shutdown            | the loss is reported to the lighthouse (Q3)         |
| the lighthouse removes the replica        | the same                                            |
| a Manager in a seat that was taken before | is lost if it was alive; a new incarnation starts   |
| a Manager of a name that has finished     | gets another slot                                   |

A thread cannot be killed, so a rank is ended by an error in its Manager's next call.

Not here: threads and sockets (agent.py), supervised processes (core/agent/supervisor.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core import failure_kinds as kinds
from ftrun.core import messages as m
from ftrun.core.agent.events import SendToLighthouse
from ftrun.core.ids import WorkerKey

SLOTS = 64
"""The slots of a job of threads: the maximum number of groups over its life."""
DEAD_KEPT = 256


@dataclass(frozen=True, slots=True)
class SeatGiven:
    """The Manager has its seat; ``restarts``: earlier incarnations of its group."""

    key: WorkerKey
    restarts: int


@dataclass(frozen=True, slots=True)
class SeatRefused:
    """The Manager gets no seat; ``reason``: for its author."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndSeat:
    """This rank must stop training: the Manager's next call raises an error with the reason."""

    key: WorkerKey
    reason: str


SeatInstruction: TypeAlias = SendToLighthouse | SeatGiven | SeatRefused | EndSeat


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Incarnations: ``idle`` have not reached a first step, ``joining`` wait there to join."""

    idle: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Group:
    """A replica group by its name.

    Attributes:
        ranks: the ranks that were taken in this incarnation.
        open: ranks whose Manager is open, as far as known.
        reported: ranks that have reached their first step.
        in_force: ranks that have been in a quorum since.
        is_over: the incarnation was lost, or has finished.
        is_finished: it has ended normally.
    """

    name: str
    slot: str
    store: str = ""
    incarnation: str = ""
    starts: int = 0
    ranks: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    reported: set[int] = field(default_factory=set)
    in_force: set[int] = field(default_factory=set)
    is_over: bool = True
    is_finished: bool = False

    def key(self, rank: int) -> WorkerKey:
        return WorkerKey(self.slot, self.incarnation, rank)

    def begin(self, incarnation: str, store: str) -> None:
        self.incarnation = incarnation
        self.store = store
        self.starts += 1
        self.ranks, self.open, self.reported, self.in_force = set(), set(), set(), set()
        self.is_over = False


class ThreadReplicas:
    """The groups of one job in this process.

    Args:
        agent_id: random, so that incarnations cannot be predicted.
        group_size: the workers of each replica group.
        slots: the maximum number of groups over the job's life.
    """

    def __init__(self, agent_id: str, group_size: int, slots: int = SLOTS) -> None:
        self._agent_id = agent_id
        self._group_size = group_size
        self._free = {str(number): None for number in range(slots)}
        self._groups: dict[str, _Group] = {}
        self._by_incarnation: dict[str, _Group] = {}
        self._starts = 0
        self._slots = slots
        self._finished: dict[str, None] = {}
        self._dead: dict[str, m.Loss] = {}
        self._out: list[SeatInstruction] = []

    # ------------------------------------------------------------ events

    def seat_asked(
        self, name: str, rank: int, group_size: int, store: str
    ) -> list[SeatInstruction]:
        """A Manager wants the seat ``rank`` of the group ``name``, whose ranks meet at
        ``store``."""
        refusal = self._refusal(name, rank, group_size)
        if refusal:
            return [SeatRefused(refusal)]
        group = self._groups.get(name)
        if group is None or group.is_finished:
            group = self._groups[name] = _Group(name, self._free_slot(name))
        if not group.is_over and (rank in group.ranks or group.store != store):
            self._lose(group, f"another Manager has come as replica_id={name!r}, rank={rank}")
        if group.is_over:
            self._start(group, store)
        group.ranks.add(rank)
        group.open.add(rank)
        self._out.append(SeatGiven(group.key(rank), group.starts - 1))
        return self._take()

    def seat_left(self, key: WorkerKey, failure: str = "") -> list[SeatInstruction]:
        """A Manager is shut down; ``failure``: the exception; "": it ended normally."""
        group = self._current(key)
        if group is not None and key.group_rank in group.open:
            group.open.discard(key.group_rank)
            if failure:
                self._lose(group, f"rank {key.group_rank} has ended: {failure}")
            elif not group.open and len(group.ranks) == self._group_size:
                self._finish(group)
        return self._take()

    def worker_sent(self, key: WorkerKey, message: m.FromWorker) -> None:
        """A Manager has sent a message to the lighthouse."""
        group = self._current(key)
        if group is not None and isinstance(message, m.Report):
            group.reported.add(key.group_rank)
        elif group is not None and isinstance(message, m.InForce):
            group.in_force.add(key.group_rank)

    def taken_out(self, incarnation: str, reason: str) -> list[SeatInstruction]:
        """The lighthouse, or a person, removes the replica from the job."""
        group = self._by_incarnation.get(incarnation)
        if group is not None:
            self._lose(group, reason)
        return self._take()

    def job_ended(self, reason: str) -> list[SeatInstruction]:
        """Training is over: every open Manager gets an error."""
        for group in list(self._by_incarnation.values()):
            self._end_ranks(group, reason)
        return self._take()

    # ------------------------------------------------------------ facts

    def is_open(self, key: WorkerKey) -> bool:
        """Whether this seat has an open Manager in a live incarnation."""
        group = self._current(key)
        return group is not None and key.group_rank in group.open

    def newcomers(self) -> Newcomers:
        """The incarnations that have not been in a quorum yet."""
        new = [g for g in self._by_incarnation.values() if len(g.in_force) < self._group_size]
        joining = frozenset(g.incarnation for g in new if len(g.reported) == self._group_size)
        return Newcomers(frozenset(g.incarnation for g in new) - joining, joining)

    def running(self) -> tuple[m.RunningReplica, ...]:
        """For a Hello: the live incarnations."""
        groups = self._by_incarnation.values()
        return tuple(m.RunningReplica(group.slot, group.incarnation) for group in groups)

    def dead(self) -> tuple[m.Loss, ...]:
        """For a Hello: the latest incarnations that were lost."""
        return tuple(self._dead.values())

    def finished(self) -> tuple[str, ...]:
        """For a Hello: the slots that are over."""
        return tuple(self._finished)

    def check(self) -> None:
        """Assert the invariants that hold between events."""
        for incarnation, group in self._by_incarnation.items():
            assert group.incarnation == incarnation and not group.is_over, group
            assert group.open <= group.ranks <= set(range(self._group_size)), group
        alive = [group.slot for group in self._by_incarnation.values()]
        assert len(set(alive)) == len(alive), alive
        assert not set(alive) & set(self._finished), (alive, self._finished)

    # ------------------------------------------------------------ what follows

    def _refusal(self, name: str, rank: int, group_size: int) -> str:
        if group_size != self._group_size:
            return (
                f"Manager(replica_id={name!r}, world_size={group_size}): the groups of this job "
                f"have {self._group_size} ranks each, as its first Manager said. Give all Managers "
                "of one lighthouse the same world_size, or make another LighthouseServer."
            )
        if not 0 <= rank < group_size:
            return (
                f"Manager(replica_id={name!r}, rank={rank}): a group has the ranks 0 to "
                f"{group_size - 1}. Give one of these."
            )
        group = self._groups.get(name)
        if not self._free and (group is None or group.is_finished):
            return (
                f"Manager(replica_id={name!r}): {self._slots} replica groups have taken part in "
                "this job of threads, and there is room for no more. Shut all Managers down, and "
                "the next one begins another job; or start the script with ftrun --replicas N."
            )
        return ""

    def _free_slot(self, name: str) -> str:
        """The slot whose number is the name, if it is free; otherwise the first free one."""
        slot = name if name in self._free else next(iter(self._free))
        del self._free[slot]
        return slot

    def _start(self, group: _Group, store: str) -> None:
        self._starts += 1
        text = f"{self._agent_id}|{group.slot}|{self._starts}"
        group.begin(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), store)
        self._by_incarnation[group.incarnation] = group
        self._send(m.ReplicaStarted(group.slot, group.incarnation, group.starts - 1))

    def _lose(self, group: _Group, cause: str) -> None:
        """End the other ranks first, because peers rely on a reported group (Q3)."""
        self._end_ranks(group, cause)
        self._over(group)
        self._dead[group.incarnation] = m.Loss(group.slot, group.incarnation, cause)
        while len(self._dead) > DEAD_KEPT:
            del self._dead[next(iter(self._dead))]
        self._send(m.ReplicaLost(group.slot, group.incarnation, cause, kind=kinds.EXCEPTION))

    def _end_ranks(self, group: _Group, reason: str) -> None:
        for rank in sorted(group.open):
            self._out.append(EndSeat(group.key(rank), reason))
        group.open.clear()

    def _finish(self, group: _Group) -> None:
        self._over(group)
        group.is_finished = True
        self._finished[group.slot] = None
        self._send(m.ReplicaFinished(group.slot, group.incarnation))

    def _over(self, group: _Group) -> None:
        group.is_over = True
        del self._by_incarnation[group.incarnation]

    def _current(self, key: WorkerKey) -> _Group | None:
        return self._by_incarnation.get(key.incarnation)

    def _send(self, message: m.ReplicaStarted | m.ReplicaLost | m.ReplicaFinished) -> None:
        self._out.append(SendToLighthouse(message))

    def _take(self) -> list[SeatInstruction]:
        out, self._out = self._out, []
        return out
