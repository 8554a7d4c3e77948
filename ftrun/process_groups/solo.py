"""The group of one: every collective is a copy at most, without store, sockets or threads.

Not here: anything that needs a peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp, Work

from ftrun.process_groups.built import (
    AbortSignal,
    BuiltGroup,
    FinishedWork,
    GroupAborted,
    Tensors,
)


class SoloGroup(BuiltGroup):
    """The group of a replica that trains alone: a reduction's result is its input."""

    def __init__(self, signal: AbortSignal) -> None:
        super().__init__(0, 1, None, signal)

    def allreduce(self, tensors: Tensors, op: Any = ReduceOp.SUM) -> Work:
        return self._done(tensors)

    def allreduce_coalesced(self, tensors: Tensors, *options: Any) -> Work:
        return self._done(tensors)

    def broadcast(self, tensors: Tensors, root: Any = 0) -> Work:
        return self._done(tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, *options: Any) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            output[0].copy_(tensor)
        return self._done(inputs)

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, *options: Any
    ) -> Work:
        for output, tensor in zip(outputs, inputs, strict=False):  # torch allows more outputs
            output.copy_(tensor.view_as(output))
        return self._done(outputs)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, *options: Any
    ) -> Work:
        return self.allgather_into_tensor_coalesced(outputs, inputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], *options: Any) -> Work:
        for output, parts in zip(outputs, inputs, strict=True):
            output.copy_(parts[0])
        return self._done(outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        *options: Any,
    ) -> Work:
        output.copy_(input)
        return self._done([output])

    def barrier(self, *options: Any) -> Work:
        return self._done(())

    def _issue(self, name: str, *arguments: Any) -> Work:
        raise ValueError(f"{name}: there is no peer in a group of one")

    def _done(self, tensors: Tensors) -> Work:
        if self.aborted:
            return FinishedWork(error=GroupAborted("the process group was aborted"))
        return FinishedWork(list(tensors))
