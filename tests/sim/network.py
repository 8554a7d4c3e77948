"""Streams between agents and lighthouse, and the Unix sockets between agent and workers.

A pipe keeps the order. Messages are delayed, and a pipe may stall for a while. When it is cut, the
first of the messages in flight still arrive and the rest is lost. Not here: when it is cut
(faults.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.actor import Actor
    from tests.sim.lighthouse import LighthouseProcess
    from tests.sim.node import Agent
    from tests.sim.world import World

KEEPALIVE_S = 2.0


class Pipe:
    """One direction of an ordered stream."""

    def __init__(
        self,
        world: World,
        receiver: Actor,
        deliver: Callable[[Any], None],
        delay_s: tuple[float, float],
    ) -> None:
        self._world = world
        self._receiver = receiver
        self._deliver = deliver
        self._delay_s = delay_s
        self._queue: deque[Any] = deque()
        self._last_at = 0.0
        self._stalled_until = 0.0
        self.closed = False
        self.stream: Stream | None = None

    def send(self, message: Any) -> None:
        """Send a message; in a closed pipe it is lost."""
        if self.closed:
            return
        world = self._world
        low, high = self._delay_s
        arrives = world.now + low + (high - low) * world.rng.random() ** 3
        arrives = self._last_at = max(arrives, self._last_at)
        self._queue.append(message)
        world.at(arrives - world.now, self._receiver, self._arrive)

    def stall(self, duration_s: float) -> None:
        """Deliver nothing for a while; then everything, in order."""
        self._stalled_until = self._world.now + duration_s

    def close(self, keep: int | None = None) -> float:
        """Accept no more messages; the first ``keep`` of those in flight arrive (None: all).

        Returns the time until the last of them arrives.
        """
        self.closed = True
        if keep is not None:
            while len(self._queue) > keep:
                self._queue.pop()
        left_s = max(0.0, self._last_at - self._world.now) if self._queue else 0.0
        return max(left_s, self._stalled_until - self._world.now)

    def take_rest(self) -> tuple[Any, ...]:
        """Take all messages in flight: they have queued up behind the one that has arrived."""
        rest = tuple(self._queue)
        self._queue.clear()
        return rest

    def forget(self) -> None:
        """Its receiver is replaced: messages in flight are lost."""
        self._queue.clear()

    @property
    def under_way(self) -> int:
        """The number of messages in flight."""
        return len(self._queue)

    def _arrive(self) -> None:
        world = self._world
        if self._stalled_until > world.now and not world.calm:
            world.at(self._stalled_until - world.now, self._receiver, self._arrive)
        elif self._queue:
            self._deliver(self._queue.popleft())


class Stream:
    """An agent's stream to one life of the lighthouse: two pipes that end together."""

    def __init__(self, world: World, agent: Agent, lighthouse: LighthouseProcess) -> None:
        delay_s = (0.0002, world.faults.delay_max_s)
        self.agent = agent
        self.lighthouse = lighthouse
        self.up = Pipe(
            world, lighthouse, lambda message: lighthouse.received(self, message), delay_s
        )
        self.down = Pipe(world, agent, lambda message: agent.received(self, message), delay_s)
        self.open = True
        self._world = world
        self.up.stream = self.down.stream = self
        lighthouse.streams.append(self)

    def vanish(self) -> None:
        """The agent's machine is gone: messages in flight to the lighthouse still arrive."""
        self.open = False
        self.up.close()
        self.down.close(0)

    def time_out(self) -> None:
        """Both ends close a stream without traffic: all messages in flight are lost."""
        if not self.open:
            return
        self.open = False
        rng = self._world.rng
        for pipe in (self.up, self.down):
            pipe.close(0)
        agent, lighthouse = self.agent, self.lighthouse
        self._world.at(rng.uniform(0.0, 0.5), agent, agent.disconnected, self, "no answer")
        self._world.at(rng.uniform(0.0, 0.5), lighthouse, lighthouse.disconnected, self)

    def cut(self, *, lossy: bool = True, half_open: bool = False) -> None:
        """The stream breaks. Half-open: only the agent notices, by a keepalive."""
        if not self.open:
            return
        self.open = False
        rng = self._world.rng
        up_s = self.up.close(rng.randint(0, self.up.under_way) if lossy else None)
        down_s = self.down.close(rng.randint(0, self.down.under_way) if lossy else None)
        slow_s = KEEPALIVE_S if half_open else 0.02
        told_s = down_s + rng.uniform(0.0, slow_s)
        self._world.at(told_s, self.agent, self.agent.disconnected, self, "the stream broke")
        if not half_open:
            told_s = up_s + rng.uniform(0.0, 0.02)
            self._world.at(told_s, self.lighthouse, self.lighthouse.disconnected, self)
