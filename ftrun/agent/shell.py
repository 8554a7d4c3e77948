"""The agent: receives, asks the supervisor, carries out, and decides nothing.

One event loop brings together the fleet of processes, the workers' socket, the lighthouse's stream,
signals and one timer. Not here: decisions (core/agent/supervisor.py), and each part by itself.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ftrun import clock
from ftrun.agent import linux
from ftrun.agent.devices import Machine
from ftrun.agent.embedded import ChildEnvironment, EmbeddedLighthouse, LighthouseAddress
from ftrun.agent.fleet import Fleet
from ftrun.agent.launch import SpawnerLaunch
from ftrun.agent.link import LighthouseLink, web_address
from ftrun.agent.logs import Terminal, flush_python_streams, log_path
from ftrun.agent.summary import summary_lines
from ftrun.agent.workers import WorkerServer
from ftrun.config import RunSettings
from ftrun.core.agent.events import (
    AskToStop,
    AskWorker,
    DrainAsked,
    EndAgent,
    Event,
    FailureReported,
    Instruction,
    JobEnded,
    LighthouseGone,
    LighthouseSent,
    NoManagerMade,
    RestartAsked,
    SendToLighthouse,
    SendToReplica,
    SendToWorkers,
    ShowNotice,
    SignalReplica,
    SlotsAssigned,
    SpawnerLost,
    SpawnerReady,
    SpawnerWarmed,
    StandbyExited,
    StartReplica,
    StartStandby,
    StopAsked,
    SweepReplica,
    TimerFired,
    WorkerDisconnected,
    WorkerExited,
    WorkerSent,
    WorkerUsed,
)
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.standby import StandbyRules
from ftrun.core.agent.supervisor import REMEDY_APART, Supervisor, SupervisorSettings
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import (
    AskReport,
    AssignSlots,
    EndJob,
    FailureReport,
    Hello,
    Isolation,
    NoManager,
    Notice,
    Progress,
    Rejected,
    RestartReplica,
    ToAgent,
    ToWorkers,
    Welcome,
    WorkerMessage,
)
from ftrun.errors import ExitCode, UserError
from ftrun.protocol.rpc import Disconnected

UNREACHABLE_AGAIN_S = 5.0
TEMP_DIR_BYTES_MAX = 80


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rooms beside this one, which the CLI brings together.

    ``child_environment``: how a child becomes a lighthouse. ``announce``: told where the lighthouse
    answers people and where the token is, each time that is known anew; ``withdraw``: at the end.
    """

    child_environment: ChildEnvironment
    announce: Callable[[str, Path], None]
    withdraw: Callable[[], None]


def run_agent(
    settings: RunSettings,
    machine: Machine,
    token: str,
    token_file: Path | None,
    launch: SpawnerLaunch,
    neighbours: Neighbours,
) -> int:
    """Run one agent to its end; returns the exit code.

    ``token_file``: where the token lies already; None: it is this job's alone, and is written into
    the job's own directory for as long as the job runs.
    """
    linux.become_subreaper()
    flush_python_streams()
    runtime_dir = _make_runtime_dir()
    try:
        if token_file is None:
            token_file = runtime_dir / "token"
            token_file.touch(mode=0o600)
            token_file.write_text(token, encoding="ascii")
        return asyncio.run(
            _run(settings, machine, token, token_file, launch, neighbours, runtime_dir)
        )
    finally:
        neighbours.withdraw()
        shutil.rmtree(runtime_dir, ignore_errors=True)


def _make_runtime_dir() -> Path:
    """A directory of mode 0700 for the socket, whose path the kernel limits to 107 bytes."""
    try:
        if len(os.fsencode(tempfile.gettempdir())) <= TEMP_DIR_BYTES_MAX:
            return Path(tempfile.mkdtemp(prefix="ftrun-"))
        return Path(tempfile.mkdtemp(prefix="ftrun-", dir="/tmp"))
    except OSError as error:
        raise UserError(
            f"No temporary directory can be made ({error}). Set TMPDIR to one that you may write."
        ) from None


async def _run(
    settings: RunSettings,
    machine: Machine,
    token: str,
    token_file: Path,
    launch: SpawnerLaunch,
    neighbours: Neighbours,
    runtime_dir: Path,
) -> int:
    agent = Agent(settings, machine, token, token_file, launch, neighbours, runtime_dir)
    try:
        return await agent.run()
    finally:
        await agent.close()


