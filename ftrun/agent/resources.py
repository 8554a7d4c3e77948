"""Reads the node's memory, its logs' disk, its GPUs and its workers while a job runs.

One thread at a time reads, because a disk or a driver may hang; if it does, reading stops. Workers
are measured every ``MEASURE_EVERY_S``, and shortly after one has started. Not here: which changes
deserve a notice (core/agent/node_resources.py), the driver (nvml.py), a worker's figures
(worker_facts.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from ftrun.agent.nvml import GpuTable, NotReadable, open_gpus
from ftrun.agent.worker_facts import WorkerMeter, WorkerProcess
from ftrun.base import clock
from ftrun.core.agent.events import ShowNotice
from ftrun.core.agent.node_resources import (
    Gpu,
    NodeResources,
    Resource,
    still_used,
    waits_for_gpu,
)
from ftrun.core.messages import WorkerFacts

LOOK_EVERY_S = 10.0
MEASURE_EVERY_S = 5.0
MEASURE_AFTER_S = 1.0
"""The wait after the first worker's start. Workers usually start together, so one measurement
covers all.
"""
GPU_WAIT_S = 20.0
GPU_LOOK_S = 0.25
SAY_AFTER_S = 1.0
MEMINFO = Path("/proc/meminfo")

_T = TypeVar("_T")
Show = Callable[[ShowNotice], None]
Publish = Callable[[tuple[WorkerFacts, ...]], None]


class ResourceWatch:
    """Checks every ``LOOK_EVERY_S``, and checks the GPUs before a restart.

    ``open_table``: opens the driver's library, in the thread; returns the reason if it cannot.
    """

    def __init__(
        self,
        show: Show,
        log_dir: Path,
        *,
        has_gpus: bool,
        open_table: Callable[[], GpuTable | str] = open_gpus,
    ) -> None:
        self._show = show
        self._log_dir = log_dir
        self._open_table = open_table if has_gpus else None
        self._table: GpuTable | None = None
        self._known = NodeResources()
        self._used_before: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._reading = threading.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._meter = WorkerMeter()
        self._has_started = asyncio.Event()

    def start(self, running: Callable[[], list[WorkerProcess]], publish: Publish) -> None:
        """Start to check. ``running``: the workers to measure; ``publish`` gets the figures."""
        self._tasks = [
            self._loop.create_task(self._look_again_and_again()),
            self._loop.create_task(self._measure_again_and_again(running, publish)),
        ]

    def worker_started(self) -> None:
        self._has_started.set()

    async def close(self) -> None:
        """Stop checking. A read that hangs is abandoned."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def look(self) -> None:
        """Read everything once, and show a notice for each limit that was crossed."""
        resources, gpus, xids = await self._in_thread(self._read)
        for notice in self._known.look(resources):
            self._show(notice)
        for notice in self._known.gpu_errors(gpus, xids):
            self._show(notice)

    async def before_start(self, replica_id: str, devices: Iterable[str]) -> None:
        """Return when the devices have as much free memory as before their first worker.

        After ``GPU_WAIT_S`` it shows a notice and returns anyway.
        """
        wanted = tuple(devices)
        began = clock.now()
        is_shown = False
        while wanted:
            try:
                gpus = await asyncio.wait_for(self._in_thread(self._gpus), GPU_WAIT_S)
            except asyncio.TimeoutError:
                return
            mine = {name: gpu for gpu in gpus for name in wanted if gpu.is_called(name)}
            for name, gpu in mine.items():  # the first worker that is started here
                self._used_before.setdefault(name, gpu.used_bytes)
            used = [gpu for name, gpu in mine.items() if not gpu.is_free(self._used_before[name])]
            waited_s = clock.now() - began
            if not used:
                return
            if waited_s >= GPU_WAIT_S:
                self._show(still_used(used[0], waited_s))
                return
            if waited_s >= SAY_AFTER_S and not is_shown:
                is_shown = True
                self._show(waits_for_gpu(replica_id, used[0], GPU_WAIT_S))
            await asyncio.sleep(GPU_LOOK_S)

    async def _look_again_and_again(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _measure_again_and_again(
        self, running: Callable[[], list[WorkerProcess]], publish: Publish
    ) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._has_started.wait(), MEASURE_EVERY_S)
                await asyncio.sleep(MEASURE_AFTER_S)
            self._has_started.clear()
            processes = running()
            if processes:
                publish(await self._in_thread(partial(self._measure, processes)))

    async def _in_thread(self, read: Callable[[], _T]) -> _T:
        """The result of ``read``, called in a thread that does not delay the agent's exit."""
        done: asyncio.Future[_T] = self._loop.create_future()

        def work() -> None:
            with self._reading:
                result = read()
            with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
                self._loop.call_soon_threadsafe(deliver, result)

        def deliver(result: _T) -> None:
            if not done.done():
                done.set_result(result)

        threading.Thread(target=work, name="ftrun-resources", daemon=True).start()
        return await done

    # ------------------------------------------------------------ in the thread

    def _read(self) -> tuple[list[Resource], list[Gpu], list[tuple[int, int]]]:
        gpus = self._gpus()
        xids = self._table.xids() if self._table is not None else []
        return [*memory(), *disk(self._log_dir)], gpus, xids

    def _measure(self, processes: list[WorkerProcess]) -> tuple[WorkerFacts, ...]:
        return self._meter.measure(processes, self._gpus())

    def _gpus(self) -> list[Gpu]:
        if self._open_table is not None:
            opened, self._open_table = self._open_table(), None
            self._table = None if isinstance(opened, str) else opened
        if self._table is None:
            return []
        found = []
        for index in range(self._table.count()):
            try:
                found.append(self._table.gpu(index))
            except NotReadable:
                continue  # Its workers fail, and their own error is shown.
        return found


def memory(path: Path = MEMINFO) -> list[Resource]:
    """The machine's memory; none if it cannot be read."""
    rows = {}
    try:
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            rows[name] = int(rest.split()[0]) << 10
        free, total = rows["MemAvailable"], rows["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return []
    advice = "The kernel will kill a process: use smaller batches, or fewer data loader workers."
    return [Resource("memory", free, total, advice)]


def disk(directory: Path) -> list[Resource]:
    """The disk of this directory; none if it cannot be read."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return []
    advice = f"Logs will be cut off: free some of the disk of {directory}."
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return [Resource("disk space for logs", free, total, advice)]
