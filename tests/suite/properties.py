"""How many examples a property is tried with. Not here: the profiles themselves (conftest.py)."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """``count``; a tenth of it where each branch is followed (scripts/core_coverage)."""
    return count * settings().max_examples // 100
