"""The agent of a program whose threads are replicas: sockets, lighthouse and store, no processes.

It runs in a thread of the program with its own event loop, from the first Manager that takes a seat
until the last one is closed. To the lighthouse it is an ordinary agent, and to the Managers too:
they connect to its Unix socket. It cannot kill a thread, so a Manager that is out of the job gets
an error instead.

Not here: when it starts and ends (seats.py); slots, incarnations and losses (replicas.py); how a
Manager uses its seat (training/seats.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ftrun.agent.link import LighthouseLink
from ftrun.agent.tcp_stores import open_store
from ftrun.agent.workers import WorkerServer
from ftrun.base import clock, defaults
from ftrun.base.addresses import LOOPBACK, join_address
from ftrun.base.errors import FtrunError, PeerError, UserError, assert_never
from ftrun.compat.background import BackgroundLoop
from ftrun.compat.threads.lighthouse import InProcessLighthouse
from ftrun.compat.threads.replicas import (
    SLOTS,
    EndSeat,
    Newcomers,
    SeatGiven,
    SeatInstruction,
    SeatRefused,
    ThreadReplicas,
)
from ftrun.compat.threads.seat import LighthouseHere, SeatWanted, ThreadSeat, ended
from ftrun.core import messages as m
from ftrun.core.agent.events import SendToLighthouse
from ftrun.core.agent.lease import AgentLease
from ftrun.core.ids import WorkerKey
from ftrun.core.version import unlike_version
from ftrun.protocol.auth import default_token_path, load_token, new_token
from ftrun.protocol.handshake import not_for_agents
from ftrun.protocol.rpc import Disconnected, Refusal
from ftrun.training.context import WorkerContext

TOKEN_FILE_ENV = "FTRUN_TOKEN_FILE"
JOIN_TIMEOUT_S = 0.1
"""With a lighthouse elsewhere: how long the first quorum waits for more than the minimum of
replicas."""
ANSWER_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 5.0
"""How long to wait for a Manager's last messages from its socket."""
LOOP_TIMEOUT_S = 30.0
JOIN_WAIT_S = 5.0
"""How long members wait between two steps for a newcomer's join to be agreed."""
JOIN_LOOK_S = 0.01
LOOK_EVERY_S = 0.25
"""How often to check whether a seat's thread has ended."""
QUIET_NOTICES = frozenset({"waiting", "formed", "switched", "homeless", "ended", "finished"})
"""Notices about what a program of threads does itself, which are not shown."""

log = logging.getLogger(__name__)


