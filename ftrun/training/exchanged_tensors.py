"""Tensors in named exchanges: to bytes and back, and reduced.

Not here: the exchange (exchanges.py), who takes part (core/worker/exchange.py).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

AVERAGE_OF_INTEGERS = "average reduce op is only supported for floating point tensors"
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of ``tensor`` in order.

    Does not use numpy: afterwards torch would refuse to resize the script's storage, as FSDP does.
    """
    is_flat = tensor.is_cpu and tensor.is_contiguous()
    flat = tensor if is_flat else tensor.detach().cpu().contiguous()
    copied: bytes = _memory(flat.data_ptr())[: flat.nbytes]
    return copied


def small_bytes(tensors: Sequence[torch.Tensor], limit: int) -> list[bytes] | None:
    """``to_bytes`` of each; None: they are not on the host, or exceed ``limit`` bytes together.

    A script's collective calls this twice, so each avoided function call counts.
    """
    found = []
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout is not _STRIDED or (count := tensor.nbytes) > limit:
            return None
        limit -= count
        flat = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        found.append(_memory(flat.data_ptr())[:count])
    return found


def memory_at(tensor: torch.Tensor, limit: int) -> Any:
    """The memory of a small tensor; copy it with ``[:nbytes]`` while the tensor lives. None: the
    tensor is not on the host, not contiguous, or larger than ``limit`` bytes."""
    is_here = tensor.is_cpu and tensor.layout is _STRIDED and tensor.is_contiguous()
    return _memory(tensor.data_ptr()) if is_here and tensor.nbytes <= limit else None


_STRIDED = torch.strided
_memory: Callable[[int], Any] = (ctypes.c_char * (1 << 40)).from_address
"""All memory from an address on. Slicing copies it without a foreign call."""


def from_bytes(body: bytes, like: torch.Tensor) -> torch.Tensor:
    """A tensor like ``like``, with the elements that ``to_bytes`` encoded."""
    if not body:
        return torch.empty_like(like)
    flat = torch.frombuffer(bytearray(body), dtype=like.dtype)
    return flat.view(like.shape).to(like.device)


def words(operation: str, tensor: torch.Tensor) -> str:
    """An operation as text, for people and for comparison: ``all_reduce sum of float32 2x3``."""
    sizes = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{operation} of {str(tensor.dtype).removeprefix('torch.')} {sizes}"


def operation_name(op: Any) -> str:
    return next((name.lower() for name in OPERATIONS if op == getattr(ReduceOp, name)), "?")


def reduced(found: torch.Tensor, op: Any) -> torch.Tensor | None:
    """Reduce along the first dimension; None: ``op`` is not known."""
    if op == ReduceOp.SUM:
        return found.sum(0).to(found.dtype)
    if op == ReduceOp.AVG:  # for integers as NCCL does
        floats = found.is_floating_point() or found.is_complex()
        count = found.shape[0]
        whole = found.sum(0).div(count, rounding_mode="trunc") if not floats else None
        return found.mean(0) if whole is None else whole.to(found.dtype)
    if op == ReduceOp.MAX:
        return found.amax(0)
    if op == ReduceOp.MIN:
        return found.amin(0)
    if op == ReduceOp.PRODUCT:
        return found.prod(0).to(found.dtype)
    bitwise = {
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    combine = bitwise.get(op)
    return None if combine is None else functools.reduce(combine, found.unbind(0))
