"""The resources that each worker uses: processor time, memory, and its GPU's memory and time.

A thread of the ResourceWatch (resources.py) reads them, because a driver may not answer. A value
that cannot be read is None. Not here: how often they are read (resources.py), how they are shown
(status/).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ftrun.base import clock
from ftrun.core.agent.node_resources import Gpu
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import WorkerFacts

SHARE_OVER_S = 0.5
"""The least interval over which a processor share is computed; the clock has 100 ticks a second."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker that runs. ``device``: its CUDA_VISIBLE_DEVICES; "" without a GPU."""

    key: WorkerKey
    pid: int
    device: str = ""


@dataclass(frozen=True, slots=True)
class _Spent:
    """The processor time of one process until ``at``.

    ``share``: its share of a core before that.
    """

    pid: int
    cpu_s: float
    at: float
    share: float | None = None


class WorkerMeter:
    """Measures a node's workers repeatedly.

    A processor share is the share since the last measurement.
    """

    def __init__(self) -> None:
        self._spent: dict[WorkerKey, _Spent] = {}

    def measure(
        self, processes: Iterable[WorkerProcess], gpus: Sequence[Gpu]
    ) -> tuple[WorkerFacts, ...]:
        """One entry for each process that still runs. Processes that have ended are forgotten."""
        found, spent = [], {}
        for process in processes:
            facts, now = self._measure(process, gpus)
            if facts is not None:
                found.append(facts)
                spent[process.key] = now
        self._spent = spent
        return tuple(found)

    def _measure(
        self, process: WorkerProcess, gpus: Sequence[Gpu]
    ) -> tuple[WorkerFacts | None, _Spent]:
        import psutil

        now = _Spent(process.pid, 0.0, clock.now())
        try:
            running = psutil.Process(process.pid)
            with running.oneshot():
                if running.status() == psutil.STATUS_ZOMBIE:
                    return None, now
                times, rss_bytes = running.cpu_times(), running.memory_info().rss
        except (psutil.Error, OSError):
            return None, now
        now = self._spent_now(process, times.user + times.system)
        gpu = next((gpu for gpu in gpus if gpu.is_called(process.device)), None)
        facts = WorkerFacts(
            process.key,
            process.pid,
            _device(process.device, gpu),
            cpu_share=now.share,
            rss_bytes=rss_bytes,
            gpu_memory_bytes=gpu.used_bytes if gpu is not None else None,
            gpu_memory_total_bytes=gpu.total_bytes if gpu is not None else None,
            gpu_share=gpu.busy_share if gpu is not None else None,
        )
        return facts, now

    def _spent_now(self, process: WorkerProcess, cpu_s: float) -> _Spent:
        now, before = clock.now(), self._spent.get(process.key)
        if before is None or before.pid != process.pid:
            return _Spent(process.pid, cpu_s, now)
        passed_s = now - before.at
        if passed_s < SHARE_OVER_S:
            return before
        return _Spent(process.pid, cpu_s, now, max(0.0, cpu_s - before.cpu_s) / passed_s)


def _device(name: str, gpu: Gpu | None) -> str:
    """``cuda:3`` by the driver's index if it is known; otherwise ``device`` as it is named."""
    if not name:
        return "cpu"
    return f"cuda:{name if gpu is None else gpu.index}"