class ThreadAgent:
    """One job's agent. Coroutines and callbacks run in its loop; ``run`` calls them from outside.

    Attributes:
        seats: the open Managers.
        is_over: the job has ended, or its lighthouse has gone: no further seat is assigned.

    Args:
        wanted: the first seat, which determines the size of the groups.
        address: of the lighthouse.
        here: the same lighthouse, if it is in this process.
        loop: the agent's own.
    """

    def __init__(
        self,
        wanted: SeatWanted,
        address: str,
        here: LighthouseHere | None,
        loop: BackgroundLoop,
    ) -> None:
        self._address = address
        self._loop = loop
        self._membership = InProcessLighthouse() if here is not None else None
        self._token = self._membership.token if self._membership is not None else _token()
        self._id = f"threads-{secrets.token_hex(8)}"
        self._spec = _spec(self._id, wanted, here)
        self._replicas = ThreadReplicas(self._id, wanted.group_size)
        self._lease = AgentLease(defaults.JOIN_TIMEOUT_S, defaults.ISOLATION_LIMIT_S)
        self._directory = Path(tempfile.mkdtemp(prefix="ftrun-threads-"))
        self._own_token = new_token()
        self._server = WorkerServer(self, self._own_token, self._directory)
        self._started_at = clock.now()
        self._answer_timeout_s = min(ANSWER_TIMEOUT_S, wanted.timeout_s)
        self._refused: FtrunError | None = None
        self._why_not = "it has not answered"
        self._link: LighthouseLink | None = None
        self._looking: asyncio.Task[None] | None = None
        self._store: Any = None
        self._names: dict[WorkerKey, str] = {}
        self._welcomed = asyncio.Event()
        self._left: dict[WorkerKey, asyncio.Event] = {}
        self._changed = threading.Condition()
        self._newcomers = Newcomers()
        self.seats: dict[WorkerKey, ThreadSeat] = {}
        self.is_over = False

    # ------------------------------------------------------------ from the Managers' threads

    def run(self, work: Any) -> Any:
        """Run a coroutine of the agent in its loop, and wait for it."""
        return self._loop.run(work, LOOP_TIMEOUT_S)

    def seat(
        self, given: SeatGiven, wanted: SeatWanted, leave: Callable[[WorkerKey, str], None]
    ) -> ThreadSeat:
        """The seat that was assigned to the new Manager of this thread.

        ``leave`` is called when the Manager is closed, with the failure.
        """
        spec = self._spec
        context = WorkerContext(
            job_id=spec.job_id,
            key=given.key,
            replicas=spec.replicas,
            min_replicas=spec.min_replicas,
            workers_per_replica=spec.workers_per_replica,
            host=LOOPBACK,
            socket_path=str(self._server.path),
            token=self._own_token,
            connect_timeout_s=wanted.timeout_s,
            quorum_timeout_s=0.0,
            heartbeat_timeout_s=spec.heartbeat_timeout_s,
            restarts=given.restarts,
            group_store=wanted.store,
        )
        incarnation = given.key.incarnation
        seat = ThreadSeat(
            context, partial(leave, given.key), partial(self.await_newcomers, incarnation)
        )
        self.seats[given.key] = seat
        return seat

    def await_newcomers(self, incarnation: str, is_agreed: Callable[[], bool]) -> None:
        """Wait between two steps of a member, so that existing Managers can join it.

        torchft's lighthouse waits ``join_timeout_ms`` for live replicas that have not asked for the
        quorum. In the same way members wait for a Manager that has not reached its first step. For
        one that has, they wait until its join is agreed (``is_agreed``).
        """
        with self._changed:
            if incarnation in self._newcomers.idle | self._newcomers.joining:
                return  # it is a newcomer itself
            self._changed.wait_for(lambda: not self._newcomers.idle, self._spec.join_timeout_s)
            deadline = clock.now() + JOIN_WAIT_S
            while self._newcomers.joining and not is_agreed() and clock.now() < deadline:
                self._changed.wait(JOIN_LOOK_S)

    def end(self) -> None:
        """End all parts and the loop's thread."""
        try:
            self.run(self.close())
        finally:
            self._loop.close()

    # ------------------------------------------------------------ in the loop

    async def start(self) -> None:
        """Serve the Managers, open the store, and wait for the lighthouse's welcome.

        Raises:
            UserError: it refuses.
            PeerError: it does not answer.
        """
        address = self._address
        if self._membership is not None:
            address = await self._membership.start()
        self._store = open_store(LOOPBACK, 0)
        await self._server.start()
        self._link = LighthouseLink(self, self._hello, self._token, self._spec)
        self._link.start([address])
        self._looking = asyncio.ensure_future(self._look())
        try:
            await asyncio.wait_for(self._welcomed.wait(), self._answer_timeout_s)
        except asyncio.TimeoutError:
            raise PeerError(
                f"no ftrun lighthouse answers at {self._address} ({self._why_not}), so the Manager "
                "was not made. Replicas that are threads need ftrun.torchft.LighthouseServer in "
                "this process, or `ftrun lighthouse` without TLS: see that it runs."
            ) from None
        if self._refused is not None:
            raise self._refused

    async def take(self, wanted: SeatWanted) -> SeatGiven:
        """Assign a seat.

        Raises:
            UserError: no seat is free for these arguments.
        """
        given = self._replicas.seat_asked(wanted.name, wanted.rank, wanted.group_size, wanted.store)
        found = None
        for instruction in given:
            if isinstance(instruction, SeatRefused):
                raise UserError(instruction.reason)
            if isinstance(instruction, SeatGiven):
                found = instruction
            else:
                self._carry_out(instruction)
        assert found is not None, "a seat is given or refused"
        self._names[found.key] = wanted.name
        self._show_newcomers()
        return found

    async def leave(self, key: WorkerKey, failure: str) -> None:
        """Note that a Manager is closed, once its last messages have arrived."""
        if self._server.is_connected(key):
            gone = self._left[key] = asyncio.Event()
            try:
                await asyncio.wait_for(gone.wait(), LEAVE_TIMEOUT_S)
            except asyncio.TimeoutError:
                log.warning("the connection of the Manager %s did not end in time", key)
            finally:
                del self._left[key]
        self._forget(key)
        self._do(self._replicas.seat_left(key, failure))

    def begin_without_lighthouse(self) -> None:
        """Continue without a lighthouse. From any thread, including the loop's; does not wait."""
        self.is_over = True
        self._loop.begin(self._lose_lighthouse())

    async def _lose_lighthouse(self) -> None:
        """Stop the lighthouse. Open Managers continue until a replica joins or leaves."""
        if self._membership is not None:
            await self._membership.stop()

    async def close(self) -> None:
        """End everything except the loop."""
        self.is_over = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._link is not None:
            self._link.send(m.Goodbye())
            await self._link.close()
        await self._server.close()
        if self._membership is not None:
            await self._membership.stop()
        self._store = None
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _look(self) -> None:
        """Find threads that have ended without a shutdown, and detect the end of the lease."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for key, seat in list(self.seats.items()):
                if not seat.thread.is_alive() and self._replicas.is_open(key):
                    cause = f"thread {seat.thread.name!r} has ended without Manager.shutdown()"
                    self._end(key, cause)
                    self._do(self._replicas.seat_left(key, cause))
            if self._lease.ends(clock.now()):
                self._lease.isolated = True
                self._send_lease()

    def _forget(self, key: WorkerKey) -> None:
        self.seats.pop(key, None)
        self._names.pop(key, None)

    def _do(self, instructions: list[SeatInstruction]) -> None:
        for instruction in instructions:
            self._carry_out(instruction)
        self._show_newcomers()

    def _show_newcomers(self) -> None:
        """Wake members that wait for newcomers."""
        found = self._replicas.newcomers()
        if found != self._newcomers:
            with self._changed:
                self._newcomers = found
                self._changed.notify_all()

    def _carry_out(self, instruction: SeatInstruction) -> None:
        match instruction:
            case SendToLighthouse(message):
                if self._link is not None:
                    self._link.send(message)
            case EndSeat(key, reason):
                self._end(key, reason)
            case SeatGiven() | SeatRefused():
                pass  # ``take`` reports it
            case _:
                assert_never(instruction)

    def _end(self, key: WorkerKey, reason: str) -> None:
        """End a Manager in a thread, because its builders and connections take time to end."""
        seat = self.seats.get(key)
        if seat is None:
            return
        error = ended(reason, self._names.get(key, key.replica_id))
        threading.Thread(
            target=seat.end, args=(error,), name=f"ftrun-end-{key.replica_id}", daemon=True
        ).start()

    # ------------------------------------------------------------ from the Managers' links

    def worker_known(self, key: WorkerKey, pid: int) -> bool:
        """True if ``key`` is an open seat."""
        return pid == os.getpid() and self._replicas.is_open(key)

    def worker_attached(self, key: WorkerKey) -> None:
        """Send a new Manager the lease: how long it may commit (Q3)."""
        lease = self._current_lease()
        if lease is not None:
            self._server.send_to(key, lease)

    def worker_disconnected(self, key: WorkerKey) -> None:
        """All of a Manager's messages have arrived."""
        gone = self._left.get(key)
        if gone is not None:
            gone.set()

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        """Relay a Manager's message to the lighthouse."""
        if self._link is None:
            return
        if isinstance(message, m.Progress):
            self._link.note_progress(key, message)
        else:
            self._link.send(m.WorkerMessage(key, message))
            if isinstance(message, m.Report | m.InForce):
                self._replicas.worker_sent(key, message)
                self._show_newcomers()

    # ------------------------------------------------------------ from the lighthouse

    def _hello(self) -> m.Hello:
        return m.Hello(
            agent_id=self._id,
            spec=self._spec,
            capacity=SLOTS,
            host=socket.gethostname(),
            store=join_address(LOOPBACK, self._store.port),
            running=self._replicas.running(),
            dead=self._replicas.dead(),
            finished=self._replicas.finished(),
            epoch=0 if self._link is None else self._link.epoch,
            age_s=clock.now() - self._started_at,
        )

    def link_opened(self) -> None:
        """Hello was sent: ask every Manager for its Report."""
        self._server.broadcast(m.AskReport())

    def link_message(self, message: m.ToAgent, asked_at: float | None) -> None:
        """Relay to Managers first, because they may wait for a lost peer; then handle it here."""
        if isinstance(message, m.ToWorkers):
            for target in message.targets:
                self._server.send(target.replica_id, target.incarnation, message.message)
        self._lease.received(clock.now(), asked_at)
        if asked_at is not None:
            self._send_lease()
        match message:
            case m.Welcome(_, _, version):
                unlike = unlike_version(version, "the lighthouse")
                self._answer(UserError(unlike) if unlike else None)
            case m.Rejected(reason):
                self._answer(UserError(f"The lighthouse at {self._address} refuses: {reason}"))
            case m.RestartReplica(_, incarnation, reason):
                self._do(self._replicas.taken_out(incarnation, reason))
            case m.StopReplica(_, incarnation):
                self._do(self._replicas.taken_out(incarnation, "people have stopped it"))
            case m.KillWorkers(_, incarnation):
                self._do(self._replicas.taken_out(incarnation, "people have killed it"))
            case m.AskStacks(request, keys):
                self._send_stacks(request, keys)
            case m.EndJob(_, reason):
                self.is_over = True
                self._do(self._replicas.job_ended(f"the job has ended: {reason}"))
            case m.Notice(kind, _, text):
                log.log(logging.DEBUG if kind in QUIET_NOTICES else logging.INFO, "%s", text)
            case _:
                pass  # all slots are this agent's, and acknowledgements renew the lease

    def link_failed(self, ending: Disconnected) -> None:
        """The stream, or an attempt to open one, has failed; a retry follows."""
        self._lease.disconnected()
        self._why_not = ending.reason
        if ending.refused is not None and not self._welcomed.is_set():
            reason = (
                f"The lighthouse at {self._address} does not accept the token of this process, so "
                f"the Manager was not made. Name the file with the lighthouse's token: "
                f"{TOKEN_FILE_ENV}=FILE."
            )
            if ending.refused is Refusal.PORT:
                reason = not_for_agents(self._address, ending.words)
            self._answer(UserError(reason))

    def _answer(self, refused: FtrunError | None) -> None:
        if refused is not None:
            self.is_over = True
            self._refused = refused
            self._do(self._replicas.job_ended(str(refused)))
        self._welcomed.set()

    def _current_lease(self) -> m.Lease | None:
        until_s = self._lease.until_s()
        return None if until_s is None else m.Lease(until_s)

    def _send_lease(self) -> None:
        lease = self._current_lease()
        if lease is not None:
            self._server.broadcast(lease)

    def _send_stacks(self, request: int, keys: tuple[WorkerKey, ...]) -> None:
        frames = sys._current_frames()
        for key in keys:
            seat = self.seats.get(key)
            frame = frames.get(seat.thread.ident or 0) if seat is not None else None
            text = "".join(traceback.format_stack(frame)) if frame is not None else ""
            if self._link is not None:
                self._link.send(m.WorkerStacks(request, key, text))


