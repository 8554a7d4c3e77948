"""Removed members that may still run: the fence before a successor without them (Q3, C6).

Not here: whether a successor must wait for them (succession.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.quorum import Member

FATES_PER_SLOT_MAX = 4
"""The limit of incarnations that are kept for one slot. One more replaces the oldest (Q8)."""


@dataclass(slots=True)
class _Fate:
    """One removed incarnation. ``store``: the store of its node.

    ``last_message_at``: when its agent last sent a message. ``is_dead``: it has ended.
    """

    store: str
    last_message_at: float
    is_dead: bool


class DepartedMembers:
    """The members that were removed from a quorum and may still run unseen.

    Removed members of the last quorum may still train in it (Q3). Those of earlier quorums, the
    *strays*, cannot train any more, but each holds a state of the job: before the job starts over,
    it waits for them (C6).
    """

    def __init__(self) -> None:
        self._fates: dict[str, dict[str, _Fate]] = {}  # replica_id → incarnation →

    def __len__(self) -> int:
        return sum(map(len, self._fates.values()))

    def add(self, member: Member | Replica, last_message_at: float, is_dead: bool) -> None:
        """Add a removed member. Unless it is dead, it may train on unseen."""
        fates = self._fates.setdefault(member.replica_id, {})
        fates[member.incarnation] = _Fate(member.store, last_message_at, is_dead)
        if len(fates) > FATES_PER_SLOT_MAX:
            del fates[next(iter(fates))]

    def died(self, replica_id: str, incarnation: str) -> None:
        """This incarnation has certainly ended."""
        if self.contains(replica_id, incarnation):
            self._fates[replica_id][incarnation].is_dead = True

    def hello(self, store: str, running: Collection[tuple[str, str]]) -> None:
        """The agent with this store reports all that it runs: the rest of its node has ended.

        An agent has one store for as long as it lives, and its workers do not outlive it.
        """
        for replica_id, incarnation, fate in self._each():
            if fate.store == store and (replica_id, incarnation) not in running:
                fate.is_dead = True

    def started(self, store: str, replica_id: str, incarnation: str) -> None:
        """The agent with this store restarts the slot, so the former incarnation has ended."""
        for other, fate in self._fates.get(replica_id, {}).items():
            if fate.store == store and other != incarnation:
                fate.is_dead = True

    def contains(self, replica_id: str, incarnation: str) -> bool:
        """Whether this incarnation was removed from the last quorum, or is a stray."""
        return incarnation in self._fates.get(replica_id, {})

    def release(self, replica_id: str, incarnation: str) -> None:
        """A removed member is back and answers."""
        fates = self._fates[replica_id]
        del fates[incarnation]
        if not fates:
            del self._fates[replica_id]

    def close_quorum(self, members: Iterable[Member], silent_since: float) -> None:
        """A new quorum is issued: living members that are not in it become strays.

        Members whose agents sent nothing after ``silent_since`` are given up.
        """
        present = {member.key for member in members}
        for replica_id, incarnation, fate in list(self._each()):
            is_present = (replica_id, incarnation) in present
            if is_present or fate.is_dead or fate.last_message_at <= silent_since:
                self.release(replica_id, incarnation)

    def clear(self) -> None:
        """The job starts over and waits for no removed member."""
        self._fates.clear()

    def unaccounted(self) -> tuple[Member, ...]:
        """The removed members that may be alive, for the journal. No endpoint is needed."""
        alive = ((name, key, fate) for name, key, fate in self._each() if not fate.is_dead)
        return tuple(Member(name, key, (), fate.store) for name, key, fate in alive)

    def all_fenced_at(self, isolation_limit_s: float) -> float:
        """When all of them are fenced: dead, or silent for the limit."""
        alive = [f.last_message_at + isolation_limit_s for _, _, f in self._each() if not f.is_dead]
        return max(alive, default=-math.inf)

    def _each(self) -> Iterator[tuple[str, str, _Fate]]:
        for replica_id, fates in self._fates.items():
            for incarnation, fate in fates.items():
                yield replica_id, incarnation, fate
