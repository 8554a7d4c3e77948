"""The timers that a worker's script sets with torch's ``expires(...)``, and expired ones.

A timer has a scope, which names a place in the script, and belongs to a process of the worker. The
script sets it before that place and releases it after. An expired timer is checked once more
``SECOND_LOOK_S`` later, because a stopped agent may not have read its release yet.

Not here: how they arrive (agent/file_timer.py), the consequences (hangs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SECOND_LOOK_S = 0.5
TIMERS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Expired:
    """An expired timer. ``number``: the signal that its script asks for; 0 or less: none."""

    group_rank: int
    pid: int
    scope: str
    number: int


@dataclass(slots=True)
class _Timer:
    due_at: float
    number: int


class ScriptTimers:
    """The timers of one incarnation's workers.

    If there are more than ``TIMERS_MAX``, the oldest is dropped: a script that never releases its
    timers names a new place each time.
    """

    def __init__(self) -> None:
        self._timers: dict[tuple[int, int, str], _Timer] = {}
        self._signalled: dict[int, tuple[int, str]] = {}

    def set(self, rank: int, pid: int, scope: str, due_at: float, number: int) -> None:
        """A process of a worker asks for ``number`` at ``due_at``.

        The same scope again resets the timer.
        """
        self._timers.pop((rank, pid, scope), None)
        if len(self._timers) >= TIMERS_MAX:
            del self._timers[next(iter(self._timers))]
        self._timers[rank, pid, scope] = _Timer(due_at + SECOND_LOOK_S, number)

    def release(self, rank: int, pid: int, scope: str) -> None:
        """The script has passed that place."""
        self._timers.pop((rank, pid, scope), None)

    def gone(self, rank: int) -> None:
        """A worker has ended, and its processes with it."""
        for key in [key for key in self._timers if key[0] == rank]:
            del self._timers[key]

    def expired(self, now: float) -> Expired | None:
        """The earliest expired timer. All other timers of its process are removed with it."""
        due = [(timer.due_at, key) for key, timer in self._timers.items() if timer.due_at <= now]
        if not due:
            return None
        rank, pid, scope = first = min(due)[1]
        number = self._timers[first].number
        for key in [key for key in self._timers if key[:2] == (rank, pid)]:
            del self._timers[key]
        return Expired(rank, pid, scope, number)

    def signalled(self, rank: int, number: int, why: str) -> None:
        """A worker was sent ``number`` because of a timer."""
        self._signalled[rank] = (number, why)

    def cause(self, rank: int, status: int) -> str:
        """Why a worker has ended with this status, if a timer is the cause; else ""."""
        number, why = self._signalled.get(rank, (0, ""))
        return why if number and status == -number else ""

    def deadlines(self) -> Iterator[float]:
        return (timer.due_at for timer in self._timers.values())
