"""The fence between a quorum and a successor that shares no member with it (Q3, C6).

Not here: when such a successor is wanted (membership.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.quorum import Member

FATES_PER_SLOT_MAX = 4
"""So many incarnations of one slot are watched; the oldest is forgotten for one more (Q8)."""


@dataclass(slots=True)
class _Fate:
    """``store``: its node's. ``last_message_at``: of its agent. ``is_dead``: it has ended."""

    store: str
    last_message_at: float
    is_dead: bool


class DepartedMembers:
    """The members that were struck from a quorum and may live on where we cannot see.

    Those of the last quorum may still train in it (Q3). Those of earlier ones, the *strays*, cannot
    any more, but each holds a state of the job: it is waited for before the job begins anew (C6).
    """

    def __init__(self) -> None:
        self._fates: dict[str, dict[str, _Fate]] = {}  # replica_id → incarnation →

    def __len__(self) -> int:
        return sum(map(len, self._fates.values()))

    def add(self, member: Member | Replica, last_message_at: float, is_dead: bool) -> None:
        """A member is out of the quorum; unless it is dead it may train on where we cannot see."""
        fates = self._fates.setdefault(member.replica_id, {})
        fates[member.incarnation] = _Fate(member.store, last_message_at, is_dead)
        if len(fates) > FATES_PER_SLOT_MAX:
            del fates[next(iter(fates))]

    def died(self, replica_id: str, incarnation: str) -> None:
        """This incarnation has certainly ended."""
        if self.contains(replica_id, incarnation):
            self._fates[replica_id][incarnation].is_dead = True

    def hello(self, store: str, running: Collection[tuple[str, str]]) -> None:
        """The agent with this store tells all that it runs: what is not named has ended.

        An agent has one store for as long as it lives, and its workers do not outlive it.
        """
        for replica_id, incarnation, fate in self._each():
            if fate.store == store and (replica_id, incarnation) not in running:
                fate.is_dead = True

    def started(self, store: str, replica_id: str, incarnation: str) -> None:
        """The same agent has started the slot again, which it does when the former one is gone."""
        for other, fate in self._fates.get(replica_id, {}).items():
            if fate.store == store and other != incarnation:
                fate.is_dead = True

    def contains(self, replica_id: str, incarnation: str) -> bool:
        """Whether this incarnation was struck from the last quorum, or is a stray."""
        return incarnation in self._fates.get(replica_id, {})

    def release(self, replica_id: str, incarnation: str) -> None:
        """A struck member is back and answers again."""
        fates = self._fates[replica_id]
        del fates[incarnation]
        if not fates:
            del self._fates[replica_id]

    def close_quorum(self, members: Iterable[Member], silent_since: float) -> None:
        """A new quorum is issued: who is neither in it nor dead is a stray.

        Those who were last heard of at ``silent_since`` or before are given up.
        """
        present = {(member.replica_id, member.incarnation) for member in members}
        for replica_id, incarnation, fate in list(self._each()):
            is_present = (replica_id, incarnation) in present
            if is_present or fate.is_dead or fate.last_message_at <= silent_since:
                self.release(replica_id, incarnation)

    def clear(self) -> None:
        """The job begins anew: nobody is waited for any longer."""
        self._fates.clear()

    def unaccounted(self) -> tuple[Member, ...]:
        """Who may live on, for the journal: without endpoints, for nobody can reach them."""
        alive = ((name, key, fate) for name, key, fate in self._each() if not fate.is_dead)
        return tuple(Member(name, key, (), fate.store) for name, key, fate in alive)

    def all_fenced_at(self, isolation_limit_s: float) -> float:
        """From when on none of them is waited for: all dead, or silent for the limit."""
        alive = [f.last_message_at + isolation_limit_s for _, _, f in self._each() if not f.is_dead]
        return max(alive, default=-math.inf)

    def _each(self) -> Iterator[tuple[str, str, _Fate]]:
        for replica_id, fates in self._fates.items():
            for incarnation, fate in fates.items():
                yield replica_id, incarnation, fate