def _spec(job_id: str, wanted: SeatWanted, here: LighthouseHere | None) -> m.JobSpec:
    """The job: the maximum number of slots for threads, and the conditions of a first quorum.

    Raises:
        UserError: it wants more replicas than there are slots.
    """
    least = here.min_replicas if here is not None else wanted.min_replicas
    if least > SLOTS:
        raise UserError(
            f"min_replicas is {least}, and a job of threads has {SLOTS} replica groups at most. "
            "Start the script with `ftrun --replicas N SCRIPT`."
        )
    return m.JobSpec(
        job_id=job_id,
        replicas=SLOTS,
        workers_per_replica=wanted.group_size,
        min_replicas=least,
        join_timeout_s=here.join_timeout_s if here is not None else JOIN_TIMEOUT_S,
        heartbeat_timeout_s=defaults.HEARTBEAT_TIMEOUT_S,
        isolation_limit_s=defaults.ISOLATION_LIMIT_S,
        rebalance=False,
    )


def _token() -> str:
    """The token for a lighthouse elsewhere; if none is set a random one, which is refused.

    Raises:
        UserError: the file is not usable.
    """
    named = os.environ.get(TOKEN_FILE_ENV)
    path = Path(named) if named else default_token_path()
    return load_token(path) if named or path.exists() else new_token()
