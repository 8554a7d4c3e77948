"""The group of one: every collective is a copy at most, without store, sockets or threads.

Not here: anything that needs a peer.
"""

from __future__ import annotations

from typing import Any

from torch.distributed import Work

from ftrun.process_groups.built import AbortSignal, BuiltGroup, FinishedWork, GroupAborted
from ftrun.process_groups.collectives import WITHOUT_OPTIONS, Collectives


class SoloGroup(BuiltGroup):
    """The group of a replica that trains alone: a reduction's result is its input."""

    def __init__(self, signal: AbortSignal) -> None:
        super().__init__(0, 1, None, signal)

    allgather_into_tensor_coalesced = Collectives.allgather_into_tensor_coalesced
    reduce_scatter_tensor_coalesced = Collectives.reduce_scatter_tensor_coalesced

    def _collective(self, name: str, *arguments: Any) -> Work:
        if name in WITHOUT_OPTIONS:
            raise ValueError(f"{name}: there is no peer in a group of one")
        result = alone(name, arguments)
        if self.aborted:
            return FinishedWork(error=GroupAborted("the process group was aborted"))
        return FinishedWork(result)


def alone(name: str, arguments: tuple[Any, ...]) -> Any:
    """The result of a collective with one rank: copied, or the arguments themselves."""
    result: Any = arguments[0] if len(arguments) > 1 else []
    if name == "alltoall_base":
        result = [arguments[0].copy_(arguments[1])]
    elif name in ("allgather", "gather"):
        for outputs, tensor in zip(result, arguments[1], strict=True):
            outputs[0].copy_(tensor)
    elif name in ("reduce_scatter", "scatter"):
        for output, parts in zip(result, arguments[1], strict=True):
            output.copy_(parts[0])
    elif name == "alltoall" or name.endswith("_tensor_coalesced"):
        for output, tensor in zip(result, arguments[1], strict=False):  # torch allows more outputs
            output.copy_(tensor.view_as(output))
    return result
