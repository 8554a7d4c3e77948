"""The fence between a quorum and a successor that shares no member with it (Q3).

Not here: when such a successor is wanted (membership.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ftrun.core.messages import Member
from ftrun.core.roster import Replica


@dataclass(slots=True)
class _Fate:
    """``store``: its node's. ``heard_at``: the last word of its agent. ``is_dead``: certainly."""

    incarnation: str
    store: str
    heard_at: float
    is_dead: bool


class Fence:
    """The members of the last quorum that were struck from it, one per slot (Q8)."""

    def __init__(self) -> None:
        self._fates: dict[str, _Fate] = {}

    def __len__(self) -> int:
        return len(self._fates)

    def strike(self, member: Member | Replica, heard_at: float, is_dead: bool) -> None:
        """A member is out of the quorum; unless it is dead it may train on where we cannot see."""
        fate = _Fate(member.incarnation, member.store, heard_at, is_dead)
        self._fates[member.replica_id] = fate

    def died(self, replica_id: str, incarnation: str) -> None:
        """This incarnation has certainly ended."""
        if self.holds(replica_id, incarnation):
            self._fates[replica_id].is_dead = True

    def hello(self, store: str, running: Collection[tuple[str, str]]) -> None:
        """The agent with this store tells all that it runs: what is not named has ended.

        An agent has one store for as long as it lives, and its workers do not outlive it.
        """
        for replica_id, fate in self._fates.items():
            if fate.store == store and (replica_id, fate.incarnation) not in running:
                fate.is_dead = True

    def started(self, store: str, replica_id: str, incarnation: str) -> None:
        """The same agent has started the slot again, which it does when the former one is gone."""
        fate = self._fates.get(replica_id)
        if fate is not None and fate.store == store and fate.incarnation != incarnation:
            fate.is_dead = True

    def holds(self, replica_id: str, incarnation: str) -> bool:
        """Whether this incarnation was struck from the last quorum."""
        fate = self._fates.get(replica_id)
        return fate is not None and fate.incarnation == incarnation

    def release(self, replica_id: str) -> None:
        """A struck member is back and answers again."""
        del self._fates[replica_id]

    def clear(self) -> None:
        """A new quorum is issued: what its predecessor's members do counts no more."""
        self._fates.clear()

    def opens_at(self, isolation_limit_s: float) -> float:
        """From when on nobody of the old quorum can commit: all dead, or silent for the limit."""
        alive = [f.heard_at + isolation_limit_s for f in self._fates.values() if not f.is_dead]
        return max(alive, default=-math.inf)
