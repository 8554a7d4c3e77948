"""Collects the instructions of one event.

Not here: the decisions (supervisor.py), how instructions are carried out (agent/shell.py).
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
        """The next event happens at ``now``."""
        self.now = now
        self._out = []

    def take(self) -> list[Instruction]:
        """All instructions of this event."""
        return self._out

    def add(self, instruction: Instruction) -> None:
        """Add an instruction after all that were collected so far."""
        self._out.append(instruction)

    def send(self, message: FromAgent) -> None:
        self.add(SendToLighthouse(message))
