"""The switch under way, as a record: its participants, and its progress.

Not here: the transitions (switching.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ftrun.core.ids import Attempt
from ftrun.core.lighthouse.replicas import Replica, Replicas
from ftrun.core.lighthouse.words import replicas
from ftrun.core.quorum import Quorum


@dataclass(slots=True)
class Plan:
    """The switch under way. ``everyone``: members, newcomers and leavers, all of which must agree.

    ``joining``: the newcomers as they were when it began. ``step``: the proposed one. ``promised``:
    the step that members have promised, which is later if scripts let members join only at some
    steps. ``begun``: the last step that a member has begun because of that.
    """

    quorum: Quorum
    everyone: frozenset[str]
    joining: tuple[Replica, ...]
    step: int = 0
    promised: int | None = None
    begun: int = 0
    margin: int = 1
    refusals: int = 0

    @property
    def attempt(self) -> Attempt:
        """The attempt that answers must have."""
        return self.quorum.attempt

    def gone(self, living: Replicas) -> list[str]:
        """The newcomers that will not join: they leave, or were lost and started again."""
        gone = [r for r in self.joining if r.leaving or living.get(r.replica_id) is not r]
        return [replica.replica_id for replica in gone]


def purpose(newcomers: Collection[str], leavers: Collection[str]) -> str:
    """Describe for people what a switch is for."""
    joins = f"{replicas(newcomers)} to join" if newcomers else ""
    leaves = f"{replicas(leavers)} to leave" if leavers else ""
    return ", ".join(part for part in (joins, leaves) if part)
