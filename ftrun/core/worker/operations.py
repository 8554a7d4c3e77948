"""The ledger of one step's reductions: issued, done, handed out. Pure bookkeeping.

*Batched* operations (DDP's buckets) are handed out together, once their batch is closed and all of
it is done, so that a death before that can still be repaired. Others are handed out one by one.
"""

from __future__ import annotations


class OperationLedger:
    """Indices 0, 1, 2 … in the order of issue.

    Invariant: handed ⊆ done ⊆ issued; what is handed out is never taken back (S7).
    """

    def __init__(self) -> None:
        self.issued = 0
        self._done: set[int] = set()
        self._batched: set[int] = set()
        self._handed: set[int] = set()
        self._batch_open = False

    @property
    def complete(self) -> bool:
        """Every operation that was issued is done, and no batch is open."""
        return len(self._done) == self.issued and not self._batch_open

    @property
    def outstanding(self) -> bool:
        """An operation that was issued is not done."""
        return len(self._done) < self.issued

    @property
    def completed(self) -> int:
        return len(self._done)

    @property
    def untouched(self) -> bool:
        """No result has been handed to the script."""
        return not self._handed

    @property
    def all_handed(self) -> bool:
        """Every result has been handed to the script."""
        return len(self._handed) == self.issued

    def issue(self, batched: bool, closes: bool) -> int:
        """Record one more operation; returns its index."""
        index = self.issued
        self.issued += 1
        if batched:
            self._batched.add(index)
            self._batch_open = not closes
        return index

    def finish(self, index: int) -> bool:
        """Operation ``index`` is done; False if that was known or it was never issued."""
        if index in self._done or not 0 <= index < self.issued:
            return False
        self._done.add(index)
        return True

    def take_ready(self) -> tuple[int, ...]:
        """The operations that can be handed out now and were not before."""
        ready = self._done - self._batched
        if not self._batch_open and self._batched <= self._done:
            ready |= self._batched
        ready -= self._handed
        self._handed |= ready
        return tuple(sorted(ready))

    @property
    def handed(self) -> int:
        """No operation from this one on was handed out."""
        return max(self._handed, default=-1) + 1

    @property
    def done_until(self) -> int:
        """All operations before this one are done."""
        return next(index for index in range(self.issued + 1) if index not in self._done)

    def start_again(self, first: int) -> None:
        """In-step repair: the same operations again, and none is done from ``first`` on."""
        assert self.handed <= first <= self.done_until, "S7: what was handed out is never changed"
        self._done = set(range(first))
