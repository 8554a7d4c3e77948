"""The processes of one agent: workers by incarnation, with their stores, devices and logs.

Not here: when one is started or stopped (core/agent/supervisor.py), the fork (spawner.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from ftrun.agent import sweep
from ftrun.agent.assignments import Assignments
from ftrun.agent.death_watch import DeathWatch
from ftrun.agent.devices import DeviceSlices
from ftrun.agent.environment import spawner_configuration, threads_per_worker
from ftrun.agent.error_files import read_error_file
from ftrun.agent.group_memory import MemorySnapshots, own_bytes
from ftrun.agent.groups import Group, Groups, Worker
from ftrun.agent.late_status import LateStatus
from ftrun.agent.left_behind import NAMED_MAX, LeftBehind, keep_writing
from ftrun.agent.logs import Output, WorkerLog
from ftrun.agent.memory import MemoryWatch
from ftrun.agent.process import SpawnerProcess, sweeper
from ftrun.agent.setup import AgentSetup
from ftrun.agent.stacks import Target, take_stacks
from ftrun.agent.tcp_stores import WORLD_STORE
from ftrun.agent.worker_facts import WorkerProcess
from ftrun.base import linux
from ftrun.base.errors import ExitCode, PeerError, UserError
from ftrun.base.free_memory import LEFT_SHARE, free_bytes
from ftrun.base.words import first_of
from ftrun.config.forms import injection, may_carry
from ftrun.config.starting import FORK, line_without_fork
from ftrun.core.agent import events as e
from ftrun.core.agent.stopping import SIGKILL
from ftrun.core.agent.words import no_room_for_standbys
from ftrun.core.forms import AUTO
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import EndJob
from ftrun.logs.layout import log_path
from ftrun.snapshots import own_memory, serving
from ftrun.snapshots.group_memory import AT_FALL, VARIABLE
from ftrun.snapshots.manifest import Damaged

BeforeStart = Callable[[str, tuple[str, ...]], Awaitable[None]]
"""Returns when the devices of this replica are free for a worker."""
QUORUM_STORE = "quorum"
SPARE_STORES = 2
STANDBY_BYTES = 128 << 20
"""With less memory free no standby is started: it has torch loaded, and trains a tiny model."""
SWEEP_DEADLINE_S = 4.0
LOG_DRAIN_S = 1.0
WRITER_AGAIN_S = 1.0
NEVER_STARTED = -9


class Fleet:
    """Carries out starts, signals and sweeps; emits events. All in the event loop's thread.

    ``lighthouse``: its address, for workers. ``store``: host:port of the node's quorum store, known
    once ``SpawnerReady`` is emitted. ``on_start``: called with each running worker and its pid.
    ``memory``: the groups' snapshots in memory. ``answers_for``: the group ranks whose ends are
    emitted. ``meet``: called when an incarnation starts, with the port of its store here; returns
    the port of the store at which it meets. ``world_port``: of the store for the world of all
    replicas, if that is on another node. ``holds``: each group's store and memory are kept, as by
    ``hold``, until it is swept, or has ended well.
    """

    def __init__(
        self,
        emit: Callable[[e.Event], None],
        setup: AgentSetup,
        output: Output,
        before_start: BeforeStart,
    ) -> None:
        self._emit = emit
        self._setup = setup
        self._settings = settings = setup.settings
        self._machine = machine = setup.machine
        self._runtime_dir = runtime_dir = setup.runtime_dir
        self._output = output
        self._loop = asyncio.get_running_loop()
        self.guard_id = setup.launch.guard_id
        children = {row.pid for row in linux.process_rows() if row.ppid == os.getpid()}
        self._before = frozenset(children - {setup.launch.process.pid})
        self._spawner = SpawnerProcess(self, emit, setup.launch)
        self._slices = DeviceSlices(machine.devices, settings.ranks_here)
        self._assignments = Assignments(settings, machine, self._slices, runtime_dir)
        self._ports: dict[str, int] = {}
        self._spare: deque[str] = deque()
        self._stores_ordered = 0
        self._ready = self._lacks_room = False
        self._waiting: deque[e.StartReplica] = deque()
        self._held: set[str] = set()
        self._empty: set[str] = set()
        self.holds = False
        self._before_start = before_start
        self._groups = Groups()
        self._owed: dict[WorkerKey, int] = {}
        self._left = LeftBehind()
        self._late_status = LateStatus(self._groups, self.worker_exited)
        self._deaths = DeathWatch(self._dying)
        self.memory = MemorySnapshots(settings, runtime_dir, output.terminal.event_line)
        self._own = own_memory.OwnMemory(partial(own_bytes, settings))
        self._sweeps: set[asyncio.Task[None]] = set()
        self._logs: set[WorkerLog] = set()
        self.lighthouse = ""
        self.store = ""
        self.on_start: Callable[[WorkerKey, int], None] = lambda key, pid: None
        self.world_port: int | None = None
        self.answers_for = range(settings.workers_per_replica)
        self.meet: Callable[[e.StartReplica, int], int] = lambda start, port: port

    # ------------------------------------------------------------ from the agent

    def start(self) -> None:
        """Configure the spawner and order the first stores; ``SpawnerReady`` follows."""
        self._spawner.start(spawner_configuration(self._setup))
        if self._assignments.is_one_world and self.world_port is None:
            self._spawner.open_store(WORLD_STORE, 0)
        for _ in range(1 if self._settings.master_port else SPARE_STORES):
            self._order_store()

    def keep_only(self, replica_ids: tuple[str, ...]) -> None:
        self._slices.keep_only(replica_ids)

    def start_replica(self, start: e.StartReplica, *, is_empty: bool = False) -> None:
        """Start all workers of an incarnation, as soon as there is a store for it.

        ``is_empty``: start no worker yet; ``replace_worker`` starts each.
        """
        self._waiting.append(start)
        if is_empty:
            self._empty.add(start.incarnation)
        devices = self._slices.take(start.replica_id)
        if devices or self.memory.disk is not None:
            self._held.add(start.incarnation)
            self._in_background(self._start_when_free(start, devices))
            return
        # A report of a loss that waits to be sent must be sent first.
        self._loop.call_soon(self._start_waiting)

    def replace_worker(self, key: WorkerKey, restarts: int, standby: str) -> None:
        group = self._groups[key.incarnation]
        group.is_held, group.is_killed = self.holds, False
        group.lives[key.group_rank] = restarts
        group.expected.add(key.group_rank)
        self._start_worker(group, key.group_rank, standby)

    def is_open(self, incarnation: str) -> bool:
        """Whether an incarnation has its store and its memory; it may have no worker yet."""
        return incarnation in self._groups

    def hold(self, incarnation: str) -> None:
        """Keep its store and its memory, even while none of its processes run."""
        self._groups[incarnation].is_held = True

    def start_standby(self, name: str) -> None:
        if (free := free_bytes(left=LEFT_SHARE)) < STANDBY_BYTES:
            if not self._lacks_room:
                self._lacks_room = True
                self._output.terminal.event_line(no_room_for_standbys(free))
            self._loop.call_soon(self._emit, e.StandbyExited(name, 0, lacks_room=True))
            return
        self._spawner.start_standby(name, threads_per_worker(self._settings, self._machine))

    def signal_replica(self, incarnation: str, number: int) -> None:
        """Signal the process groups of its workers.

        An incarnation that has not started never starts.
        """
        group = self._groups.get(incarnation)
        if group is not None and number == SIGKILL:
            group.is_killed = True
        if not self._takes_back(incarnation):
            self._spawner.signal_replica(incarnation, number)

    def ask_to_stop(self, incarnation: str, number: int) -> None:
        """Ask its workers to stop. An incarnation that has not started never starts."""
        if not self._takes_back(incarnation):
            self._spawner.ask_to_stop(incarnation, number)
            self.memory.stops(incarnation)

    def signal_worker(self, key: WorkerKey, number: int) -> bool:
        """Signal one worker process, not its children. Returns False if it does not run.

        A worker that is about to start gets the signal then.
        """
        worker = self._groups.worker(key)
        if worker is None:
            if self._is_starting(key):
                self._owed[key] = number
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.pidfd, number)
        return True

    def pass_signal(self, number: int) -> tuple[list[WorkerKey], list[WorkerKey]]:
        """Signal every worker that survives it. Returns those, and those that would not."""
        got: list[WorkerKey] = []
        spared: list[WorkerKey] = []
        for key, pid in self.workers():
            if linux.survives_signal(pid, number) and self.signal_worker(key, number):
                got.append(key)
            else:
                spared.append(key)
        return got, spared

    def write_log(self, key: WorkerKey, text: str) -> None:
        """Write lines of ftrun to a worker's log, and not to the terminal."""
        worker = self._groups.worker(key)
        if worker is not None:
            worker.log.add(text)

    def _is_starting(self, key: WorkerKey) -> bool:
        if any(start.incarnation == key.incarnation for start in self._waiting):
            return True
        group = self._groups.get(key.incarnation)
        return group is not None and key.group_rank in group.expected

    def _takes_back(self, incarnation: str, why: str = "was never started") -> bool:
        """Cancel an incarnation that has not started. Returns whether it was cancelled."""
        for start in list(self._waiting):
            if start.incarnation == incarnation:
                self._waiting.remove(start)
                for rank in self.answers_for:
                    gone = e.WorkerExited(incarnation, rank, 0, NEVER_STARTED, why)
                    self._loop.call_soon(self._emit, gone)
                return True
        return False

    def sweep_replica(self, incarnation: str) -> None:
        """End the processes that an ended incarnation has left behind, in the background."""
        self._owed = {x: number for x, number in self._owed.items() if x.incarnation != incarnation}
        if (group := self._groups.get(incarnation)) is not None and group.is_held:
            self._close_group(incarnation)
        self._in_background(self._sweep(incarnation))

    def workers(self) -> list[tuple[WorkerKey, int]]:
        """All workers whose end is not known yet, with their pids."""
        return self._groups.workers()

    def all_workers(self) -> list[WorkerKey]:
        """The same without their pids, and with the workers of other nodes."""
        return [key for key, _ in self.workers()]

    def processes(self) -> list[WorkerProcess]:
        """The same with the device of each; without workers that end on devices given up."""
        return [
            WorkerProcess(key, pid, device)
            for key, pid in self._groups.workers()
            if (device := self._slices.device(key.replica_id, key.group_rank)) is not None
        ]

    def knows(self, key: WorkerKey, pid: int) -> bool:
        return self._groups.knows(key, pid)

    def process_of(self, key: WorkerKey) -> linux.ProcessRow | None:
        """A worker's process, read now; None: it has ended."""
        worker = self._groups.worker(key)
        return linux.process_row(worker.pid) if worker is not None else None

    async def stacks(self, keys: Iterable[WorkerKey]) -> dict[WorkerKey, str]:
        """The Python stacks of these workers, as far as they run."""
        wanted = set(keys)
        targets = [Target(key, pid) for key, pid in self.workers() if key in wanted]
        return await take_stacks(self._runtime_dir, targets)

    async def stop(self, *, ends_well: bool = False) -> list[int]:
        """End everything, but not what scripts have left running in a job that ``ends_well``.

        Returns the pids that did not end: they are stuck in the kernel.
        """
        await self.memory.end()
        self._own.close()
        left = await self._loop.run_in_executor(None, self._left.take_all)
        leaves = ends_well and not self._groups
        await self._spawner.stop(leaves=leaves)
        if not leaves:
            for task in self._sweeps:
                task.cancel()
        await asyncio.gather(*self._sweeps, return_exceptions=True)
        stuck: list[int] = []
        if leaves:
            keep_writing(list(self._logs))
            self._name(left, "It continues by itself, and the logs get what it prints.")
        else:
            selection = sweeper(self._setup.launch, self._before)
            end = partial(sweep.kill_all, selection, SWEEP_DEADLINE_S)
            stuck = await self._loop.run_in_executor(None, end)
            self._name(left, "It is ended with the job.")
        linux.reap_strays(self._before)
        for group in list(self._groups.values()):
            for rank in list(group.workers):
                self._forget_worker(group, rank, keeps_log=False)
        self._deaths.close()
        for log in list(self._logs):
            log.close()
        return stuck

    # ------------------------------------------------------------ from the spawner

    def spawner_ready(self, *, is_bare: bool) -> None:
        """Torch is imported; the stores follow. ``is_bare``: see own_process.py."""
        self._ready = True
        if is_bare and not self._assignments.are_fresh:
            self._assignments.are_fresh = self._settings.start != FORK
            self._output.terminal.event_line(line_without_fork(self._settings))
        self._start_writer()
        self._announce_ready()

    def writer_ended(self) -> None:
        """Start another writing process. Its clients connect to that one."""
        self._loop.call_later(WRITER_AGAIN_S, self._start_writer)

    def _start_writer(self) -> None:
        if self._settings.snapshot_path is not None:
            self._spawner.start_writer(self._runtime_dir / serving.NAME)

    def store_opened(self, name: str, port: int) -> None:
        self._ports[name] = port
        if name == QUORUM_STORE:
            self._announce_ready()
        elif name == WORLD_STORE:
            self._assignments.world_port = port
            self._start_waiting()
        else:
            self._spare.append(name)
            self._start_waiting()

    def other_world_made(self) -> None:
        """The script trains in processes that are no workers."""
        self._emit(e.OtherWorldMade(injection(self._settings) == AUTO))

    def worker_started(
        self, incarnation: str, group_rank: int, pid: int, fds: tuple[int, ...]
    ) -> None:
        """``fds``: its pidfd, and the read ends of its stdout and stderr, now the fleet's."""
        pidfd, out_fd, err_fd = fds
        group = self._groups[incarnation]
        group.expected.discard(group_rank)
        replica_id, restarts = group.start.replica_id, group.life(group_rank).restarts
        path = log_path(self._settings.job_log_dir, replica_id, group_rank, restarts)
        log = WorkerLog(path, self._output, replica_id, group_rank, self._logs.discard)
        log.follow(out_fd, err_fd)
        self._logs.add(log)
        group.workers[group_rank] = Worker(pid, pidfd, log, MemoryWatch(pid))
        key = WorkerKey(replica_id, incarnation, group_rank)
        self._loop.add_reader(pidfd, self._ended, key, pidfd)
        self._deaths.watch(key, pid)
        owed = self._owed.pop(key, None)
        if owed is not None:
            self.signal_worker(key, owed)
        self.on_start(key, pid)

    def worker_exited(
        self, incarnation: str, group_rank: int, pid: int, status: int, reason: str = ""
    ) -> None:
        """Emit a worker's end. Only the first report of it counts.

        ``status``: the exit code, or minus the signal; ``pid`` 0: it could not be started.
        """
        group = self._groups.get(incarnation)
        if group is None or (pid and self._is_replaced(group, group_rank, pid)):
            return
        group.expected.discard(group_rank)
        end = self._end(group, group_rank, pid, status, reason)
        self._deaths.forget(WorkerKey(group.start.replica_id, incarnation, group_rank))
        if status == 0:
            self._left.ended_well(incarnation, group_rank)
            self.memory.ended_well(incarnation, group_rank)
        if group_rank in group.workers:
            self._forget_worker(group, group_rank, keeps_log=status == 0)
        may_be_replaced = end.kept is not None and status != 0
        if not may_be_replaced:
            self._close_if_over(group, status)
        self._emit(end)
        if may_be_replaced and self._groups.get(incarnation) is group:
            self._close_if_over(group, status)

    def _close_if_over(self, group: Group, status: int) -> None:
        is_held = group.is_held and not (self.holds and status == 0)
        if not group.workers and not group.expected and not is_held:
            self._close_group(group.start.incarnation)

    def _is_replaced(self, group: Group, group_rank: int, pid: int) -> bool:
        """Whether this is a repeated report of a process that has a replacement."""
        worker = group.workers.get(group_rank)
        is_other = worker.pid != pid if worker is not None else group_rank in group.expected
        return group_rank in group.lives and is_other

    def _dying(self, key: WorkerKey, status: int) -> None:
        """A worker's death is certain, long before its process is gone."""
        group, worker = self._groups[key.incarnation], self._groups.worker(key)
        if worker is not None:
            worker.end = self._end(group, key.group_rank, worker.pid, status)
            self._emit(e.WorkerDying(worker.end))

    def _end(
        self, group: Group, group_rank: int, pid: int, status: int, reason: str = ""
    ) -> e.WorkerExited:
        """All that is known of a worker's end. What was known when it died is kept."""
        worker = group.workers.get(group_rank)
        if worker is not None and worker.end is not None:
            return worker.end
        memory = ""
        if worker is not None and status == -SIGKILL and not group.is_killed:
            memory = worker.memory.verdict()
        path = self._assignments.error_file(group.life(group_rank), group_rank)
        recorded = read_error_file(path) if status > 0 else None
        incarnation = group.start.incarnation
        kept = self.memory.kept(incarnation, group_rank)
        return e.WorkerExited(incarnation, group_rank, pid, status, reason, memory, recorded, kept)

    # ------------------------------------------------------------ starting

    def _announce_ready(self) -> None:
        if self._ready and QUORUM_STORE in self._ports:
            self.store = self._store_address(QUORUM_STORE)
            self._emit(e.SpawnerReady())
            self._start_waiting()

    def _store_address(self, name: str) -> str:
        host = self._machine.host
        return f"[{host}]:{self._ports[name]}" if ":" in host else f"{host}:{self._ports[name]}"

    async def _start_when_free(self, start: e.StartReplica, devices: tuple[str, ...]) -> None:
        try:
            if devices:
                await self._before_start(start.replica_id, devices)
            await self.memory.fill(start.replica_id, start.incarnation, start.sound_until)
        except (PeerError, OSError) as error:
            self._takes_back(start.incarnation, f"was not started: {error}")
        except (UserError, Damaged) as error:  # a retry would end in the same way
            self._emit(EndJob(ExitCode.USAGE, f"{error}. No worker was started"))
            self._takes_back(start.incarnation)
        finally:
            self._held.discard(start.incarnation)
        if start not in self._waiting:  # it was taken back meanwhile
            self.memory.free(start.incarnation)
        self._start_waiting()

    def _next_start(self) -> e.StartReplica | None:
        """The next incarnation to start, except those whose devices are not free yet."""
        return next((x for x in self._waiting if x.incarnation not in self._held), None)

    def _order_store(self) -> None:
        self._stores_ordered += 1
        port = self._settings.master_port or 0
        self._spawner.open_store(f"group-{self._stores_ordered}", port)

    def _start_waiting(self) -> None:
        assignments = self._assignments
        if self.world_port is not None:
            assignments.world_port = self.world_port
        elif assignments.is_one_world and not assignments.world_port:
            return
        while self._ready and self._spare and (start := self._next_start()) is not None:
            self._waiting.remove(start)
            store = self._spare.popleft()
            is_empty = start.incarnation in self._empty
            self._empty.discard(start.incarnation)
            expected = set() if is_empty else set(self.answers_for)
            group = Group(start, store, expected=expected, is_held=self.holds)
            self._groups[start.incarnation] = group
            group.port = self.meet(start, self._ports[store])
            self.memory.make(start.replica_id, start.incarnation, start.sound_until)
            for rank in () if is_empty else self._settings.ranks_here:
                self._start_worker(group, rank)
            if not self._settings.master_port:  # a stated port is free once the group has ended
                self._order_store()

    def _start_worker(self, group: Group, rank: int, standby: str = "") -> None:
        task = self._assignments.of_worker(group.life(rank), rank, group.port, self.lighthouse)
        place = self.memory.starts(group.start.incarnation, rank)
        is_kept = bool(place) and not self.memory.is_left_only
        name = VARIABLE if is_kept else AT_FALL
        environment = task.environment | ({name: place} if place else {})
        if not is_kept and may_carry(self._settings):
            own = self._own.place(group.start.replica_id, rank)
            environment |= {own_memory.VARIABLE: own} if own else {}
        task = replace(task, life_lock=self._deaths.place(task.key), environment=environment)
        self._spawner.start_worker(replace(task, standby=standby or task.standby))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    # ------------------------------------------------------------ ends

    def _ended(self, key: WorkerKey, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        self._late_status.ended(key)

    def _forget_worker(self, group: Group, group_rank: int, *, keeps_log: bool) -> None:
        worker = group.workers.pop(group_rank)
        self._loop.remove_reader(worker.pidfd)
        os.close(worker.pidfd)
        # The pipe has all of its output. A child of the worker may keep the pipe open for longer:
        # then its output belongs to the log of a worker that has ended well.
        worker.log.drain()
        if not keeps_log:
            self._loop.call_later(LOG_DRAIN_S, worker.log.close)

    def _close_group(self, incarnation: str) -> None:
        group = self._groups.pop(incarnation)
        self.memory.free(incarnation)
        self._spawner.close_store(group.store)
        self._ports.pop(group.store, None)
        if self._settings.master_port:
            self._order_store()

    def _name(self, left: list[str], then: str) -> None:
        """Name the processes that were running when a worker had ended well."""
        if left:
            line = f"Left running by a script that has ended: {first_of(left, NAMED_MAX)}. {then}"
            self._output.terminal.event_line(line)

    async def _sweep(self, incarnation: str) -> None:
        left = await self._loop.run_in_executor(None, self._left.take, incarnation)
        self._name(left, "It is ended, because its replica has failed or is stopped.")
        select = partial(sweep.owned_processes, incarnation)
        stuck = await self._loop.run_in_executor(None, sweep.kill_all, select, SWEEP_DEADLINE_S)
        if stuck:
            self._output.terminal.event_line(f"stuck in the kernel, not ended: pids {stuck}")
