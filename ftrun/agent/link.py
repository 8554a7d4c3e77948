"""The agent's side of the stream to the lighthouse: Hello, relayed messages, heartbeats.

Not here: the stream itself (protocol/rpc.py), the decisions about messages (core/).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Protocol

from ftrun.base import clock
from ftrun.base.addresses import ANY_HOST, is_loopback
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.agent.epochs import EpochGuard
from ftrun.core.agent.group_progress import GroupProgress
from ftrun.core.agent.lease import LeaseRequests
from ftrun.core.ids import WorkerKey
from ftrun.protocol.rpc import Connected, ConnectionEvent, Disconnected, LighthouseConnection
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

HEARTBEATS_PER_TIMEOUT = 5


class LinkListener(Protocol):
    """The agent's callbacks for the stream to the lighthouse."""

    def link_opened(self) -> None:
        """The stream is open and Hello is sent; next the workers report."""

    def link_message(self, message: m.ToAgent, asked_at: float | None) -> None:
        """A message has arrived.

        ``asked_at``: when the request that it answers was sent, or None.
        """

    def link_failed(self, ending: Disconnected) -> None:
        """The stream, or an attempt to open one, has failed; the next attempt follows."""


class LighthouseLink:
    """One stream, which is opened again after each failure; a Hello is always sent first.

    ``wants_glance``: ask the lighthouse to add a summary of the job to its answers.
    """

    def __init__(
        self,
        listener: LinkListener,
        hello: Callable[[], m.Hello | None],
        token: str,
        spec: m.JobSpec,
        tls: TlsFiles = PLAINTEXT,
        *,
        wants_glance: bool = False,
    ) -> None:
        self._wants_glance = wants_glance
        self._listener = listener
        self._hello = hello
        self._token = token
        self._tls = tls
        self._job_id = spec.job_id
        self._interval_s = spec.heartbeat_timeout_s / HEARTBEATS_PER_TIMEOUT
        self._requests = LeaseRequests(self._interval_s, spec.isolation_limit_s, spec.nodes)
        self._connection: LighthouseConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._progress: dict[tuple[str, bool], tuple[float, m.ReplicaProgress]] = {}
        self._groups = GroupProgress()
        self._facts: dict[WorkerKey, tuple[float, m.WorkerFacts]] = {}
        self._open = False
        self._address = ""
        self._epochs = EpochGuard()

    def start(self, addresses: Sequence[str]) -> None:
        """Connect, and stay connected. A second call changes the addresses."""
        if self._connection is not None:
            self._connection.move(addresses)
            return
        self._connection = LighthouseConnection(
            addresses, self._token, self._on_event, tls=self._tls, job_id=self._job_id
        )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._connection.run()),
            loop.create_task(self._beat()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def announce(self) -> None:
        """Send Hello if there is a stream and all of Hello's fields are known."""
        hello = self._hello()
        if hello is None or self._connection is None or self._open or not self._address:
            return
        self._ask(hello)
        self._open = True
        self._listener.link_opened()

    @property
    def is_open(self) -> bool:
        """True while a stream is open on which Hello was sent."""
        return self._open

    @property
    def epoch(self) -> int:
        """The highest epoch of a lighthouse that this node has followed; 0 if there is none."""
        return self._epochs.highest

    @property
    def address(self) -> str:
        """The address of the lighthouse whose stream is open, or ""."""
        return self._address

    def send(self, message: m.FromAgent) -> None:
        """Send if there is a stream. A message that is not sent is covered by the next Hello."""
        if self._open and self._connection is not None:
            self._flush(_ended_in(message))
            self._connection.send(message)
            self._requests.spoke()

    def _flush(self, replica_id: str) -> None:
        """Send the stored progress of a replica that ends: its last steps count."""
        lines = self._take_progress(replica_id) if replica_id else ()
        if lines and self._connection is not None:
            self._connection.send(m.Heartbeat(lines, quiet=True))

    def note_progress(self, key: WorkerKey, progress: m.Progress) -> None:
        """Store the newest progress of a group; the next heartbeat carries it.

        Progress after a standstill does not replace the report of the standstill.
        """
        self._groups.note(key, progress)
        if key.group_rank == 0:
            line = m.ReplicaProgress(key.replica_id, key.incarnation, progress)
            goes_on = progress.phase is not Activity.STOPPED
            self._progress[key.replica_id, goes_on] = (clock.now(), line)

    def note_facts(self, facts: tuple[m.WorkerFacts, ...]) -> None:
        """Store the latest measurements of workers; the next heartbeat carries them."""
        self._facts.update({one.key: (clock.now(), one) for one in facts})

    async def close(self) -> None:
        """Send the queued messages and close; the connection limits how long this takes."""
        if self._connection is None:
            return
        self._connection.close()
        connecting, beating = self._tasks
        beating.cancel()
        await asyncio.gather(connecting, beating, return_exceptions=True)

    def _on_event(self, event: ConnectionEvent) -> None:
        match event:
            case Connected(address=address):
                self._address = address
                self.announce()
            case Disconnected():
                self._open = False
                self._address = ""
                self._requests.disconnected()
                self._listener.link_failed(event)
            case m.Welcome(epoch) if not self._epochs.accepts(epoch):
                assert self._connection is not None
                self._connection.drop(
                    f"its epoch is {epoch}, and this node has followed a lighthouse of epoch "
                    f"{self.epoch}: it has been replaced"
                )
            case m.AskHeartbeat():
                self.send(m.Heartbeat(quiet=True))
            case m.Welcome() | m.HeartbeatAck():
                self._listener.link_message(event, self._requests.answered())
            case _:
                self._listener.link_message(event, None)

    def _ask(self, question: m.Hello | m.Heartbeat) -> None:
        """Send a request, and note the time. Requests are answered one by one, in order."""
        assert self._connection is not None
        if self._connection.send(question):
            self._requests.sent(clock.now())

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Pass a task's exception to the event loop, as an exception of the agent itself."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            words = {"message": "the link to the lighthouse", "exception": error}
            asyncio.get_running_loop().call_exception_handler(words)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self._open and not self._requests.is_full:
                asks = self._requests.asks(clock.now())
                if self._requests.is_needed(asks):
                    self._beat_once(asks)

    def _beat_once(self, asks: bool) -> None:
        progress: tuple[m.ReplicaProgress, ...] = ()
        facts: tuple[m.WorkerFacts, ...] = ()
        if self._requests.carries_progress(asks):
            progress, facts = self._take_progress(), self._take_facts()
        wants_glance = asks and self._wants_glance
        heartbeat = m.Heartbeat(progress, not asks, facts, wants_glance)
        if asks:
            self._ask(heartbeat)
        elif self._connection is not None:
            self._connection.send(heartbeat)

    def _take_progress(self, replica_id: str = "") -> tuple[m.ReplicaProgress, ...]:
        """Take the stored progress, oldest first. Each one's time in storage is added to its phase.

        ``replica_id``: take only this replica's; "": take all.
        """
        taken = [key for key in self._progress if replica_id in ("", key[0])]
        now, kept = clock.now(), sorted(map(self._progress.pop, taken), key=itemgetter(0))
        return tuple(self._as_of_now(line, now - at) for at, line in kept)

    def _as_of_now(self, line: m.ReplicaProgress, age_s: float) -> m.ReplicaProgress:
        progress = self._groups.whole(line.replica_id, line.incarnation, line.progress)
        if progress.phase is not Activity.STOPPED:
            progress = replace(progress, since_s=progress.since_s + age_s)
        return replace(line, progress=progress)

    def _take_facts(self) -> tuple[m.WorkerFacts, ...]:
        facts, self._facts, now = self._facts, {}, clock.now()
        return tuple(replace(one, age_s=now - at) for at, one in facts.values())


def _ended_in(message: m.FromAgent) -> str:
    """The replica whose end the message reports; "" if it reports none."""
    if isinstance(message, m.ReplicaFinished | m.ReplicaLost):
        return message.replica_id
    if not isinstance(message, m.WorkerMessage):
        return ""
    word = message.message  # progress before the end is evaluated with that message
    is_end = isinstance(word, m.Leaving) or (isinstance(word, m.Present) and word.ended is not None)
    return message.key.replica_id if is_end else ""


def web_address(http: str, grpc: str) -> str | None:
    """The HTTP address, for this node, of a lighthouse bound to ``http`` and reached at ``grpc``.

    A lighthouse bound to every address answers at the host at which it was reached. None: it serves
    HTTP only on its own host, or not at all.
    """
    if not http:
        return None
    bound, _, port = http.rpartition(":")
    reached = grpc.rpartition(":")[0]
    if bound.strip("[]") in ANY_HOST:
        return f"{reached}:{port}"
    if is_loopback(bound.strip("[]")) and not is_loopback(reached.strip("[]")):
        return None
    return http
