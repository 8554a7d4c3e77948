"""in_place.py for GPUs: replaces a lost worker inside its replica of several workers.

Calls within the replica are made as in world/on_device.py. Reductions with other replicas end on
the host (process_groups/nccl.py), and their results are copied from there to the log before the
script can see them.

Not here: the contents of the log (in_place.py).
"""

from __future__ import annotations

from typing import Any

from ftrun.inject.zero_edit.in_place import InPlace, _World
from ftrun.inject.zero_edit.results import Results
from ftrun.inject.zero_edit.world.calls import Call
from ftrun.inject.zero_edit.world.on_device import DeviceWorld


class _DeviceWorld(DeviceWorld, _World):
    """The process groups within the replica."""


class _DeviceResults(Results):
    """Copies tensors to the host before they are logged."""

    def _log(self, *given: Any) -> bool:
        name, call, kind, tensors, mark = given
        return super()._log(name, call, kind, [x.cpu() for x in tensors], mark)


class DeviceInPlace(InPlace):
    """The keeper of one worker, on a GPU."""

    world_kind, results_kind, backend = _DeviceWorld, _DeviceResults, "cpu:gloo,cuda:nccl"

    def logs(self, call: Call, *, is_half: bool = False) -> None:
        if call.future is not None and any(x.is_cuda for x in call.outputs):
            self.cannot(call)  # torch completes the future before the tensors are ready
            return
        super().logs(call, is_half=is_half)
