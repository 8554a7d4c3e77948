"""The agent's view for the program that launched it: each event, instruction and start.

Not here: who watches (launching/reporter.py), what an event means (core/agent/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core.agent.events import Event, Instruction
from ftrun.core.ids import WorkerKey


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker's process runs."""

    key: WorkerKey
    pid: int


Watch: TypeAlias = Callable[[Event | Instruction | WorkerStarted], None]
"""Called in the agent's event loop with each fact, before the agent acts on it; returns at once."""


def unwatched(fact: Event | Instruction | WorkerStarted) -> None:
    """The watch of an agent that was started from a command line."""


def both(one: Watch, other: Watch) -> Watch:
    def watch(fact: Event | Instruction | WorkerStarted) -> None:
        one(fact)
        other(fact)

    return watch
