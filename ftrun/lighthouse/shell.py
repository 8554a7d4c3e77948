"""Feeds events to the core and carries out its instructions, in order.

Knows sessions, not gRPC. Everything happens in one event loop and one call: an event is handled,
and all that follows from it is queued or on disk, before the next one is looked at. So a record
is in the journal before anything that follows it can leave (the senders run only after the call).
Not here: any decision (core/), the streams themselves (server.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from typing import Any

from ftrun import clock
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSaidMuch,
    CloseAgent,
    Event,
    Instruction,
    Journal,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.messages import FromAgent, Hello, Notice, WorkerMessage
from ftrun.lighthouse.event_log import EventLog
from ftrun.lighthouse.journal import JournalFile
from ftrun.protocol.broadcast import Broadcast
from ftrun.protocol.send_queue import SendQueue
from ftrun.protocol.streams import StreamCodec

OUTBOX_MESSAGES_MAX = 4096
OUTBOX_BYTES_MAX = 32 * 1024 * 1024
TIMER_DELAY_MIN_S = 0.001
"""A core whose deadline is always now must not take the whole processor."""

log = logging.getLogger(__name__)


class Session:
    """One agent's stream, as the shell sees it: what is to be sent, and whether it is over.

    ``codec``: the stream's own; what is ``put`` was encoded for it, in this order.
    """

    def __init__(self, agent_id: str, codec: StreamCodec | None = None) -> None:
        self.agent_id = agent_id
        self.codec = codec or StreamCodec()
        self.closing: str | None = None
        self.cut = False
        self._queue = SendQueue(OUTBOX_MESSAGES_MAX, OUTBOX_BYTES_MAX)
        self.closed = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Queue for sending. An agent that does not drain its queue is cut."""
        if not self._queue.put(data):
            self.close("it does not drain its messages")

    def close(self, reason: str) -> None:
        """End the stream after what is queued."""
        if self.closing is None:
            self.closing = reason
        self.closed.set()
        self._queue.close()

    async def next(self) -> bytes | None:
        """The batch to send next; None: the session is closing and everything is sent."""
        return await self._queue.next_batch()


class Shell:
    """The lighthouse's core with its sessions, its journal and its one timer.

    ``failed`` is set when the lighthouse cannot go on (a journal that cannot be written, a bug):
    training goes on without it, and a restart takes over.
    """

    def __init__(self, core: Lighthouse, journal: JournalFile) -> None:
        self._core = core
        self._journal = journal
        self._sessions: dict[str, Session] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._broadcast = Broadcast()
        self._event_log = EventLog()
        self._received: Counter[str] = Counter()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def agents(self) -> int:
        """How many agents are attached."""
        return len(self._sessions)

    def start(self) -> None:
        """Let the core begin: what it says first (its epoch, for the journal) is carried out."""
        self._feed(TimerFired())

    def attached(self, session: Session, hello: Hello) -> None:
        """An agent's stream stands. Its former one, if any, is replaced."""
        former = self._sessions.pop(session.agent_id, None)
        if former is not None:
            former.close("the agent has come by another stream")
        self._sessions[session.agent_id] = session
        log.info("agent %s attached (host %s)", session.agent_id, hello.host)
        self._feed(AgentAttached(session.agent_id, hello))

    def received(self, session: Session, *messages: FromAgent) -> None:
        """Messages came in on the session's stream, all at once."""
        if self._sessions.get(session.agent_id) is session:
            for message in messages:
                received = message.message if type(message) is WorkerMessage else message
                self._received[type(received).__name__] += 1
            self._feed(AgentSaidMuch(session.agent_id, messages))

    def detached(self, session: Session, reason: str) -> None:
        """The session's stream is over; a session that was replaced says nothing."""
        session.close(reason)
        if self._sessions.get(session.agent_id) is session:
            del self._sessions[session.agent_id]
            log.info("agent %s detached: %s", session.agent_id, session.closing)
            self._feed(AgentDetached(session.agent_id))

    def snapshot(self) -> dict[str, Any]:
        """What the core knows, and what was told, for /status."""
        now = clock.now()
        status = self._core.snapshot(now)
        for replica in status["replicas"]:
            replica["last_event"] = self._event_log.last_of(replica["replica_id"], now)
            scalars = replica["scalars"].items()
            # JSON has no NaN and no infinity.
            replica["scalars"] = {k: v if math.isfinite(v) else None for k, v in scalars}
        received = dict(sorted(self._received.items()))
        return {**status, "events": self._event_log.events(now), "messages_received": received}

    def stop(self) -> None:
        """Forget the timer and end all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        for session in self._sessions.values():
            session.close("the lighthouse stops")

    def _feed(self, event: Event) -> None:
        if self.failed.done():
            return
        try:
            for instruction in self._core.handle(event, clock.now()):
                self._carry_out(instruction)
            self._arm()
        except Exception as error:  # noqa: BLE001 - the shell's edge: told, and the service ends.
            self.failed.set_exception(error)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, SendToAgent):
            self._send(instruction)
        elif isinstance(instruction, Journal):
            self._journal.write(instruction.record)
        elif isinstance(instruction, CloseAgent):
            # The core has done with it: the end of this stream is no event any more.
            session = self._sessions.pop(instruction.agent_id, None)
            if session is not None:
                session.close(instruction.reason)
        else:
            raise TypeError(f"no instruction: {instruction!r}")

    def _send(self, instruction: SendToAgent) -> None:
        message = instruction.message
        if isinstance(message, Notice) and self._event_log.note(message):
            log.info("%s: %s", message.kind, message.text)
        session = self._sessions.get(instruction.agent_id)
        if session is not None:
            session.put(self._broadcast.encode(message, session.codec.memory))

    def _arm(self) -> None:
        """Set the one timer to the core's next deadline; most events leave it as it is."""
        at = self._core.next_deadline()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at is not None:
            delay_s = max(TIMER_DELAY_MIN_S, at - clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_out)

    def _time_out(self) -> None:
        self._timer = self._timer_at = None
        self._feed(TimerFired())
