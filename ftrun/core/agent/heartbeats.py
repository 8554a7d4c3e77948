"""An agent's heartbeats: which of them ask the lighthouse for an answer, and which tell progress.

A lease (contact.py) needs an answer now and then, not one a second; and an answer costs the
lighthouse as much as a heartbeat does. In a job of many nodes the progress of all its replicas
costs as much again, and nobody watches a thousand of them by the second. Not here: what an answer
means (contact.py), when a heartbeat is sent (agent/link.py).
"""

from __future__ import annotations

from collections import deque

HEARTBEATS_PER_ANSWER = 4
LEASE_LOST_MAX = 1 / 15
"""So much of the isolation limit may have passed since the last question when the link breaks."""
SMALL_JOB_NODES = 32
"""Up to so many nodes every heartbeat tells progress; else those that ask do."""
ASKED_MAX = 1024


class Heartbeats:
    """The questions of one agent, which are answered one for one and in order.

    ``heartbeat_s``: between two heartbeats. ``nodes``: of the job.
    """

    def __init__(self, heartbeat_s: float, isolation_limit_s: float, nodes: int) -> None:
        # Half a heartbeat less: timers are not exact.
        pause_s = (HEARTBEATS_PER_ANSWER - 0.5) * heartbeat_s
        self._pause_s = min(pause_s, LEASE_LOST_MAX * isolation_limit_s)
        self._is_small = nodes <= SMALL_JOB_NODES
        self._asked: deque[float] = deque()
        self._answered_at: float | None = None

    def asked(self, now: float) -> None:
        """A question was sent: a Hello, or a heartbeat that asks."""
        self._asked.append(now)

    def answered(self) -> float | None:
        """An answer has come. When its question was sent, or None if there was none."""
        self._answered_at = self._asked.popleft() if self._asked else None
        return self._answered_at

    def broke(self) -> None:
        """The stream is gone, and what was asked on it will not be answered."""
        self._asked.clear()
        self._answered_at = None

    @property
    def is_mute(self) -> bool:
        """So many questions without an answer: who is there does not answer any more."""
        return len(self._asked) >= ASKED_MAX

    def asks(self, now: float) -> bool:
        """Whether the next heartbeat asks.

        Each one does while an answer is long in coming, so that a silence ends with the first word.
        """
        return self._answered_at is None or now - self._answered_at >= self._pause_s

    def tells(self, asks: bool) -> bool:
        """Whether the next heartbeat, which asks or does not, tells what progress there was."""
        return asks or self._is_small
