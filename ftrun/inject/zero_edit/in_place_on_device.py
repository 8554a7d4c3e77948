"""Replicas on GPUs: a lost worker of a replica of several is replaced inside its group.

What in_place.py does, with calls of the replica's groups as world/on_device.py has them. The
reductions with other replicas end on the host (process_groups/nccl.py), so their results are copied
to the log from there, before the script can see them.

Not here: what is kept (in_place.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ftrun.inject.zero_edit.in_place import InPlace, _World
from ftrun.inject.zero_edit.results import Results
from ftrun.inject.zero_edit.world.calls import Call
from ftrun.inject.zero_edit.world.on_device import DeviceWorld


class _DeviceWorld(DeviceWorld, _World):
    """The groups within its replica."""


class _DeviceResults(Results):
    """The log is in host memory."""

    def _log(self, *given: Any) -> bool:
        name, call, kind, tensors, mark = given
        return super()._log(name, call, kind, on_host(tensors), mark)


class DeviceInPlace(InPlace):
    """Keeps one worker."""

    world_kind, results_kind, backend = _DeviceWorld, _DeviceResults, "cpu:gloo,cuda:nccl"

    def logs(self, call: Call, *, is_half: bool = False) -> None:
        if call.future is not None and any(x.is_cuda for x in call.outputs):
            self.cannot(call)  # torch's group completes it before the tensors are there
            return
        super().logs(call, is_half=is_half)


def on_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in host memory of what is not there."""
    return [x.cpu() for x in tensors]
