"""Passes events to the core and carries out its instructions, in order.

It knows sessions, not gRPC. The core's instructions go through the journal: a record is durable
before any instruction that follows it is queued for sending. Until all instructions of an event are
carried out, further events wait in a queue. Not here: any decision (core/), the streams themselves
(protocol/serving.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from ftrun.base import clock
from ftrun.base.errors import assert_never
from ftrun.base.timer import DeadlineTimer
from ftrun.core.books.records import SaveAccount, SaveIncident
from ftrun.core.lighthouse import events as e
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.status import MembershipStatus
from ftrun.core.lighthouse.stopping import has_served
from ftrun.core.messages import EndJob, FromAgent, Healed, Hello, Notice, Welcome, WorkerMessage
from ftrun.lighthouse.account_file import AccountFile
from ftrun.lighthouse.candidacy import Candidacy
from ftrun.lighthouse.event_file import EventFile
from ftrun.lighthouse.event_log import EventLog
from ftrun.lighthouse.incident_file import IncidentFile
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.occurrences import Occurrences
from ftrun.lighthouse.traces import Traces
from ftrun.protocol.broadcast import Broadcast
from ftrun.protocol.serving import Host, Session

ASK_TIMEOUT_S = 10.0
TIMER_DELAY_MIN_S = 0.001
"""Limits the load of a core whose deadline is always now."""

log = logging.getLogger(__name__)


Journaling: TypeAlias = JournalFile | Candidacy
"""The shell's own file, or a register: both have the same methods."""


