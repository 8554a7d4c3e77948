"""The driver's library, as its package offers it: read in full, in part, or not there at all."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.agent.nvml import NotReadable, Nvml, open_gpus
from ftrun.agent.resources import ResourceWatch
from ftrun.core.agent.events import ShowNotice
from ftrun.core.agent.node_resources import GIB, Gpu

HAS_PACKAGE = importlib.util.find_spec("pynvml") is not None


class NVMLError(Exception):
    """As the package raises it, with its number."""


class Pynvml:
    """A double of the module ``pynvml``: two GPUs, of which the second answers nothing more.

    ``refused``: functions that this driver does not support.
    """

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.calls: list[str] = []
        self.registered: list[str] = []
        self.new_xids: list[tuple[str, int]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name != "nvmlEventTypeXidCriticalError":
            self.calls.append(name)
            if name in self.refused:
                raise NVMLError(f"{name}: Not Supported")
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 1:
            raise NVMLError("GPU is lost")
        return f"handle {index}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GIB, used=GIB)

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"Card 9000"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return "GPU-00"

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return 3

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7)]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=75, memory=20)

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        assert events == "set"

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: str) -> None:
        assert (kinds, events) == (8, "set")
        self.registered.append(handle)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0, "it must not wait"
        if not self.new_xids:
            raise NVMLError("Timeout")
        device, number = self.new_xids.pop(0)
        return SimpleNamespace(device=device, eventData=number)

    def nvmlDeviceGetIndex(self, device: str) -> int:
        return int(device.removeprefix("handle "))


def opened(monkeypatch: pytest.MonkeyPatch, double: Pynvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", double)
    table = open_gpus()
    assert isinstance(table, Nvml)
    return table


def test_a_gpu_is_read_in_full_and_a_lost_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(monkeypatch, Pynvml())
    assert table.count() == 2
    assert table.gpu(0) == Gpu(0, "Card 9000", "GPU-00", 80 * GIB, GIB, 3, (7,), 0.75)
    with pytest.raises(NotReadable, match="GPU is lost"):
        table.gpu(1)


def test_what_a_driver_does_not_support_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Pynvml(
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetUtilizationRates",
    )
    gpu = opened(monkeypatch, double).gpu(0)
    assert (gpu.ecc_errors, gpu.pids, gpu.busy_share, gpu.used_bytes) == (None, (), None, GIB)
    assert opened(monkeypatch, Pynvml("nvmlDeviceGetCount")).count() == 0
    for lacking in ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"):
        assert opened(monkeypatch, Pynvml(lacking)).xids() == []


def test_xids_are_those_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Pynvml()
    table = opened(monkeypatch, double)
    assert table.xids() == []
    assert double.registered == ["handle 0"]
    double.new_xids = [("handle 0", 79), ("handle 0", 48)]
    assert table.xids() == [(0, 79), (0, 48)]
    assert table.xids() == []
    table.close()
    assert double.calls.count("nvmlEventSetCreate") == 1
    assert double.calls[-2:] == ["nvmlEventSetFree", "nvmlShutdown"]


def test_a_library_that_cannot_be_released_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Pynvml("nvmlShutdown")
    opened(monkeypatch, double).close()
    assert double.calls[-1] == "nvmlShutdown"


def test_without_the_package_or_the_driver_a_text_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it fails
    assert open_gpus() == "nvidia-ml-py is not installed"
    monkeypatch.setitem(sys.modules, "pynvml", Pynvml("nvmlInit"))
    assert open_gpus() == "the driver's library cannot be used (nvmlInit: Not Supported)"


@pytest.mark.parametrize("double", [None, Pynvml("nvmlInit")])
def test_a_job_with_gpus_runs_without_them_and_without_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: Pynvml | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", double)
    shown: list[ShowNotice] = []

    async def run() -> None:
        watch = ResourceWatch(shown.append, tmp_path, has_gpus=True)
        await watch.look()
        await watch.before_start("0", ("GPU-00",))
        await watch.close()

    asyncio.run(run())
    assert [notice for notice in shown if "GPU" in notice.text or "nv" in notice.text] == []


@pytest.mark.skipif(not HAS_PACKAGE, reason="nvidia-ml-py is not installed (extra gpu)")
def test_the_double_has_only_what_the_package_has() -> None:
    import pynvml

    names = [name for name in vars(Pynvml) if name.lower().startswith("nvml")]
    assert len(names) >= 18
    assert [name for name in names if not hasattr(pynvml, name)] == []
    for name in ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"):
        assert getattr(pynvml, name) == getattr(Pynvml, name)
    assert pynvml.nvmlEventTypeXidCriticalError == Pynvml.nvmlEventTypeXidCriticalError
