"""The ledger of one step's reductions: issued, done, handed out. Pure bookkeeping.

*Held* operations belong to a batch (DDP's buckets): their results are handed out together, once the
batch is closed and all of it is done, so that a death in between can still be repaired beneath
them. Others are handed out one by one.
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
        """Everything that was issued is done, and no batch waits for more."""
        return len(self._done) == self.issued and not self._batch_open

    @property
    def outstanding(self) -> bool:
        """Something that was issued is not done."""
        return len(self._done) < self.issued

    @property
    def untouched(self) -> bool:
        """No result has been given to the script."""
        return not self._handed

    @property
    def all_handed(self) -> bool:
        """Nobody waits for anything."""
        return len(self._handed) == self.issued

    def issue(self, batched: bool, closes: bool) -> int:
        """One more operation; returns its index."""
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
        """What can be handed out now and was not before."""
        ready = self._done - self._batched
        if not self._batch_open and self._batched <= self._done:
            ready |= self._batched
        ready -= self._handed
        self._handed |= ready
        return tuple(sorted(ready))

    def start_again(self) -> None:
        """In-step repair: the same operations, none of them done."""
        assert self.untouched, "S7: what was handed out is never changed"
        self._done.clear()
