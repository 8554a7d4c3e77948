"""The fence between a quorum and a successor that shares no member with it (Q3).

Not here: when such a successor is wanted (membership.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _Fate:
    """``heard_at``: the last word of its agent. ``is_dead``: its processes cannot act any more."""

    incarnation: str
    heard_at: float
    is_dead: bool


class Fence:
    """The members of the last quorum that were struck from it, one per slot (Q8)."""

    def __init__(self) -> None:
        self._fates: dict[str, _Fate] = {}

    def __len__(self) -> int:
        return len(self._fates)

    def strike(self, replica_id: str, incarnation: str, heard_at: float, is_dead: bool) -> None:
        """A member is out of the quorum; it may train on where we cannot see it."""
        self._fates[replica_id] = _Fate(incarnation, heard_at, is_dead)

    def died(self, replica_id: str, incarnation: str) -> None:
        """This incarnation has certainly ended."""
        if self.holds(replica_id, incarnation):
            self._fates[replica_id].is_dead = True

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
