"""One agent's lease: until when its workers may commit without an answer of the lighthouse (Q3).

The lighthouse may form a quorum without the members of a silent agent, but only after
``isolation_limit_s``. So those members stop committing once that time has passed. The limit counts
from the moment at which a request was *sent* (a Hello, a heartbeat that asks), not from the moment
at which its answer arrived, because the time that the answer took is unknown. Workers receive the
end of the lease in advance, because a stopped agent cannot warn them later.

``AgentLease`` interprets the answers. ``LeaseRequests`` decides which heartbeats ask for one. A
lease needs an answer now and then, not every second, and an answer costs the lighthouse as much as
a heartbeat. In a job of many nodes the progress of all replicas costs as much again. So in such a
job only the heartbeats that ask carry progress, and other heartbeats are omitted after another
message: at a death all nodes answer several times, and all that the lighthouse reads delays them.

Not here: the stream (protocol/rpc.py), when a heartbeat is sent (agent/link.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

HEARTBEATS_PER_ANSWER = 4
LEASE_LOST_MAX = 1 / 15
"""The share of the isolation limit that may have passed since the last request if a link breaks."""
SMALL_JOB_NODES = 32
"""In jobs of up to this many nodes every heartbeat carries progress."""
REQUESTS_MAX = 1024


@dataclass
class AgentLease:
    """The lease as this agent knows it.

    ``ready_at``: when the agent could first send a Hello; None: not yet. ``renewed_at``: when the
    latest answered request was sent; None before the first answer. ``is_connected``: a stream is
    open. ``isolated``: the lease is over, and no worker here may commit. An agent that never had
    an answer gives up ``join_timeout_s`` after ``ready_at``.
    """

    join_timeout_s: float
    isolation_limit_s: float
    ready_at: float | None = None
    renewed_at: float | None = None
    is_connected: bool = False
    isolated: bool = False

    def ready(self, now: float) -> None:
        """The agent can send a Hello. Later calls change nothing."""
        self.ready_at = now if self.ready_at is None else self.ready_at

    def received(self, now: float, asked_at: float | None) -> None:
        """A message has arrived; ``asked_at``: when the request that it answers was sent."""
        self.is_connected = True
        if asked_at is None:
            return
        self.renewed_at = asked_at if self.renewed_at is None else max(asked_at, self.renewed_at)
        self.isolated = self.isolated and now >= self.renewed_at + self.isolation_limit_s

    def until_s(self) -> float | None:
        """When the lease ends, or None before the first answer."""
        return None if self.renewed_at is None else self.renewed_at + self.isolation_limit_s

    def disconnected(self) -> None:
        """The stream, or an attempt to open one, has failed."""
        self.is_connected = False

    def never_began(self, now: float) -> bool:
        """True if no lighthouse has answered within the join timeout."""
        if self.renewed_at is not None or self.ready_at is None:
            return False
        return now >= self.ready_at + self.join_timeout_s

    def ends(self, now: float) -> bool:
        """True once, when the lease ends: from then on no worker here may commit."""
        if self.renewed_at is None or self.isolated:
            return False
        return now >= self.renewed_at + self.isolation_limit_s

    def deadline(self) -> float | None:
        """When ``never_began`` or ``ends`` may become true."""
        if self.renewed_at is None:
            return None if self.ready_at is None else self.ready_at + self.join_timeout_s
        return None if self.isolated else self.renewed_at + self.isolation_limit_s


class LeaseRequests:
    """The requests of one agent for a lease. The lighthouse answers them one by one, in order.

    ``heartbeat_s``: the time between two heartbeats. ``nodes``: the number of the job's nodes.
    """

    def __init__(self, heartbeat_s: float, isolation_limit_s: float, nodes: int) -> None:
        # Half a heartbeat less: timers are not exact.
        pause_s = (HEARTBEATS_PER_ANSWER - 0.5) * heartbeat_s
        self._pause_s = min(pause_s, LEASE_LOST_MAX * isolation_limit_s)
        self._is_small = nodes <= SMALL_JOB_NODES
        self._sent: deque[float] = deque()
        self._answered_at: float | None = None
        self._has_spoken = False

    def sent(self, now: float) -> None:
        """A request was sent: a Hello, or a heartbeat that asks."""
        self._sent.append(now)

    def answered(self) -> float | None:
        """An answer has arrived. Returns when its request was sent, or None if there was none."""
        self._answered_at = self._sent.popleft() if self._sent else None
        return self._answered_at

    def disconnected(self) -> None:
        """The stream has ended: its open requests will not be answered."""
        self._sent.clear()
        self._answered_at = None

    @property
    def is_full(self) -> bool:
        """Whether ``REQUESTS_MAX`` requests are open, so the peer does not answer any more."""
        return len(self._sent) >= REQUESTS_MAX

    def asks(self, now: float) -> bool:
        """Whether the next heartbeat asks.

        While an answer is late every heartbeat asks, so that the first answer ends the silence.
        """
        return self._answered_at is None or now - self._answered_at >= self._pause_s

    def carries_progress(self, asks: bool) -> bool:
        """Whether the next heartbeat, which asks or does not, carries progress."""
        return asks or self._is_small

    def is_needed(self, asks: bool) -> bool:
        """Whether to send the next heartbeat.

        Not if another message has already shown a sign of life.
        """
        has_spoken, self._has_spoken = self._has_spoken, False
        return self.carries_progress(asks) or not has_spoken

    def spoke(self) -> None:
        """A message has been sent since the last heartbeat was due."""
        self._has_spoken = True
