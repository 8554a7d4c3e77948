"""Counts outstanding answers, for every phase that waits.

Not here: which answers, and the deadlines (membership.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.core.ids import replica_order


class Waiting:
    """The workers whose answer is outstanding, by replica. An answer costs O(1).

    ``done``: all have answered. ``until``: the deadline for the others; None: no limit.

    A worker may announce that it answers later. It is asked again from time to time
    (``ask_again``), because it may die or hang after that.
    """

    def __init__(self) -> None:
        self.done = True
        self.until: float | None = None
        self._ranks: dict[str, set[int]] = {}
        self._later: set[tuple[str, int]] = set()
        self._said_again: set[tuple[str, int]] = set()

    def expect(
        self, replica_ids: Iterable[str], workers_per_replica: int, until: float | None = None
    ) -> None:
        """Wait for every worker of these replicas, and for no other."""
        ranks = range(workers_per_replica)
        self.clear()
        self._ranks = {replica_id: set(ranks) for replica_id in replica_ids}
        self.done, self.until = not self._ranks, until

    def is_over(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return self.until is not None and now >= self.until

    def answer(self, replica_id: str, group_rank: int) -> None:
        """One worker has answered. A repeated or unexpected answer changes nothing."""
        ranks = self._ranks.get(replica_id)
        if ranks is None:
            return
        ranks.discard(group_rank)
        if not ranks:
            self.drop(replica_id)

    def put_off(self, replica_id: str, group_rank: int) -> None:
        """One worker has announced that it answers later."""
        if group_rank in self._ranks.get(replica_id, ()):
            self._later.add((replica_id, group_rank))
            self._said_again.add((replica_id, group_rank))

    def ask_again(self, until: float) -> tuple[str, ...]:
        """The replicas to ask again, in order; until they answer, their workers are overdue."""
        self._said_again.clear()
        self.until = until
        return self.silent()

    def drop(self, replica_id: str) -> None:
        self._ranks.pop(replica_id, None)
        self.done = not self._ranks

    def clear(self) -> None:
        self._ranks, self.done, self.until = {}, True, None
        self._later.clear()
        self._said_again.clear()

    @property
    def is_put_off(self) -> bool:
        """Whether some worker has announced that it answers later."""
        return any(rank in self._ranks.get(name, ()) for name, rank in self._later)

    def silent(self) -> tuple[str, ...]:
        """The replicas with a worker that has not answered, in order."""
        return tuple(sorted(self._ranks, key=replica_order))

    def unheard(self) -> tuple[str, ...]:
        """The replicas with a worker that has neither answered nor announced it, in order."""
        return self._without(self._later)

    def overdue(self) -> tuple[str, ...]:
        """The replicas with a worker that has done neither since it was last asked, in order."""
        return self._without(self._said_again)

    def _without(self, excused: set[tuple[str, int]]) -> tuple[str, ...]:
        return tuple(
            name
            for name in self.silent()
            if any((name, rank) not in excused for rank in self._ranks[name])
        )
