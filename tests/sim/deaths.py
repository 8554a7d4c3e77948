"""Deaths that the kernel shows long before the processes have ended.

Some seeds have such workers: their memory is freed slowly. Not here: the death (worker.py).
"""

from __future__ import annotations

DYING_FROM, DYING_TO = 200_000_000, 300_000_000
"""Seeds between these have such workers. (No recorded seed is among them.)"""
TEARDOWNS_S = (0.01, 0.3, 3.0)


def dies_slowly(seed: int) -> bool:
    """Whether the workers of this seed die slowly."""
    return DYING_FROM <= seed < DYING_TO
