"""The agent's shell: passes events to the supervisor, and carries out its instructions.

One event loop serves the processes of the fleet, the workers' socket, the lighthouse's stream,
signals and one timer. Not here: decisions (core/agent/supervisor.py), start and end (main.py),
lines for people (console.py), each part (fleet.py, workers.py, link.py, embedded.py).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ftrun.agent.console import Console, is_own
from ftrun.agent.embedded import EmbeddedLighthouse
from ftrun.agent.env_markers import AGENT_ID_NAME
from ftrun.agent.file_timer import FileTimer, timer_path, worker_of
from ftrun.agent.fleet import Fleet
from ftrun.agent.health import check_health
from ftrun.agent.incidents import IncidentRecords, with_output
from ftrun.agent.line import Line
from ftrun.agent.link import LighthouseLink, web_address
from ftrun.agent.logs import open_output, start_keeping
from ftrun.agent.peers import Peers
from ftrun.agent.resources import ResourceWatch
from ftrun.agent.setup import AgentSetup
from ftrun.agent.signals import PreemptionFile, catch_signals
from ftrun.agent.team.lead import Lead
from ftrun.agent.team.spanning import SpanningFleet, SpanningServer
from ftrun.agent.typed_events import CONSOLE, TypedEvents
from ftrun.agent.under_line import wants_line
from ftrun.agent.watch import Watch, WorkerStarted, both, unwatched
from ftrun.agent.workers import WorkerServer
from ftrun.base import clock
from ftrun.base.errors import ExitCode, assert_never
from ftrun.base.timer import DeadlineTimer
from ftrun.config.forms import (
    in_form,
    injection,
    leaves_state,
    standbys_of,
    why_no_memory_snapshots,
    would_have_helped,
)
from ftrun.core import messages as m
from ftrun.core.agent import events as e
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.standby import StandbyRules
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.forms import MEMORY, Form
from ftrun.core.ids import WorkerKey
from ftrun.core.version import unlike_version
from ftrun.protocol.embedding import Embedding, ServiceAddress
from ftrun.protocol.rpc import Disconnected, Refusal


class Agent:
    """The shell. Its parts call its public methods.

    ``publish``: publishes the lighthouse's HTTP address. ``watch``: see watch.py.
    """

    def __init__(
        self,
        setup: AgentSetup,
        publish: Callable[[str], None],
        watch: Watch = unwatched,
        lead: Lead | None = None,
    ) -> None:
        settings, machine, token = setup.settings, setup.machine, setup.token
        self._settings = settings
        self._lead = lead
        self._watch = watch
        self._publish = publish
        self._machine = machine
        self._loop = asyncio.get_running_loop()
        self._started_at = clock.now()
        self._life = f"{socket.gethostname()[:40]}-{secrets.token_hex(8)}"
        self._agent_id = os.environ.get(AGENT_ID_NAME) or self._life
        self._signal_rules = settings.signal_rules()
        self._standbys = StandbyRules(standbys_of(settings), parked=setup.launch.parked)
        self._supervisor = Supervisor(self._rules(), self._started_at)
        self._done: asyncio.Future[e.EndAgent] = self._loop.create_future()
        self._timer = DeadlineTimer(lambda: self.handle(e.TimerFired()))
        self._output = open_output(settings)
        self._console = Console(settings, self._output.terminal, self._supervisor)
        self._line: Line | None = None
        if wants_line(settings):
            own = (
                min(settings.replicas, machine.capacity)
                if settings.lighthouse
                else settings.replicas
            )
            self._line = Line(self._output.terminal, settings.job_id, settings.replicas, own)
            self._watch = both(watch, self._line.watch)
        self._resources = ResourceWatch(
            self._console.notice, settings.job_log_dir, has_gpus=bool(machine.devices)
        )
        self._fleet = (Fleet if lead is None else SpanningFleet)(
            self._fleet_event, setup, self._output, self._resources.before_start
        )
        self._fleet.on_start = self._worker_started
        self._server = (WorkerServer if lead is None else SpanningServer)(
            self, token, setup.runtime_dir
        )
        if isinstance(self._fleet, SpanningFleet) and isinstance(self._server, SpanningServer):
            assert lead is not None
            self._fleet.led_by(lead)
            self._server.lead = lead
        self.link = LighthouseLink(
            self,
            self._hello,
            token,
            settings.spec(),
            settings.tls,
            wants_glance=self._line is not None,
        )
        self._fleet.memory.on_progress = self._group_progressed
        self._fleet.memory.on_unlike = lambda *found: self.handle(e.WorkersUnlike(*found))
        self._fleet.memory.on_manager = lambda: self.handle(e.ManagerFound())
        self._peers = Peers(self._peers_silent)
        self._lighthouse = self._embedded(token, setup.runtime_dir)
        self._address = settings.lighthouse or ""
        self._runtime_dir = setup.runtime_dir
        self._preemption_file: PreemptionFile | None = None
        self._file_timer: FileTimer | None = None
        self._own_slots: frozenset[str] = frozenset()
        self._account: m.JobAccount | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        write = self._output.terminal.json_line if settings.event_log_handler == CONSOLE else None
        self._typed_events = TypedEvents(settings.job_id, write)
        self._incidents = IncidentRecords(settings.job_log_dir, self._output.terminal.event_line)

    async def run(self) -> e.EndAgent:
        """Start all parts, and wait for the supervisor's ``EndAgent``."""
        self._loop.set_exception_handler(self._broken)
        catch_signals(self._signal_rules, self._signalled)
        if self._settings.preempt_file is not None:
            self._preemption_file = PreemptionFile(self._settings.preempt_file, self._preempted)
        self._open_file_timer()
        await self._server.start()
        self._fleet.start()
        if self._line is not None:
            self._line.start()
        start_keeping(self._settings, self._output)
        self._resources.start(self._fleet.processes, self.link.note_facts)
        if self._lighthouse is not None:
            self._lighthouse.start()
        self._connect()
        if self._settings.nodes > 1 or self._lead is not None:
            self._begin(self._watch_peers())
        self._set_timer()
        return await self._done

    async def close(self) -> None:
        """Close all parts, so that no process is left (P1)."""
        self._timer.close()
        if self._preemption_file is not None:
            self._preemption_file.close()
        if self._file_timer is not None:
            self._file_timer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._resources.close()
        await self.link.close()
        ending = self._done.result() if self._done.done() else None
        ends_well = ending is not None and ending.exit_code == ExitCode.OK and ending.again is None
        stopping = self._fleet.stop(ends_well=ends_well)
        stuck, _ = await asyncio.gather(stopping, self._stop_lighthouse())
        await self._server.close()
        if stuck:
            self._console.stuck(stuck)
        if self._line is not None:
            self._line.close()
        if ending is not None and ending.again is None:
            self._console.end(ending, self._incidents, self._account)
        await self._loop.run_in_executor(None, self._output.close)

    async def _stop_lighthouse(self) -> None:
        """Stop the lighthouse.

        The spawner's sweep may kill it before; its journal is always complete.
        """
        if self._lighthouse is not None:
            await self._lighthouse.stop()

    # ------------------------------------------------------------ parts

    def _rules(self) -> SupervisorSettings:
        s = self._settings
        return SupervisorSettings(
            **{**s.shared_with(SupervisorSettings), "standbys": self._standbys},
            has_memory_snapshots=not why_no_memory_snapshots(s),
            leaves_state=leaves_state(s),
            keeps_one_world=injection(in_form(s, Form.ONE_WORLD)) == MEMORY,
            waits_for_mends=s.waits_for_mends,
            spans=s.spans,
            advice=would_have_helped(s),
            agent_id=self._life,
            restarts=RestartRules(
                s.max_restarts,
                as_torchrun=s.as_torchrun,
                repeats=not why_no_memory_snapshots(s),
                spent=s.restarts_spent,
            ),
            alone=s.lighthouse is None,
            lighthouse_at=s.lighthouse or "",
            signals=self._signal_rules,
            asks_siblings=s.as_torchrun,
            exits_with_job=s.exit_with == "job",
            target=s.script.target,
        )

    def _embedded(self, token: str, runtime_dir: Path) -> EmbeddedLighthouse | None:
        if self._settings.lighthouse is not None:
            return None
        state_dir = self._settings.state_dir or runtime_dir / "lighthouse"
        state_dir.mkdir(parents=True, exist_ok=True)
        outlives = self._settings.state_dir is not None
        return EmbeddedLighthouse(
            Embedding(str(state_dir), token, outlives=outlives),
            self._fleet.guard_id,
            self._settings.job_log_dir / "lighthouse.log",
            self._lighthouse_ready,
            self._lighthouse_ended,
        )

    def _open_file_timer(self) -> None:
        path = timer_path(os.environ, self._runtime_dir)
        if path is not None:
            self._file_timer = FileTimer(
                path, lambda pid: worker_of(pid, self._fleet.workers()), self.handle
            )

    def _signalled(self, number: int) -> None:
        if self._done.done():  # Only readers of the output delay the exit.
            self._output.terminal.hurry()
        else:
            self.handle(e.SignalReceived(number))

    def _preempted(self) -> None:
        reason = f"{self._settings.preempt_file} has appeared"
        self.handle(m.DrainAsked(reason, ExitCode.PREEMPTED, is_notice=True))

    # ------------------------------------------------------------ events and instructions

    def handle(self, event: e.Event) -> None:
        """Handle an event, of this node or of another node of its team."""
        self._watch(event)
        for instruction in self._supervisor.handle(event, clock.now()):
            self._watch(instruction)
            self._carry_out(instruction)
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer.set(None if self._done.done() else self._supervisor.next_deadline())

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the job at once: an exception in the agent's own code is a bug.

        Errors that other libraries leave in the loop are logged as asyncio logs them.
        """
        error = context.get("exception")
        if not is_own(error):
            loop.default_exception_handler(context)
            return
        self._console.bug(error)
        if not self._done.done():
            self._done.set_result(e.EndAgent(ExitCode.BUG, f"a bug in ftrun: {error!r}"))

    def _carry_out(self, instruction: e.Instruction) -> None:
        self._typed_events.note(instruction)
        match instruction:
            case e.SendToLighthouse(message):
                self.link.send(message)
            case e.SignalWorker(key, number):
                self._fleet.signal_worker(key, number)
            case e.SignalReplica(_, incarnation, number):
                self._fleet.signal_replica(incarnation, number)
            case e.StartReplica():
                self._fleet.start_replica(instruction)
            case e.ReplaceWorker(key, restarts, standby):
                self._fleet.replace_worker(key, restarts, standby)
            case e.MakeDecree(_, incarnation, number, group_rank):
                self._fleet.memory.decree(incarnation, number, group_rank)
            case e.HoldGroup(_, incarnation):
                self._fleet.hold(incarnation)
            case e.RewindMemory(_, incarnation, number, boundary):
                self._fleet.memory.rewind(incarnation, number, boundary)
            case e.LetDiffer(_, incarnation):
                self._fleet.memory.let_differ(incarnation)
            case e.SetNodesAside(ranks):
                self.spanning.lead.set_aside(ranks)
            case e.LookAtMemory():
                self._loop.call_soon(self._show_memory)
            case e.ShareMemory(replica_id, step):
                self._fleet.memory.share(replica_id, step)
            case e.DropMemory(replica_id):
                self._fleet.memory.drop(replica_id)
            case e.LookAtBoard(_, incarnation):
                seen = self._fleet.memory.seen(incarnation)
                if seen is not None:
                    self._loop.call_soon(self.handle, seen)
            case e.StartStandby(name):
                self._fleet.start_standby(name)
            case e.AskToStop(_, incarnation, number):
                self._fleet.ask_to_stop(incarnation, number)
            case e.PassSignal(number):
                self._console.passed_on(number, *self._fleet.pass_signal(number))
            case e.ShowStacks():
                self._begin(self._show_stacks())
            case e.SweepReplica(_, incarnation):
                self._fleet.sweep_replica(incarnation)
            case e.SendToWorkers(message):
                self._server.broadcast(message)
            case e.SendToReplica(replica_id, incarnation, message):
                self._server.send(replica_id, incarnation, message)
            case e.AskWorker(key):
                self._server.send_to(key, m.AskReport())
                self._loop.call_soon(self._report_use, key)
            case e.TakeStacks(_, incarnation):
                self._begin(self._take_stacks(incarnation))
            case e.CheckHealth(replica_id, incarnation):
                self._begin(self._check_health(replica_id, incarnation))
            case e.SendEvidence(evidence):
                self._output.flush()
                self.link.send(self._with_output(evidence))
            case e.ShowNotice():
                self._console.notice(instruction, self._other_node(instruction.log))
            case e.EndAgent():
                if not self._done.done():
                    self._done.set_result(instruction)
            case _:
                assert_never(instruction)

    def _other_node(self, life: e.WorkerLife | None) -> str:
        """The node that has a worker's log, if it is not this one."""
        if life is None or self._lead is None:
            return ""
        return self._lead.ranks.name_of(life.replica_id, life.restarts, life.group_rank)

    def _with_output(self, evidence: m.FailureEvidence) -> m.FailureEvidence:
        evidence = with_output(evidence, self._settings.job_log_dir, self._output.since_s)
        return evidence if self._lead is None else self._lead.ranks.with_output(evidence)

    def _peers_silent(self, message: m.PeersSilent) -> None:
        self.link.send(message)
        if self._lead is not None:
            self._lead.hosts_silent(message.hosts)

    async def _watch_peers(self) -> None:
        self._console.sees_no_peers(await self._peers.run())

    async def _show_stacks(self) -> None:
        for key, text in (await self._fleet.stacks(self._fleet.all_workers())).items():
            self._console.stacks(key, text)
            self._fleet.write_log(key, text)

    async def _send_stacks(self, request: int, keys: frozenset[WorkerKey]) -> None:
        """Answer for every requested worker, also for one that has ended."""
        taken = await self._fleet.stacks(keys & set(self._fleet.all_workers()))
        for key in sorted(keys, key=lambda key: (key.replica_id, key.group_rank)):
            self.link.send(m.WorkerStacks(request, key, taken.get(key, "")))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in the event loop; its exceptions are handled as the agent's own."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broken(self._loop, {"message": "work of the agent", "exception": error})

    async def _take_stacks(self, incarnation: str) -> None:
        keys = [key for key in self._fleet.all_workers() if key.incarnation == incarnation]
        taken = await self._fleet.stacks(keys)
        for key, text in taken.items():
            self._fleet.write_log(key, text)
        stacks = tuple((key.group_rank, text) for key, text in taken.items())
        self.handle(e.StacksTaken(incarnation, stacks))

    async def _check_health(self, replica_id: str, incarnation: str) -> None:
        settings = self._settings
        failure = await check_health(
            settings.health_check, replica_id, self._fleet.guard_id, settings.health_timeout_s
        )
        self.handle(e.HealthChecked(incarnation, failure))

    def _report_use(self, key: WorkerKey) -> None:
        process = self._fleet.process_of(key)
        if process is not None:
            self.handle(m.WorkerUsed(key, process.pid, process.cpu_s))

    def _worker_started(self, key: WorkerKey, pid: int) -> None:
        self._watch(WorkerStarted(key, pid))
        self._resources.worker_started()
        if self._file_timer is not None:
            self._file_timer.worker_started()

    def _fleet_event(self, event: e.Event) -> None:
        """Handle an event of the fleet. Once workers can be started, send Hello."""
        self.handle(event)
        if isinstance(event, e.SpawnerReady):
            self.link.announce()

    # ------------------------------------------------------------ from the other nodes of a team

    @property
    def lease(self) -> m.Lease | None:
        """The deadline until which workers may commit (Q3)."""
        return self._supervisor.lease

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts_spent

    @property
    def spanning(self) -> SpanningFleet:
        assert isinstance(self._fleet, SpanningFleet)
        return self._fleet

    def show(self, text: str) -> None:
        self._output.terminal.event_line(text)

    # ------------------------------------------------------------ from workers

    def worker_known(self, key: WorkerKey, pid: int) -> bool:
        return self._fleet.knows(key, pid)

    def worker_attached(self, key: WorkerKey) -> None:
        """Send a new worker the lease, which limits how long it may commit (Q3)."""
        if self._supervisor.lease is not None:
            self._server.send_to(key, self._supervisor.lease)

    def worker_disconnected(self, key: WorkerKey) -> None:
        self.handle(m.WorkerDisconnected(key))

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        """Relay a worker's message to the lighthouse, and pass it to the supervisor."""
        match message:
            case m.FailureReport() | m.Beat() | m.NoManager() | m.AnotherForm():
                pass  # not for the lighthouse
            case m.Progress():
                known = self._fleet.memory.with_losses(key.incarnation, message)
                self.link.note_progress(key, known)
            case _:
                self.link.send(m.WorkerMessage(key, message))
        self.handle(e.WorkerSent(key, message))

    def _show_memory(self) -> None:
        self.handle(e.MemorySeen(self._fleet.memory.held()))

    def _group_progressed(self, key: WorkerKey, progress: m.Progress) -> None:
        """The progress of a group without a Manager, read from its memory."""
        self.link.note_progress(key, progress)
        if self._line is not None:
            self._line.watch(e.WorkerSent(key, progress))

    # ------------------------------------------------------------ from the lighthouse

    def _lighthouse_ready(self, address: ServiceAddress) -> None:
        self._address = address.grpc
        self._announce(address.http)
        self._connect()

    def _announce(self, http: str) -> None:
        try:
            self._publish(http)
        except OSError as error:
            self._console.unpublished(error)

    def _lighthouse_ended(self, how: str, delay_s: float | None) -> None:
        assert self._lighthouse is not None
        starts = self._lighthouse.starts
        self._console.embedded_ended(how, starts.then(delay_s))
        if delay_s is None:
            code = ExitCode.LIGHTHOUSE_UNREACHABLE if starts.has_served else ExitCode.USAGE
            reason = f"the embedded lighthouse cannot be started: it {how}"
            self.handle(m.EndJob(code, reason))

    def _connect(self) -> None:
        if self._address:
            self._fleet.lighthouse = self._address
            self.link.start(self._address.split(","))

    def _hello(self) -> m.Hello | None:
        if not self._fleet.store:
            return None
        return m.Hello(
            agent_id=self._agent_id,
            spec=self._settings.spec(),
            capacity=0 if self._supervisor.is_ending else self._machine.capacity,
            host=self._machine.host,
            store=self._fleet.store,
            running=self._supervisor.slots.running(),
            dead=tuple(self._supervisor.slots.dead),
            finished=self._supervisor.slots.finished(),
            epoch=self.link.epoch,
            age_s=clock.now() - self._started_at,
            incidents=self._supervisor.evidence.last_number,
            rank=self._settings.node_rank,
            placed=self._settings.groups_placed,
            kept=self._supervisor.slots.kept(),
        )

    def link_opened(self) -> None:
        """Hello is sent: ask every worker for its Report."""
        self._address = self._fleet.lighthouse = self.link.address
        self._server.broadcast(m.AskReport())
        self._output.flush()
        for evidence in self._supervisor.evidence.again(clock.now()):
            self.link.send(self._with_output(evidence))
        self._peers.again()
        for message in self._supervisor.absent():
            self.link.send(message)
        for heartbeat in self._supervisor.apart():
            self.link.send(heartbeat)

    def link_message(self, message: m.ToAgent, asked_at: float | None) -> None:
        """Relay to workers first, because they may wait for a dead peer; then handle it."""
        if isinstance(message, m.ToWorkers):
            for target in message.targets:
                self._server.send(target.replica_id, target.incarnation, message.message)
        self._console.answered(self._address)
        at = self._address if self._lighthouse is None else ""
        agreed = message.agreed if isinstance(message, m.HeartbeatAck) else None
        self.handle(e.LighthouseSent(asked_at, at, self.link.epoch, agreed))
        match message:
            case m.AssignSlots(replica_ids):
                self._own_slots = frozenset(replica_ids)
                self._fleet.keep_only(replica_ids)
                self.handle(message)
            case m.RestartReplica() | m.StopReplica() | m.KillWorkers():
                self.handle(message)
            case m.AskStacks(request, keys):
                self._begin(self._send_stacks(request, frozenset(keys)))
            case m.DrainAgent(reason):
                self.handle(m.DrainAsked(reason, ExitCode.PREEMPTED))
            case m.EndJob():
                self._account = message.account
                self.handle(message)
            case m.IncidentRecord():
                self._incidents.keep(message)
                self.handle(message)
            case m.Rejected(reason):
                self._console.refused(reason)
                self.handle(m.EndJob(ExitCode.REFUSED, reason))
            case m.Notice():
                self._console.lighthouse_notice(message, self._own_slots)
            case m.Welcome(_, http, version):
                unlike = unlike_version(version, "the lighthouse")
                if unlike:
                    self._console.refuses(self._address, unlike)
                    self.handle(m.EndJob(ExitCode.REFUSED, unlike))
                else:
                    self._welcomed(http)
            case m.HeartbeatAck(glance):
                if self._line is not None:  # ``LighthouseSent`` has the rest
                    self._line.note_glance(glance)
            case _:
                pass

    def _welcomed(self, http: str) -> None:
        """Publish the HTTP address. That of an embedded lighthouse is published already."""
        if self._lighthouse is None:
            at = web_address(http, self._address)
            if at is not None:
                self._announce(at)

    def link_failed(self, ending: Disconnected) -> None:
        """Handle the failure; until a lighthouse has answered once, also show it."""
        if ending.refused is not None and not self._supervisor.was_answered:
            self._console.not_accepted(self._address, ending)
            what = "token" if ending.refused is Refusal.TOKEN else "lighthouse's port"
            self.handle(m.EndJob(ExitCode.REFUSED, f"the {what} was refused"))
        elif not self._supervisor.was_answered and self._lighthouse is None:
            self._console.unreachable(self._address, ending.reason)
        self.handle(e.LighthouseGone(ending.reason, ending.is_moved))
