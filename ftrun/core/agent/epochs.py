"""Which lighthouse an agent follows: never one of an earlier epoch than it has followed before.

A lighthouse that was paused or cut off may not know that another has taken over. Not here: how a
lighthouse finds that out (core/register/).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EpochGuard:
    """The epochs that an agent accepts.

    ``highest``: the highest epoch of a Welcome that was accepted; 0: none was.
    """

    highest: int = 0

    def accepts(self, epoch: int) -> bool:
        """Whether to follow a lighthouse whose Welcome has this epoch."""
        if epoch < self.highest:
            return False
        self.highest = epoch
        return True
