"""Counts outstanding answers, for every phase that waits.

Not here: what is waited for, and how long (membership.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.core.ids import replica_order


class Waiting:
    """The workers whose answer is outstanding, by replica. An answer costs O(1).

    ``later``: replicas that will answer by themselves, in their own time.
    """

    def __init__(self) -> None:
        self.later: set[str] = set()
        self._ranks: dict[str, set[int]] = {}

    def expect(self, replica_ids: Iterable[str], workers_per_replica: int) -> None:
        """Wait for every worker of these replicas, and for no other."""
        ranks = range(workers_per_replica)
        self._ranks = {replica_id: set(ranks) for replica_id in replica_ids}
        self.later.clear()

    def answer(self, replica_id: str, group_rank: int) -> None:
        """One worker has answered; a repeated or unasked answer changes nothing."""
        ranks = self._ranks.get(replica_id)
        if ranks is None:
            return
        ranks.discard(group_rank)
        if not ranks:
            del self._ranks[replica_id]

    def drop(self, replica_id: str) -> None:
        """Stop waiting for this replica."""
        self._ranks.pop(replica_id, None)
        self.later.discard(replica_id)

    def clear(self) -> None:
        """Wait for nobody."""
        self._ranks = {}
        self.later.clear()

    @property
    def done(self) -> bool:
        """Whether all have answered."""
        return not self._ranks

    def silent(self) -> tuple[str, ...]:
        """The replicas with a worker that has not answered, in order."""
        return tuple(sorted(self._ranks, key=replica_order))
