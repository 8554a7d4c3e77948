"""A batch of reductions that get their results together: ``Manager.batch``.

Only the end of the block shows which reduction is the last one, and the step machine must know it
when that one is issued. So each reduction is issued when the next one comes.

Not here: what a batch is to the step (core/worker/operations.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrun.training.reductions import Reduction


class Batch:
    """The reductions of one block. ``issue`` sends a reduction on its way."""

    def __init__(self, issue: Callable[[Reduction], Any]) -> None:
        self._issue = issue
        self._held: Reduction | None = None
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether more reductions may follow."""
        return self._is_open

    def add(self, reduction: Reduction) -> None:
        """Issue the reduction before this one."""
        held, self._held = self._held, reduction
        if held is not None:
            self._issue(held)

    def close(self) -> None:
        """Issue the last one, which closes the batch."""
        self._is_open = False
        held, self._held = self._held, None
        if held is not None:
            held.closes = True
            self._issue(held)
