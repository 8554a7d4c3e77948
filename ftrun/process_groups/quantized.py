"""Quantized collectives on any group that has all-to-all and all-gather: 8 bits for each value.

An all-reduce of W ranks in three parts (rank r owns the r-th part of all rows):

1. Each rank encodes its rows and sends each owner its part.
2. Each owner adds up the parts that it has received, and encodes the sum.
3. All gather the encoded sums and decode them: the same bytes, so the same values on all ranks.

So a value is quantized twice. With *a_r* the largest magnitude of its row on rank r, the sum is off
by at most Σ a_r / 126 with int8, and Σ a_r / 7 with fp8. For a mean, replace the sum of a_r by the
mean of a_r. A reduce-scatter ends after part 2 without encoding the sum: half of that error.

These calls return when the result is there (on a device: in its stream). Not here: the Manager's
all-reduce, which runs in the background (quantized_messages.py), the encoding (codec.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp, Work

from ftrun.process_groups.built import FinishedWork
from ftrun.process_groups.codec import (
    CODECS,
    DEFAULT,
    ROW_BYTES,
    ROW_VALUES,
    Codec,
    rows_of,
    write_rows,
)


def check_operation(op: Any) -> bool:
    """Whether ``op`` is a mean (True) or a sum (False).

    Raises:
        NotImplementedError: it is neither.
    """
    is_mean = bool(op == ReduceOp.AVG)  # in the other order, torch finds no ReduceOp equal
    if not is_mean and not op == ReduceOp.SUM:  # torch defines no "!="
        raise NotImplementedError(f"a quantised reduction by {op}: only AVG and SUM are offered")
    return is_mean


def allreduce_quantized(
    tensors: Sequence[torch.Tensor], op: Any, group: Any, codec: Codec = CODECS[DEFAULT]
) -> Work:
    """Reduce all of ``tensors`` in place, each in its own rows.

    Raises:
        NotImplementedError: ``op`` is neither AVG nor SUM.
        ValueError: the tensors are on several devices, of several dtypes, or of integers.
    """
    is_mean, size = check_operation(op), group.size()
    _check_alike(tensors)
    if size == 1:
        return FinishedWork(list(tensors))
    # Each rank owns the same number of rows of each tensor, so the parts are equally long.
    parts = [rows_of(tensor, size).view(size, -1, ROW_VALUES) for tensor in tensors]
    counts = [part.shape[1] for part in parts]
    gathered, work = gather_sums(torch.cat(parts, dim=1), group, codec)
    work.wait()
    sums = codec.decode(gathered.view(-1, ROW_BYTES)).view(size, -1, ROW_VALUES)
    for tensor, rows in zip(tensors, torch.split(sums, counts, dim=1), strict=True):
        write_rows(rows.reshape(-1, ROW_VALUES), tensor)
        if is_mean:
            tensor.div_(size)
    return FinishedWork(list(tensors))


def reduce_scatter_quantized(
    output: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    op: Any,
    group: Any,
    codec: Codec = CODECS[DEFAULT],
) -> Work:
    """Reduce ``inputs``, and write this rank's part of each, one after another, to ``output``.

    Each input is zero-padded along its first dimension to a multiple of the number of ranks, and
    rank r has the r-th part (``padded_sizes``).

    Raises:
        NotImplementedError, ValueError: as ``allreduce_quantized``; or ``output`` does not fit.
    """
    is_mean, size = check_operation(op), group.size()
    _check_alike([*inputs, output])
    parts = torch.cat([_padded(tensor, size).reshape(size, -1) for tensor in inputs], dim=1)
    if output.numel() != parts.shape[1]:
        raise ValueError(f"the output has {output.numel()} values, and its parts {parts.shape[1]}")
    if size == 1:
        total = parts[0]
    else:
        rows = torch.stack([rows_of(part, 1) for part in parts])
        total = _sum_of_part(rows, group, codec).reshape(-1)[: output.numel()]
    output.copy_(total.view(output.shape))
    if is_mean:
        output.div_(size)
    return FinishedWork([output])


def padded_sizes(tensors: Sequence[torch.Tensor], size: int) -> list[torch.Size]:
    """The shapes of ``tensors`` with the first dimension rounded up to a multiple of ``size``.

    A one-dimensional shape gets a second dimension of 1.
    """
    shapes = [(*t.shape, 1) if t.dim() == 1 else tuple(t.shape) for t in tensors]
    return [torch.Size((-(-shape[0] // size) * size, *shape[1:])) for shape in shapes]


def _padded(tensor: torch.Tensor, size: int) -> torch.Tensor:
    shape = padded_sizes([tensor], size)[0]
    filled = tensor.new_zeros(shape)
    filled[: tensor.shape[0]] = tensor.view(tensor.shape[0], *shape[1:])
    return filled


def gather_sums(rows: torch.Tensor, group: Any, codec: Codec) -> tuple[torch.Tensor, Work]:
    """(ranks, n, values) → (ranks, n, bytes), the encoded sums, and the Work of the all-gather."""
    own = codec.encode(_sum_of_part(rows, group, codec))
    gathered = own.new_empty((rows.shape[0], *own.shape))
    return gathered, group.allgather_into_tensor_coalesced([gathered], [own])


def _sum_of_part(rows: torch.Tensor, group: Any, codec: Codec) -> torch.Tensor:
    """(ranks, n, values) of all ranks → (n, values): the sum of this rank's part.

    This rank's own input is added without quantization.
    """
    size, rank = group.size(), group.rank() if callable(group.rank) else group.rank
    sent = codec.encode(rows.view(-1, rows.shape[-1])).view(size, -1, ROW_BYTES)
    received = torch.empty_like(sent)
    group.alltoall_base(received, sent, [], []).wait()
    return add_up(rows[rank], [received[r] for r in range(size)], rank, codec)


def add_up(
    own: torch.Tensor, received: Sequence[torch.Tensor], rank: int, codec: Codec
) -> torch.Tensor:
    """The sum of this rank's rows and its peers', in the order of the ranks."""
    total = own.clone()
    for peer, encoded in enumerate(received):
        if peer != rank:
            codec.add(encoded, total)
    return total


def _check_alike(tensors: Sequence[torch.Tensor]) -> None:
    first = tensors[0]
    if any((t.device, t.dtype) != (first.device, first.dtype) for t in tensors):
        raise ValueError("tensors that are reduced together must have one device and one dtype")
    if not first.dtype.is_floating_point:
        raise ValueError(f"{first.dtype} cannot be quantised: only floating point can")
