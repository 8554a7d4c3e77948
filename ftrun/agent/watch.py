"""The events that the program that launched an agent can watch: each event, instruction and start.

Not here: the watchers (launching/reporter.py), the meaning of an event (core/agent/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core.agent.events import Event, Instruction
from ftrun.core.ids import WorkerKey


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker's process has started."""

    key: WorkerKey
    pid: int


Watch: TypeAlias = Callable[[Event | Instruction | WorkerStarted], None]
"""Called in the agent's event loop with each fact, before the agent acts on it; returns at once."""


def unwatched(fact: Event | Instruction | WorkerStarted) -> None:
    """The watch of an agent that was started from a command line: does nothing."""


def both(one: Watch, other: Watch) -> Watch:
    def watch(fact: Event | Instruction | WorkerStarted) -> None:
        one(fact)
        other(fact)

    return watch
