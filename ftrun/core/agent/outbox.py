"""Collects what one event leads to.

Not here: what is decided (supervisor.py), how it is carried out (agent/shell.py).
"""

from __future__ import annotations

from ftrun.core.agent.events import Instruction, SendToLighthouse
from ftrun.core.messages import FromAgent


class Outbox:
    """The instructions of one event, in order. ``now``: when it happened."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._out: list[Instruction] = []

    def begin(self, now: float) -> None:
        """The next event, at ``now``."""
        self.now = now
        self._out = []

    def take(self) -> list[Instruction]:
        """All that this event has led to."""
        return self._out

    def add(self, instruction: Instruction) -> None:
        """Carry this out after all that has been collected so far."""
        self._out.append(instruction)

    def send(self, message: FromAgent) -> None:
        self.add(SendToLighthouse(message))