class Shell(Host):
    """The lighthouse's core with its sessions, its journal and its one timer.

    Attributes:
        failed: set to the error if the lighthouse cannot continue (the journal cannot be written, a
            bug). Training continues without it, and a restarted lighthouse takes over.
        again: done when this life of the lighthouse is over and another shall begin.
        looked: called after events.
        closed: called with the rank of an agent whose stream is closed.
        idle_nodes: the nodes in no replica group, if groups are larger than a node.
    """

    def __init__(
        self,
        core: Lighthouse,
        journal: Journaling,
        incidents: IncidentFile | None = None,
        account: AccountFile | None = None,
        events: EventFile | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._core = core
        self._journal = journal
        self._incidents = incidents if incidents is not None else IncidentFile()
        self._account = account if account is not None else AccountFile()
        self.occurrences = Occurrences(core, events, traces)
        core.books.incidents.take_over(self._incidents.earlier(clock.wall()))
        self._sessions: dict[str, Session] = {}
        self._events: deque[e.Event] = deque()
        self._is_handling = self._has_stopped = False
        self._went_on = asyncio.Event()
        self._timer = DeadlineTimer(partial(self._feed, e.TimerFired()), TIMER_DELAY_MIN_S)
        self._broadcast = Broadcast()
        self.event_log = EventLog()
        self._received: Counter[str] = Counter()
        self._operations = core.state.operations.last_number
        self._changed: dict[int, asyncio.Event] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.looked: Callable[[], None] = lambda: None
        self.closed: Callable[[int | None, str], None] = lambda rank, reason: None
        self.idle_nodes: Callable[[], list[str]] = list

    @property
    def welcome(self) -> Welcome:
        """The first message to each new session."""
        return Welcome(self._core.state.attempts.epoch, self._core.state.settings.http)

    @property
    def agents(self) -> int:
        return len(self._sessions)

    @property
    def outcome(self) -> EndJob | None:
        """How the job has ended; None: it has not ended, or not begun."""
        return self._core.state.outcome

    @property
    def agents_leaving(self) -> int:
        """The number of agents that are leaving: all, once the job has ended."""
        return self._core.leaving

    @property
    def has_served(self) -> bool:
        """Whether the job has ended and all its agents have left."""
        return has_served(self._core.state.outcome, len(self._sessions))

    def start(self) -> None:
        """Start the core and carry out its first instruction: its epoch goes to the journal."""
        self._feed(e.TimerFired())
        refusal = self._core.books.account.refusal
        if refusal:
            log.warning("the account of the job's time starts over now: %s", refusal)

    def attached(self, session: Session, hello: Hello) -> None:
        """An agent's stream is open. It replaces the agent's former stream, if any."""
        former = self._sessions.pop(session.peer_id, None)
        if former is not None:
            former.close("the agent has come by another stream")
        self._sessions[session.peer_id] = session
        session.rank = hello.rank
        log.info("agent %s attached (host %s)", session.peer_id, hello.host)
        self._feed(e.AgentAttached(session.peer_id, hello))

    def received(self, session: Session, *messages: FromAgent) -> None:
        """A batch of messages has arrived on the session's stream."""
        if self._sessions.get(session.peer_id) is session:
            for message in messages:
                received = message.message if type(message) is WorkerMessage else message
                self._received[type(received).__name__] += 1
                if type(message) is WorkerMessage and type(message.message) is Healed:
                    self.occurrences.healed(message.message, message.key)
            self._feed(e.AgentSent(session.peer_id, messages))

    def detached(self, session: Session, reason: str) -> None:
        """The session's stream is over. A replaced session causes no event."""
        session.close(reason)
        if self._sessions.get(session.peer_id) is session:
            del self._sessions[session.peer_id]
            log.info("agent %s detached: %s", session.peer_id, session.closing)
            self._feed(e.AgentDetached(session.peer_id))

    def snapshot(self, now: float) -> MembershipStatus:
        return self._core.snapshot(now)

    def messages_received(self) -> dict[str, int]:
        return dict(sorted(self._received.items()))

    async def ask(self, request: e.Request) -> e.Operation | None:
        """Begin the requested operation; None: too many are pending, or no decision is possible
        now."""
        self._operations += 1
        number = self._operations
        self._feed(e.OperatorAsked(number, request))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.caught_up(), ASK_TIMEOUT_S)
        return None if self.is_behind else self._core.operation(number, request.request_id)

    @property
    def is_behind(self) -> bool:
        """Whether events are queued, or instructions wait for the journal."""
        return bool(self._events) or not self._journal.may_decide

    async def caught_up(self) -> None:
        """Wait until the queue is empty. The caller's stream or request bounds the wait."""
        while self.is_behind and not (self._has_stopped or self.failed.done()):
            self._went_on.clear()
            await self._went_on.wait()

    def operation(self, number: int) -> e.Operation | None:
        """The state of a request; None if it is unknown or forgotten."""
        return self._core.operation(number)

    async def operation_changed(self, number: int, timeout_s: float) -> None:
        """Wait until the operation changes, at most this long."""
        changed = self._changed.setdefault(number, asyncio.Event())
        try:
            await asyncio.wait_for(changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            pass
        finally:
            if self._changed.get(number) is changed:
                del self._changed[number]

    def stop(self, *, is_deposed: bool = False) -> None:
        """Keep the account, unless another lighthouse does; cancel the timer, end all sessions."""
        self._timer.close()
        self._has_stopped = True
        self._went_on.set()
        if not is_deposed:
            self.occurrences.account(clock.now(), with_bands=True)
        last = None if is_deposed else self._core.books.account.record(clock.now())
        if last is not None:
            self._account.write(last.document)
        for session in self._sessions.values():
            session.close("the lighthouse stops")

    def _feed(self, event: e.Event) -> None:
        if not (self._has_stopped or self.failed.done()):
            self._events.append(event)
            self.go_on()

    def go_on(self) -> None:
        """Handle the queued events while the journal allows it."""
        if self._is_handling or self._has_stopped or self.failed.done():
            return
        self._is_handling = True
        try:
            while self._events and self._journal.may_decide:
                instructions = self._core.handle(self._events.popleft(), clock.now())
                self._journal.decided(instructions, self._carry_out)
                self.occurrences.looked(clock.now())
                self.looked()
            may_decide = self._journal.may_decide
            self._timer.set(self._core.next_deadline() if may_decide else None)
        except Exception as error:  # noqa: BLE001 - the shell's edge: the service ends with it.
            self.failed.set_exception(error)
        self._is_handling = False
        self._went_on.set()

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.SendToAgent():
                self._send(instruction)
            case e.BeginAgain(reason):
                log.warning("%s", reason)
                self._has_stopped = True
                self.again.set_result(None)
            case e.Journal():
                raise AssertionError("the journal has its records itself")
            case e.OperationChanged(number):
                changed = self._changed.pop(number, None)
                if changed is not None:
                    changed.set()
            case SaveIncident():
                self._save(instruction)
            case SaveAccount(document):
                self._account.write(document)
            case e.CloseAgent(agent_id, reason):
                # The core has already removed the agent, so the end of this stream is no event.
                session = self._sessions.pop(agent_id, None)
                if session is not None:
                    session.close(reason)
                    self.closed(session.rank, reason)
            case _:
                assert_never(instruction)

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents of the job as JSON, oldest first, including earlier lives of the
        lighthouse."""
        return self._incidents.of(self._core.state.spec.job_id)

    def _save(self, instruction: SaveIncident) -> None:
        """Add the dates to a record, keep it, and send it to the agents."""
        now = clock.wall()
        began = now - timedelta(seconds=instruction.age_s)
        dates = {"time": began.isoformat(timespec="milliseconds")}
        dates["written"] = now.isoformat(timespec="milliseconds")
        document = {**instruction.document, **dates}
        self._incidents.write(document)
        self.occurrences.incident(document)
        record = replace(instruction.record, document=json.dumps(document))
        for agent_id in instruction.agents:
            self._send(e.SendToAgent(agent_id, record))

    def _send(self, instruction: e.SendToAgent) -> None:
        message = instruction.message
        if isinstance(message, Notice) and not message.elsewhere and self.event_log.note(message):
            log.info("%s: %s", message.kind, message.text)
            self.occurrences.notice(message)
        session = self._sessions.get(instruction.agent_id)
        if session is not None:
            session.put(self._broadcast.encode(message, session.codec.memory))
