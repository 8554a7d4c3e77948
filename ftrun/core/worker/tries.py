"""Counts the failed tries of the step after this worker's state, so that scripts that count their
tries stay alike.

Not here: when a try is given up (machine.py), what the lighthouse does with the number
(``Report``).
"""

from __future__ import annotations

from collections import deque

OWED_MAX = 64


class Tries:
    """The tries of one worker.

    Attributes:
        count: the failed tries of the step that follows the state; see ``Report``.
        refused: why an operation was refused in the attempt that was given up last; "": none was.
    """

    def __init__(self) -> None:
        self.count = 0
        self.refused = ""
        self._failed: tuple[int, int, int] | None = None  # the operation that has failed last
        # Tries that peers have failed and that are still to be made here: their step, and the
        # reason.
        self._owed: deque[tuple[int, str]] = deque(maxlen=OWED_MAX)

    def fails_again(self, quorum_id: int, step: int, index: int) -> bool:
        """An operation has failed. Returns whether the last one to fail was the same."""
        before, self._failed = self._failed, (quorum_id, step, index)
        return before == self._failed

    def owe(self, step: int, tries: int, why: str) -> None:
        """``tries`` more of ``step`` must fail here."""
        self._owed.extend([(step, why)] * min(tries, OWED_MAX))

    def owed_at(self, step: int | None) -> int:
        """How many tries of ``step`` are owed."""
        return sum(owed == step for owed, _ in self._owed)

    def pay(self, step: int, *, heals: bool) -> str | None:
        """A try of ``step`` begins. Returns why it must fail; None: it counts."""
        owed, why = self._owed.popleft() if self._owed else (-1, "")
        return why if owed == step and not heals else None
