"""A hand's processes while it has one place: its workers, their socket, their logs.

Not here: how it gets the place and loses it (hand.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from ftrun.agent.fleet import NEVER_STARTED, Fleet
from ftrun.agent.last_lines import last_lines
from ftrun.agent.logs import Output, open_output, start_keeping
from ftrun.agent.resources import ResourceWatch
from ftrun.agent.setup import AgentSetup
from ftrun.agent.team.boards import Boards
from ftrun.agent.team.copies import REPORT_EVERY_S
from ftrun.agent.team.keeping import LOOK_S, Keeping
from ftrun.agent.team.storing import Storing
from ftrun.agent.workers import WorkerServer
from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.base.timer import DeadlineTimer
from ftrun.config.forms import standbys_of, why_no_memory_snapshots
from ftrun.core import messages as m
from ftrun.core.agent import events as e
from ftrun.core.agent.standby import StandbyPool, StandbyRules
from ftrun.core.agent.words import no_more_standbys
from ftrun.core.ids import WorkerKey
from ftrun.logs.layout import log_path


class Place:
    """The processes of one place: a fleet and its workers' socket."""

    def __init__(
        self,
        setup: AgentSetup,
        tell: Callable[[m.FromHand], Any],
        spawner_lost: Callable[[e.SpawnerLost], None],
    ) -> None:
        self._settings = settings = setup.settings
        self._tell = tell
        self._spawner_lost = spawner_lost
        self._launch = setup.launch
        self._lease: m.Lease | None = None
        self._starts: dict[str, e.StartReplica] = {}
        self._output: Output = open_output(settings)
        self._resources = ResourceWatch(
            lambda notice: self._output.terminal.event_line(notice.text),
            settings.job_log_dir,
            has_gpus=bool(setup.machine.devices),
        )
        before_start = self._resources.before_start
        self.fleet = Fleet(self._fleet_event, setup, self._output, before_start)
        self.fleet.answers_for = settings.ranks_here
        self.fleet.meet = lambda start, _: self._ports.pop(start.incarnation)
        self.fleet.world_port = 0
        self._keeping: Keeping | None = None
        self._boards = Boards(self.fleet.memory.of, tell)
        self.fleet.memory.on_over = self._boards.tell
        if not why_no_memory_snapshots(settings):
            self.fleet.holds = True
            here = setup.token, setup.machine.host, setup.runtime_dir
            self._keeping = Keeping(self.fleet, settings, *here, tell)
            asyncio.get_running_loop().call_later(REPORT_EVERY_S, self._report)
        self._storing = Storing(self.fleet, settings, setup.runtime_dir, tell)
        self._rewinding: asyncio.Task[None] | None = None
        self._replaces: list[m.ReplaceRank | m.GroupDecree] = []
        self._ports: dict[str, int] = {}
        wanted = min(standbys_of(settings), len(settings.ranks_here))
        self._standbys = StandbyPool(StandbyRules(wanted, parked=setup.launch.parked))
        self._refill = DeadlineTimer(self._start_standbys)
        self._server = WorkerServer(self, setup.token, setup.runtime_dir)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Create the workers' socket and prepare the spawner."""
        await self._server.start()
        self.fleet.start()
        start_keeping(self._settings, self._output)
        self._resources.start(self.fleet.processes, lambda facts: self._tell(m.RankFacts(facts)))

    async def close(self, *, ends_well: bool) -> None:
        """End all processes."""
        self._is_closed = True
        self._refill.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._resources.close()
        self._storing.close()
        self._boards.end()
        if self._keeping is not None:
            self._keeping.close()
        await self.fleet.stop(ends_well=ends_well)
        await self._server.close()
        self._launch.end()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._output.close)

    def carry_out(self, order: Any) -> None:
        """Carry out an order of the lead."""
        match order:
            case m.StartRanks():
                self._start(order)
            case m.RewindRanks():
                self._rewinding = self._begin(self._rewind(order))
            case m.ReplaceRank() | m.GroupDecree():
                self._replaces.append(order)
                self._replace()
            case m.GroupWords():
                self._boards.came(order)
            case m.KeepRanks():
                if self._keeping is not None:
                    self._begin(self._keeping.keep(order))
            case m.WriteRanks():
                self._begin(self._storing.write(order))
            case m.FillRanks():
                self._begin(self._storing.fill(order))
            case m.GroupDue(incarnation, word):
                self.fleet.memory.due(incarnation, word)
            case m.SignalRanks(replica_id, incarnation, number, group_rank, asks):
                self._takes_back(order)
                if group_rank is not None:
                    self.fleet.signal_worker(WorkerKey(replica_id, incarnation, group_rank), number)
                elif asks:
                    self.fleet.ask_to_stop(incarnation, number)
                else:
                    self.fleet.signal_replica(incarnation, number)
            case m.SweepRanks(incarnation):
                self._starts.pop(incarnation, None)
                self.fleet.sweep_replica(incarnation)
                self.fleet.memory.free(incarnation)  # it may have been filled, but never started
            case m.ToRanks():
                self._relay(order)
            case m.LeaseLeft(asked_at, left_s):
                self._renew(asked_at + left_s)
            case m.AskStacks(request, keys):
                self._begin(self._send_stacks(request, keys))
            case _:
                pass

    def _start(self, order: m.StartRanks, *, is_empty: bool = False) -> None:
        start = e.StartReplica(order.replica_id, order.incarnation, order.restarts)
        ranks = self._settings.ranks_here
        if not is_empty:  # by group rank, as in the fleet
            start = replace(start, standbys=("",) * ranks.start + self._take(len(ranks)))
        self._starts[order.incarnation] = start
        self.fleet.lighthouse = order.lighthouse
        self._ports[order.incarnation] = order.port
        if self._keeping is not None:
            self._boards.begin(order.incarnation, ranks)
        self.fleet.world_port = order.world_port
        self.fleet.start_replica(start, is_empty=is_empty)

    def _take(self, count: int) -> tuple[str, ...]:
        standbys = self._standbys.take(count, clock.now())
        self._refill.set(self._standbys.due_at)
        return standbys

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------ memory snapshots

    def _report(self) -> None:
        """Report the states in memory to the lead from time to time."""
        if self._keeping is None or self._is_closed:
            return
        asyncio.get_running_loop().call_later(REPORT_EVERY_S, self._report)
        for incarnation in self._starts:
            self._keeping.report(incarnation)

    async def _rewind(self, order: m.RewindRanks) -> None:
        """Get the states of a step, and drop later ones. Then the workers may be started again."""
        start, step = order.start, order.step
        incarnation, keeping = start.incarnation, self._keeping
        if keeping is None:
            return
        try:
            if incarnation not in self._starts:  # this node replaces a lost one
                self._start(start, is_empty=True)
                while not self.fleet.is_open(incarnation):
                    await asyncio.sleep(LOOK_S)
            await keeping.rewind(incarnation, step, order.sources)
            self.fleet.memory.rewind(incarnation, order.number, step)
            self._boards.raised(order.number)
            keeping.pin(incarnation, step)
        except (PeerError, UserError, OSError, ValueError) as error:
            self._cannot_replace(f"cannot have its state of step {step}: {error}")
        self._rewinding = None
        self._replace()

    def _replace(self) -> None:
        while self._rewinding is None and self._replaces:
            one = self._replaces.pop(0)
            if isinstance(one, m.GroupDecree):
                lost = -1 if one.lost is None else one.lost
                self.fleet.memory.decree(one.incarnation, one.number, lost)
                self._boards.raised(one.number)
                continue
            key = WorkerKey(one.replica_id, one.incarnation, one.group_rank)
            self.fleet.replace_worker(key, one.restarts, "".join(self._take(1)))

    def _takes_back(self, order: m.SignalRanks) -> None:
        """Cancel workers whose states are not there yet: they are never started."""
        if self._rewinding is not None and order.group_rank is None:
            self._rewinding.cancel()
            self._rewinding = None
            self._cannot_replace("was never started")

    def _cannot_replace(self, reason: str) -> None:
        replaces, self._replaces = self._replaces, []
        for one in replaces:
            if isinstance(one, m.ReplaceRank):
                end = e.WorkerExited(one.incarnation, one.group_rank, 0, NEVER_STARTED, reason)
                self._ended(end, is_dying=False)

    def _relay(self, order: m.ToRanks) -> None:
        if not order.incarnation:
            self._server.broadcast(order.message)
        elif order.group_rank is None:
            self._server.send(order.replica_id, order.incarnation, order.message)
        else:
            key = WorkerKey(order.replica_id, order.incarnation, order.group_rank)
            self._server.send_to(key, order.message)
            process = self.fleet.process_of(key)
            if isinstance(order.message, m.AskReport) and process is not None:
                self._tell(m.WorkerUsed(key, process.pid, process.cpu_s))

    def _renew(self, until_s: float) -> None:
        """Renew the lease. It never ends earlier than one that was sent before."""
        if self._lease is None or until_s > self._lease.until_s:
            self._lease = m.Lease(until_s)
            self._server.broadcast(self._lease)

    async def _send_stacks(self, request: int, keys: tuple[WorkerKey, ...]) -> None:
        here = [key for key in keys if key.group_rank in self._settings.ranks_here]
        taken = await self.fleet.stacks(here)
        for key in here:
            text = taken.get(key, "")
            self.fleet.write_log(key, text)
            self._tell(m.WorkerStacks(request, key, text))

    # ------------------------------------------------------------ from the fleet and the workers

    def _start_standbys(self) -> None:
        for name in self._standbys.refill(clock.now()):
            self.fleet.start_standby(name)

    def _fleet_event(self, event: e.Event) -> None:
        match event:
            case e.SpawnerWarmed():
                self._standbys.open(clock.now())
                self._refill.set(self._standbys.due_at)
            case e.StandbyExited(name, status, lacks_room):
                if self._standbys.died(name, clock.now(), lacks_room=lacks_room):
                    text = no_more_standbys(self._standbys.rules.deaths_max, status).text
                    self._output.terminal.event_line(text)
                self._refill.set(self._standbys.due_at)
            case e.WorkerDying(end):
                self._ended(end, is_dying=True)
            case e.WorkerExited():
                self._ended(event, is_dying=False)
            case e.SpawnerLost():
                self._output.terminal.event_line(event.reason)
                self._spawner_lost(event)
            case _:
                pass

    def _ended(self, end: e.WorkerExited, *, is_dying: bool) -> None:
        output, start = "", self._starts.get(end.incarnation)
        if self._keeping is not None:
            self._keeping.report(end.incarnation)  # the lead must have it before the end
        # The peers wait for the first report of a death; its last lines follow with its end.
        if end.status != 0 and start is not None and not is_dying:
            with contextlib.suppress(OSError):
                self._output.flush()
            directory = self._settings.job_log_dir
            path = log_path(directory, start.replica_id, end.group_rank, start.restarts)
            output = last_lines(path, self._output.since_s)
        self._tell(
            m.RankEnded(
                end.incarnation, end.group_rank, end.pid, end.status, is_dying, end.reason,
                end.memory, end.recorded, output,
            )
        )  # fmt: skip

    def worker_known(self, key: WorkerKey, pid: int) -> bool:
        """Whether ``key`` is a worker that runs now, with this pid."""
        return self.fleet.knows(key, pid)

    def worker_attached(self, key: WorkerKey) -> None:
        """Send a new worker the lease."""
        if self._lease is not None:
            self._server.send_to(key, self._lease)

    def worker_disconnected(self, key: WorkerKey) -> None:
        """A worker has closed its connection."""
        self._tell(m.WorkerDisconnected(key))

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        """Relay a worker's message to the lead."""
        if isinstance(message, m.FailureReport | m.NoManager | m.AnotherForm | m.Beat):
            self._tell(m.RankMessage(key, message))
        else:
            self._tell(m.WorkerMessage(key, message))
