"""The state of NVIDIA GPUs, from the driver's library (the optional package ``nvidia-ml-py``).

Not here: decisions based on it (resources.py, doctor/devices.py), which GPUs a job uses
(devices.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Protocol

from ftrun.core.agent.node_resources import Gpu


class NotReadable(Exception):
    """The driver does not answer for a GPU: the GPU is lost, or the call is not supported."""


class GpuTable(Protocol):
    """The GPUs of this machine, by the driver's index."""

    def count(self) -> int:
        """The number of GPUs."""

    def gpu(self, index: int) -> Gpu:
        """The state of one GPU now.

        Raises:
            NotReadable: the driver does not answer for it.
        """

    def xids(self) -> list[tuple[int, int]]:
        """The GPU index and the number of each Xid since the last call. Does not block."""

    def close(self) -> None:
        """Release the library."""


XIDS_MAX = 64


def open_gpus() -> GpuTable | str:
    """The GPUs; if they cannot be read, the reason as text."""
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return f"the driver's library cannot be used ({error})"
    return Nvml(library)


class Nvml:
    """The driver's library, initialised."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._events: Any = None

    def count(self) -> int:
        """The number of GPUs; 0 if the driver does not answer."""
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError:
            return 0

    def gpu(self, index: int) -> Gpu:
        """The state of one GPU now.

        Raises:
            NotReadable: the driver does not answer for it.
        """
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            name = _text(nvml.nvmlDeviceGetName(handle))
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            raise NotReadable(str(error)) from None
        return Gpu(
            index,
            name,
            uuid,
            int(memory.total),
            int(memory.used),
            self._ecc_errors(handle),
            tuple(self._pids(handle)),
            self._busy_share(handle),
        )

    def xids(self) -> list[tuple[int, int]]:
        """The GPU index and the number of each Xid since the last call. Does not block."""
        nvml = self._nvml
        found: list[tuple[int, int]] = []
        try:
            if self._events is None:
                self._events = self._watch()
            while len(found) < XIDS_MAX:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                index = int(nvml.nvmlDeviceGetIndex(event.device))
                found.append((index, int(event.eventData)))
        except nvml.NVMLError:
            pass  # NVML_ERROR_TIMEOUT: no more; other errors: not supported here
        return found

    def close(self) -> None:
        try:
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass

    def _watch(self) -> Any:
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        for index in range(self.count()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                continue
        return events

    def _ecc_errors(self, handle: Any) -> int | None:
        nvml = self._nvml
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        try:
            return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))
        except nvml.NVMLError:
            return None

    def _busy_share(self, handle: Any) -> float | None:
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except self._nvml.NVMLError:
            return None

    def _pids(self, handle: Any) -> Iterator[int]:
        try:
            rows = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return
        for row in rows:
            yield int(row.pid)


def _text(value: Any) -> str:
    """Older versions of the package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
