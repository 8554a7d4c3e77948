"""When memory, a disk or a GPU of the node is worth a notice, and when a GPU is free again.

| resource               | low, or not free                           | enough again   |
|------------------------|--------------------------------------------|----------------|
| memory, disk of logs   | below 5 % or 1 GiB, and below a quarter    | 1.5 times that |
| a GPU before a restart | 5 % and 256 MiB above its use at the start | less than that |

Each crossing is reported once. ECC errors and Xids are reported when more come. Not here: reading
them (agent/resources.py, agent/nvml.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ftrun.core.agent.events import ShowNotice

LOW_SHARE = 0.05
LOW_BYTES = 1 << 30
LOW_SHARE_MAX = 0.25
"""On a small machine 1 GiB is much, so no resource is low while a quarter of it is free."""
ENOUGH_TIMES = 1.5
GPU_SHARE = 0.05
GPU_BYTES = 256 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Resource:
    """The bytes of one resource. ``advice``: what the user can do when it is low."""

    name: str
    free_bytes: int
    total_bytes: int
    advice: str

    def low_below(self) -> float:
        limit = max(LOW_SHARE * self.total_bytes, LOW_BYTES)
        return min(limit, LOW_SHARE_MAX * self.total_bytes)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU now.

    ``ecc_errors``: memory errors that could not be corrected, since the driver was loaded; None:
    the GPU does not count them. ``pids``: processes that use it, if they are visible from here.
    ``busy_share``: the share of the last moments in which it computed; None: not known.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    ecc_errors: int | None = None
    pids: tuple[int, ...] = ()
    busy_share: float | None = None

    def is_called(self, device: str) -> bool:
        """Whether ``device`` of CUDA_VISIBLE_DEVICES is this one: an index or part of a UUID."""
        is_uuid = device.startswith("GPU-") and self.uuid.startswith(device)
        return is_uuid or device == str(self.index)

    def is_free(self, used_before: int) -> bool:
        """Whether a dead worker's memory is free; ``used_before``: before the first worker."""
        return self.used_bytes <= used_before + GPU_SHARE * self.total_bytes + GPU_BYTES


class NodeResources:
    """Remembers what was reported, so that each fact is reported once."""

    def __init__(self) -> None:
        self._low: set[str] = set()
        self._ecc: dict[int, int] = {}

    def look(self, resources: Iterable[Resource]) -> list[ShowNotice]:
        """The crossings since the last look."""
        return [notice for resource in resources if (notice := self._crossing(resource))]

    def gpu_errors(self, gpus: Iterable[Gpu], xids: Iterable[tuple[int, int]]) -> list[ShowNotice]:
        """The errors of GPUs since the last look. Errors before the first look are not reported."""
        found = []
        for index, number in xids:
            text = f"GPU {index} reports Xid {number}: look at dmesg; a restart may not help there."
            found.append(ShowNotice("gpu", (), text))
        for gpu in gpus:
            if gpu.ecc_errors is None:
                continue
            before = self._ecc.get(gpu.index, gpu.ecc_errors)
            self._ecc[gpu.index] = gpu.ecc_errors
            more = gpu.ecc_errors - before
            if more > 0:
                text = (
                    f"GPU {gpu.index} ({gpu.name}) has {more} more memory errors (ECC) that could "
                    f"not be corrected, {gpu.ecc_errors} since the driver was loaded."
                )
                found.append(ShowNotice("gpu", (), text))
        return found

    def _crossing(self, resource: Resource) -> ShowNotice | None:
        limit = resource.low_below()
        amount = f"{resource.free_bytes / GIB:.2f} of {resource.total_bytes / GIB:.1f} GiB"
        if resource.name not in self._low and resource.free_bytes < limit:
            self._low.add(resource.name)
            text = f"Low {resource.name}: {amount} are free. {resource.advice}"
            return ShowNotice("low", (), text)
        if resource.name in self._low and resource.free_bytes > ENOUGH_TIMES * limit:
            self._low.discard(resource.name)
            return ShowNotice("low", (), f"Enough {resource.name} again: {amount} are free.")
        return None


def still_used(gpu: Gpu, waited_s: float) -> ShowNotice:
    """A GPU is not free in time, and the worker starts anyway."""
    who = ", ".join(f"pid {pid}" for pid in gpu.pids) or "a process that is not visible here"
    text = (
        f"GPU {gpu.index} still has {gpu.used_bytes >> 20} MiB in use after {waited_s:.0f} s, by "
        f"{who}: the next worker starts there nevertheless, and may run out of memory."
    )
    return ShowNotice("gpu", (), text)


def waits_for_gpu(replica_id: str, gpu: Gpu, limit_s: float) -> ShowNotice:
    text = (
        f"Replica {replica_id} waits until its dead worker's memory on GPU {gpu.index} is free "
        f"({gpu.used_bytes >> 20} MiB in use), for {limit_s:g} s at most."
    )
    return ShowNotice("gpu", (replica_id,), text)
