"""How many examples a property is tried with. Not here: the profiles themselves (conftest.py)."""

from __future__ import annotations

from hypothesis import settings

FRESH_EXAMPLES = 200
"""Hypothesis's own number is 100, which runs with fixed seeds have."""


def examples(count: int) -> int:
    """``count`` with fixed seeds; twice as many in a run with fresh ones."""
    return count * settings().max_examples // 100
