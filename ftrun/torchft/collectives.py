"""torchft.collectives: quantized collectives (process_groups/quantized.py).

They use torch's operations and so run on each device, where torchft needs Triton and CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp, Work

from ftrun.process_groups import quantized
from ftrun.torchft.utils import get_stream_context

__all__ = [
    "allocate_reduce_scatter_output",
    "allreduce_quantized",
    "get_padded_sizes",
    "reduce_scatter_quantized",
]


def get_padded_sizes(tensors: list[torch.Tensor], world_size: int) -> list[torch.Size]:
    """The shapes of ``tensors`` with the first dimension rounded up to a multiple of the ranks."""
    return quantized.padded_sizes(tensors, world_size)


def allocate_reduce_scatter_output(
    tensors: list[torch.Tensor], world_size: int
) -> tuple[torch.Tensor, list[torch.Size]]:
    """A flat tensor for one rank's parts of ``tensors``, and their padded shapes."""
    first = tensors[0]
    for tensor in tensors:
        assert tensor.device == first.device, "All inputs must be on the same device"
        assert tensor.dtype == first.dtype, "All inputs must be on the same dtype"
    sizes = get_padded_sizes(tensors, world_size)
    return first.new_empty(sum(size.numel() // world_size for size in sizes)), sizes


def allreduce_quantized(
    tensors: list[torch.Tensor],
    opts: Any,
    process_group: ProcessGroup,
    sync_stream: torch.Stream | None = None,
) -> Work:
    """Reduce ``tensors`` in place by AVG or SUM, with 8 bits per value.

    ``opts``: a ReduceOp, or options that have one. ``sync_stream``: the stream for the work, which
    begins after the pending work of the current stream.
    """
    with _in(sync_stream):
        return quantized.allreduce_quantized(tensors, _operation(opts), process_group)


def reduce_scatter_quantized(
    output: torch.Tensor,
    inputs: list[torch.Tensor],
    opts: Any,
    process_group: ProcessGroup,
    sync_stream: torch.Stream | None = None,
) -> Work:
    """Reduce ``inputs`` and write this rank's parts to ``output``. Arguments as above."""
    with _in(sync_stream):
        return quantized.reduce_scatter_quantized(output, inputs, _operation(opts), process_group)


def _operation(opts: Any) -> Any:
    return opts if isinstance(opts, (ReduceOp, ReduceOp.RedOpType)) else opts.reduceOp


def _in(stream: torch.Stream | None) -> Any:
    if stream is not None and torch.accelerator.is_available():
        stream.wait_stream(torch.accelerator.current_stream())
    return get_stream_context(stream)