class Agent:
    """The shell. Its public methods are the callbacks of the parts that it puts together."""

    def __init__(
        self,
        settings: RunSettings,
        machine: Machine,
        token: str,
        token_file: Path,
        launch: SpawnerLaunch,
        neighbours: Neighbours,
        runtime_dir: Path,
    ) -> None:
        self._settings = settings
        self._token_file = token_file
        self._neighbours = neighbours
        self._machine = machine
        self._loop = asyncio.get_running_loop()
        self._started_at = clock.now()
        self._agent_id = f"{socket.gethostname()[:40]}-{secrets.token_hex(8)}"
        self._supervisor = Supervisor(self._rules(), self._started_at)
        self._done: asyncio.Future[EndAgent] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._terminal = Terminal()
        self._fleet = Fleet(self, settings, machine, token, launch, runtime_dir, self._terminal)
        self._server = WorkerServer(self, token, runtime_dir)
        self._link = LighthouseLink(self, self._hello, token, settings.spec(), settings.tls)
        self._lighthouse = self._embedded(token, runtime_dir)
        self._address = settings.lighthouse or ""
        self._store = ""
        self._own_slots: frozenset[str] = frozenset()
        self._epoch = 0
        self._tries = 0
        self._unreachable_shown_at: float | None = None

    async def run(self) -> int:
        """Start everything, and wait for the supervisor's last word."""
        self._loop.set_exception_handler(self._broken)
        self._catch_signals()
        await self._server.start()
        self._fleet.start()
        if self._lighthouse is not None:
            self._lighthouse.start()
        self._connect()
        self._arm()
        return (await self._done).exit_code

    async def close(self) -> None:
        """End everything that was started, and see that nothing is left (P1)."""
        if self._timer is not None:
            self._timer.cancel()
        await self._link.close()
        stuck, _ = await asyncio.gather(self._fleet.stop(), self._stop_lighthouse())
        await self._server.close()
        self._show_end(stuck)
        await self._loop.run_in_executor(None, self._terminal.close)

    async def _stop_lighthouse(self) -> None:
        """The spawner's sweep may be faster; a journal is whole at any moment."""
        if self._lighthouse is not None:
            await self._lighthouse.stop()

    # ------------------------------------------------------------ parts

    def _rules(self) -> SupervisorSettings:
        s = self._settings
        return SupervisorSettings(
            **{**s.shared_with(SupervisorSettings), "standbys": StandbyRules(s.standbys)},
            agent_id=self._agent_id,
            restarts=RestartRules(s.max_restarts),
            alone=s.lighthouse is None,
            crash_code=ExitCode.CRASH_LOOP,
            unreachable_code=ExitCode.LIGHTHOUSE_UNREACHABLE,
            unready_code=ExitCode.USAGE,
            target=s.script.target,
        )

    def _embedded(self, token: str, runtime_dir: Path) -> EmbeddedLighthouse | None:
        if self._settings.lighthouse is not None:
            return None
        state_dir = self._settings.state_dir or runtime_dir / "lighthouse"
        state_dir.mkdir(parents=True, exist_ok=True)
        return EmbeddedLighthouse(
            self._neighbours.child_environment,
            state_dir,
            token,
            self._fleet.guard_id,
            self._settings.job_log_dir / "lighthouse.log",
            self._lighthouse_ready,
            self._lighthouse_ended,
        )

    def _catch_signals(self) -> None:
        for number, code in (
            (signal.SIGTERM, ExitCode.PREEMPTED),
            (signal.SIGHUP, ExitCode.PREEMPTED),
            (signal.SIGINT, ExitCode.INTERRUPTED),
        ):
            self._loop.add_signal_handler(number, partial(self._signalled, number, int(code)))

    def _signalled(self, number: signal.Signals, exit_code: int) -> None:
        if self._supervisor.is_ending:
            self._handle(StopAsked())
        else:
            self._handle(DrainAsked(number.name, exit_code))

    # ------------------------------------------------------------ events and instructions

    def _handle(self, event: Event) -> None:
        for instruction in self._supervisor.handle(event, clock.now()):
            self._carry_out(instruction)
        self._arm()

    def _arm(self) -> None:
        """One timer, for the earliest deadline; most events leave it as it is."""
        at = None if self._done.done() else self._supervisor.next_deadline()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at is not None:
            self._timer = self._loop.call_later(max(0.0, at - clock.now()), self._time_out)

    def _time_out(self) -> None:
        self._timer = self._timer_at = None
        self._handle(TimerFired())

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback of ours is a bug: end the job and say so, at once.

        What other libraries leave in the loop is logged as asyncio would.
        """
        error = context.get("exception")
        frames = traceback.extract_tb(error.__traceback__) if error is not None else []
        if not any(Path(frame.filename).parent == Path(__file__).parent for frame in frames):
            loop.default_exception_handler(context)
            return
        lines = traceback.format_exception(error)
        self._terminal.event_line(
            "ftrun contradicts itself. Please report this:\n" + "".join(lines)
        )
        if not self._done.done():
            self._done.set_result(EndAgent(ExitCode.BUG, f"a bug in ftrun: {error!r}"))

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SendToLighthouse(message):
                self._link.send(message)
            case SignalReplica(_, incarnation, number):
                self._fleet.signal_replica(incarnation, number)
            case StartReplica():
                self._fleet.start_replica(instruction)
            case StartStandby(name):
                self._fleet.start_standby(name)
            case AskToStop(_, incarnation):
                self._fleet.ask_to_stop(incarnation)
            case SweepReplica(_, incarnation):
                self._fleet.sweep_replica(incarnation)
            case SendToWorkers(message):
                self._server.broadcast(message)
            case SendToReplica(replica_id, incarnation, message):
                self._server.send(replica_id, incarnation, message)
            case AskWorker(key):
                self._server.send_to(key, AskReport())
                self._loop.call_soon(self._show_use, key)
            case ShowNotice():
                self._show_notice(instruction)
            case EndAgent():
                if not self._done.done():
                    self._done.set_result(instruction)

    def _show_use(self, key: WorkerKey) -> None:
        process = self._fleet.process_of(key)
        if process is not None:
            self._handle(WorkerUsed(key, process.pid, process.cpu_s))

    def _show_notice(self, line: ShowNotice) -> None:
        text = line.text
        if line.log is not None:
            life = line.log
            directory = self._settings.job_log_dir
            text += f" Log: {log_path(directory, life.replica_id, life.group_rank, life.restarts)}"
        self._terminal.event_line(text)

    def _show_end(self, stuck: list[int]) -> None:
        if stuck:
            self._terminal.event_line(f"stuck in the kernel, not ended: pids {stuck}")
        if not self._done.done():
            return
        elapsed_s = clock.now() - self._started_at
        log_dir = self._settings.job_log_dir
        slots = self._supervisor.summary()
        for line in summary_lines(slots, self._done.result(), elapsed_s, log_dir):
            self._terminal.event_line(line)
        if self._supervisor.ran_apart:
            self._terminal.event_line(f"  The replica groups ran apart. {REMEDY_APART}")
        if self._settings.standbys:
            used = self._supervisor.standbys_used
            self._terminal.event_line(f"  standbys: {self._settings.standbys} kept, {used} used")

    # ------------------------------------------------------------ the fleet speaks

    def fleet_ready(self, store: str) -> None:
        """Workers can be started: now the lighthouse may hear of this agent."""
        self._store = store
        self._handle(SpawnerReady())
        self._link.announce()

    def fleet_warmed(self) -> None:
        """What is started from now on has all imported."""
        self._handle(SpawnerWarmed())

    def standby_exited(self, name: str, status: int) -> None:
        """A standby has ended before it had a part."""
        self._handle(StandbyExited(name, status))

    def worker_exited(self, event: WorkerExited) -> None:
        """A worker has ended."""
        self._handle(event)

    def fleet_lost(self, reason: str, exit_code: int) -> None:
        """Nothing can be started any more."""
        self._handle(SpawnerLost(reason, exit_code))

    # ------------------------------------------------------------ workers speak

    def worker_known(self, key: WorkerKey, pid: int) -> bool:
        """True if ``key`` is a worker that runs now, with this pid."""
        return self._fleet.knows(key, pid)

    def worker_attached(self, key: WorkerKey) -> None:
        """A worker must know from the start how long it may go on, or that it may not (Q3)."""
        if self._supervisor.lease is not None:
            self._server.send_to(key, self._supervisor.lease)
        if self._supervisor.isolated:
            self._server.send_to(key, Isolation(True))

    def worker_disconnected(self, key: WorkerKey) -> None:
        """It has closed its connection."""
        self._handle(WorkerDisconnected(key))

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        """Relay what is for the lighthouse, and let the supervisor know."""
        match message:
            case FailureReport():
                self._handle(FailureReported(key, message))
            case NoManager(has_stepped):
                self._handle(NoManagerMade(key, has_stepped))
            case Progress():
                self._link.note_progress(key, message)
                self._handle(WorkerSent(key, message))
            case _:
                self._link.send(WorkerMessage(key, message))
                self._handle(WorkerSent(key, message))

    # ------------------------------------------------------------ the lighthouse speaks

    def _lighthouse_ready(self, address: LighthouseAddress) -> None:
        self._address = address.grpc
        self._announce(address.http)
        self._connect()

    def _announce(self, http: str) -> None:
        try:
            self._neighbours.announce(http, self._token_file)
        except OSError as error:
            self._terminal.event_line(f"`ftrun status` will not find this job: {error}")

    def _lighthouse_ended(self, how: str, usable: bool) -> None:
        if not usable:
            self._terminal.event_line(f"The embedded lighthouse {how}")
            self._handle(JobEnded(ExitCode.USAGE, "the embedded lighthouse cannot be started"))
            return
        self._terminal.event_line(
            f"The embedded lighthouse {how}; it is started again. Training goes on."
        )

    def _connect(self) -> None:
        if self._address:
            self._fleet.lighthouse = self._address
            self._link.start([self._address])

    def _hello(self) -> Hello | None:
        if not self._store:
            return None
        return Hello(
            agent_id=self._agent_id,
            spec=self._settings.spec(),
            capacity=0 if self._supervisor.is_ending else self._machine.capacity,
            host=self._machine.host,
            store=self._store,
            running=self._supervisor.running(),
            dead=self._supervisor.dead(),
            finished=self._supervisor.finished(),
            epoch=self._epoch,
            age_s=clock.now() - self._started_at,
        )

    def link_opened(self, address: str) -> None:
        """Hello is said; every worker's Report follows."""
        self._server.broadcast(AskReport())

    def link_message(self, message: ToAgent, asked_at: float | None) -> None:
        """What is for workers first: they may be waiting for the dead. Any word shows life."""
        if isinstance(message, ToWorkers):
            for target in message.targets:
                self._server.send(target.replica_id, target.incarnation, message.message)
        if self._unreachable_shown_at is not None and not self._supervisor.was_answered:
            self._terminal.event_line(f"The lighthouse at {self._address} answers.")
        self._handle(LighthouseSent(asked_at))
        match message:
            case AssignSlots(replica_ids):
                self._own_slots = frozenset(replica_ids)
                self._fleet.keep_only(replica_ids)
                self._handle(SlotsAssigned(replica_ids))
            case RestartReplica(replica_id, incarnation, reason):
                self._handle(RestartAsked(replica_id, incarnation, reason))
            case EndJob(exit_code, reason):
                self._handle(JobEnded(exit_code, reason))
            case Rejected(reason):
                self._terminal.event_line(f"The lighthouse refuses this agent: {reason}")
                self._handle(JobEnded(ExitCode.REFUSED, reason))
            case Notice():
                self._notice(message)
            case Welcome(epoch, http):
                self._epoch = epoch
                self._welcomed(http)
            case _:
                pass  # HeartbeatAck says that it lives, no more.

    def _welcomed(self, http: str) -> None:
        """An embedded lighthouse has told already where it answers people."""
        if self._lighthouse is None:
            at = web_address(http, self._address)
            if at is not None:
                self._announce(at)

    def link_failed(self, ending: Disconnected) -> None:
        """Say it, with a count, as long as there never was a lighthouse."""
        if ending.refused and not self._supervisor.was_answered:
            self._terminal.event_line(
                f"The lighthouse at {self._address} does not accept the token. Give both the "
                "same one: --token-file FILE."
            )
            self._handle(JobEnded(ExitCode.REFUSED, "the token was refused"))
        elif not self._supervisor.was_answered and self._lighthouse is None:
            self._show_unreachable(ending)
        self._handle(LighthouseGone(ending.reason, ending.failures))

    def _show_unreachable(self, ending: Disconnected) -> None:
        self._tries += 1
        shown_at, now = self._unreachable_shown_at, clock.now()
        if shown_at is not None and now - shown_at < UNREACHABLE_AGAIN_S:
            return
        self._unreachable_shown_at = now
        until = self._supervisor.gives_up_at
        how_long = "again" if until is None else f"for {max(0.0, until - now):.0f} s more"
        self._terminal.event_line(
            f"No lighthouse answers at {self._address} (try {self._tries}: {ending.reason}). "
            f"Trying {how_long}. "
            f"Start one with: ftrun lighthouse --bind {self._address} --token-file FILE"
            + ("" if self._settings.tls else " (or, if it is there with TLS, give --tls-ca PEM)")
        )

    def _notice(self, notice: Notice) -> None:
        """The lighthouse's line, unless the same is said here with more to it.

        An agent that ends does not print what becomes of the replicas that it takes with it: after
        Ctrl-C "training begins again at step 0" reads like a failure.
        """
        own = bool(notice.replica_ids) and set(notice.replica_ids) <= self._own_slots
        is_all = notice.kind == "lost" and not notice.replica_ids
        if self._supervisor.is_ending and (is_all or notice.kind == "homeless"):
            return
        if notice.kind != "ended" and not (notice.kind == "lost" and own):
            self._terminal.event_line(notice.text)
