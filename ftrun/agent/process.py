"""The agent's side of the spawner and of the store process: messages to and from both, and their
end.

The launched process becomes the store process, and the spawner is its first child.

Not here: the launch (launch.py), the spawner's own work (spawner.py), which worker starts when
(core/agent/supervisor.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.agent import sweep
from ftrun.agent.channel import Channel, DescriptorsLost, Frame
from ftrun.agent.helper_output import HelperOutput
from ftrun.agent.launch import SpawnerLaunch
from ftrun.base import linux
from ftrun.base.errors import ExitCode, ProtocolError
from ftrun.base.own_process import UNFIT_EXIT
from ftrun.config.script import TargetKind
from ftrun.core.agent.events import Event, SpawnerLost, SpawnerWarmed, StandbyExited
from ftrun.core.ids import WorkerKey

if TYPE_CHECKING:
    from ftrun.agent.fleet import Fleet

SPAWNER_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class StartWorker:
    """One worker to start. ``context`` has no key and no token: the spawner adds them.

    ``fresh``: it becomes a new Python interpreter (child.py). ``inject``: a value of
    config/forms.py; ``explicit_environment``: under ``auto``, the variables for a script that turns
    out to be explicit. ``standby``: the standby that becomes this worker if it still waits;
    otherwise a worker is forked. ``stdin``: it reads ftrun's standard input; other workers have an
    empty one. ``cpus``: the CPUs that it is bound to, empty if it is not bound; ``memory_node``:
    the NUMA node for its memory, or -1. ``life_lock``: the path of its life lock (life_lock.py);
    "": it has none.
    """

    key: WorkerKey
    target: str
    kind: TargetKind
    args: tuple[str, ...]
    environment: dict[str, str]
    threads: int
    fresh: bool
    inject: str
    torchft: str
    explicit_environment: dict[str, str]
    context: dict[str, Any]
    standby: str = ""
    stdin: bool = False
    cpus: tuple[int, ...] = ()
    memory_node: int = -1
    life_lock: str = ""


class SpawnerProcess:
    """A running spawner. Call all methods in the event loop's thread.

    ``fleet`` gets the events for its tables; ``emit`` gets the supervisor's other events.
    """

    def __init__(self, fleet: Fleet, emit: Callable[[Event], None], launch: SpawnerLaunch) -> None:
        self._fleet = fleet
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._closing = False
        self._launch, self._process = launch, launch.process
        self._stderr: HelperOutput | None = None
        self._pidfd = -1
        self._spawner_pidfd = -1
        self._channel = Channel(launch.channel)
        self._stores = Channel(launch.stores)

    def start(self, configuration: dict[str, Any]) -> None:
        """Send the configuration, unless it was sent; ``spawner_ready`` or ``SpawnerLost`` follows.

        ``configuration``: spawner_configuration (environment.py).
        """
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._exited)
        self._loop.add_reader(self._channel.fileno(), self._read_channel)
        self._loop.add_reader(self._stores.fileno(), self._read_stores)
        assert self._process.stderr is not None
        self._stderr = HelperOutput(os.dup(self._process.stderr.fileno()), _show)
        self._process.stderr.close()
        self._launch.configure(configuration)

    def start_worker(self, task: StartWorker) -> None:
        """Fork one worker; ``worker_started`` or ``worker_exited`` with pid 0 follows."""
        self._send({"op": "start", **asdict(task)})

    def start_standby(self, name: str, threads: int) -> None:
        """Fork a standby; ``StandbyExited`` follows if it ends before it is used."""
        self._send({"op": "standby", "name": name, "threads": threads})

    def start_writer(self, where: Path) -> None:
        """Fork the process that writes snapshots; ``writer_ended`` follows if it ends."""
        self._send({"op": "writer", "where": str(where)})

    def signal_replica(self, incarnation: str, number: int) -> None:
        """Signal the process groups of the workers of ``incarnation``."""
        self._send({"op": "signal", "incarnation": incarnation, "signal": number})

    def ask_to_stop(self, incarnation: str, number: int) -> None:
        """Ask the workers of ``incarnation`` to stop, as signal ``number`` would
        (inject/stopping.py).
        """
        self._send({"op": "ask_to_stop", "incarnation": incarnation, "signal": number})

    def open_store(self, name: str, port: int) -> None:
        """Open a TCPStore at ``port``, 0: any; ``store_opened`` follows."""
        self._send_to_stores({"op": "open", "name": name, "port": port})

    def close_store(self, name: str) -> None:
        self._send_to_stores({"op": "close", "name": name})

    async def stop(self, *, leaves: bool = False) -> None:
        """Make the spawner kill all workers and exit; after ``SPAWNER_STOP_S``, kill it.

        ``leaves``: no worker runs, and processes that workers have left keep running
        (left_behind.py).
        """
        self._closing = True
        if leaves:
            self._send({"op": "leave"})
            self._send_to_stores({"op": "leave"})
        if self._pidfd < 0:
            return  # It never got its configuration: the launch ends it (launch.py).
        self._close_channels()
        if self._spawner_pidfd < 0:
            # It is still importing, has no child, and would notice only after its imports.
            self._process.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), SPAWNER_STOP_S)
        if not self._ended.is_set():
            self._process.kill()
            await self._ended.wait()
        if self._spawner_pidfd >= 0:
            self._loop.remove_reader(self._spawner_pidfd)
            os.close(self._spawner_pidfd)
            self._spawner_pidfd = -1
        if self._stderr is not None:
            self._stderr.close()

    def _send(self, message: dict[str, Any]) -> None:
        if not self._channel.closed:
            with contextlib.suppress(OSError):  # It has ended: ``_exited`` follows.
                self._channel.send(message)

    def _send_to_stores(self, message: dict[str, Any]) -> None:
        if not self._stores.closed:
            with contextlib.suppress(OSError):
                self._stores.send(message)

    def _read_channel(self) -> None:
        try:
            for frame in self._channel.receive():
                self._receive(frame)
        except DescriptorsLost as error:
            self._lost(str(error), usable=False)
        except ProtocolError as error:
            self._lost(f"the spawner sent a message that is not valid: {error}")
        if self._channel.closed:
            self._loop.remove_reader(self._channel.fileno())

    def _receive(self, frame: Frame) -> None:
        message = frame.message
        match message["op"]:
            case "started":
                who = message["incarnation"], message["group_rank"]
                self._fleet.worker_started(*who, message["pid"], frame.fds)
            case "exited":
                who = message["incarnation"], message["group_rank"]
                self._fleet.worker_exited(*who, message["pid"], message["status"])
            case "unstarted":
                who = message["incarnation"], message["group_rank"]
                reason = f"could not be started: {message['reason']}"
                self._fleet.worker_exited(*who, 0, 1, reason)
            case "ready":
                self._watch_spawner(message["pid"], frame.fds[0])
                self._fleet.spawner_ready(is_bare=message["bare"])
            case "warmed":
                self._emit(SpawnerWarmed())
            case "writer_ended":
                self._fleet.writer_ended()
            case "standby_exited":
                self._emit(StandbyExited(message["name"], message["status"]))
            case "unusable":
                self._lost(message["reason"], usable=False)

    def _read_stores(self) -> None:
        for frame in self._stores.receive():
            if frame.message["op"] == "unusable":
                self._lost(frame.message["reason"], usable=False)
            elif frame.message["op"] == "other world":
                self._fleet.other_world_made()
            else:
                self._fleet.store_opened(frame.message["name"], frame.message["port"])
        if self._stores.closed:
            self._loop.remove_reader(self._stores.fileno())

    def _watch_spawner(self, pid: int, pidfd: int) -> None:
        self._spawner_pidfd = pidfd
        self._loop.add_reader(pidfd, self._spawner_ended, pid)

    def _spawner_ended(self, pid: int) -> None:
        self._loop.remove_reader(self._spawner_pidfd)
        os.close(self._spawner_pidfd)
        self._spawner_pidfd = -1
        self._lost(f"the spawner (pid {pid}) has ended")

    def _exited(self) -> None:
        # Its last messages have the reason, and may still be unread.
        if not self._stores.closed:
            self._read_stores()
        if not self._channel.closed:
            self._read_channel()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        status = self._process.wait()
        self._ended.set()
        if self._spawner_pidfd >= 0:
            pid = self._process.pid
            self._lost(f"the process of the stores (pid {pid}) has ended, status {status}")
            return
        assert self._stderr is not None
        self._stderr.read()
        how = self._stderr.ending(status)
        self._lost(f"the spawner did not start: it {how}", usable=status != UNFIT_EXIT)

    def _lost(self, reason: str, *, usable: bool = True) -> None:
        """``usable`` False: --preload or a limit of the node is the cause."""
        if not self._closing:
            self._closing = True
            self._emit(SpawnerLost(reason, ExitCode.BUG if usable else ExitCode.USAGE))

    def _close_channels(self) -> None:
        for channel in (self._channel, self._stores):
            if channel.fileno() >= 0:
                self._loop.remove_reader(channel.fileno())
                channel.close()


def _show(data: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, data)


def sweeper(launch: SpawnerLaunch, before: frozenset[int]) -> Callable[[], list[linux.ProcessRow]]:
    """Return a function that lists the job's live processes, and none of a launch beside this one.

    ``before``: the agent's children that are older than the job.
    """
    spare, guard = before | {os.getpid()}, launch.guard_id

    def find() -> list[linux.ProcessRow]:
        with launch.starting:
            return sweep.job_processes(guard, os.getpid(), spare, launch.guards - {guard})

    return find
