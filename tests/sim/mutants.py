"""Planted bugs."""

from __future__ import annotations

from tests.sim.world import Cores


def cores_of(name: str) -> Cores:
    """The cores with this bug in them."""
    return Cores()
