"""torchft.quantization: Triton kernels, which ftrun does not have.

The functions can be imported, and their errors name what to call instead. The quantized collectives
are in collectives.py and run on each device by torch's operations.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.distributed import ReduceOp

from ftrun.base.errors import UserError

__all__ = ["fused_dequantize_from_fp8", "fused_quantize_into_fp8", "fused_reduce_fp8"]


def fused_quantize_into_fp8(inputs: list[torch.Tensor], all_reduce_group_size: int) -> torch.Tensor:
    """Refused, see the module."""
    _refuse("fused_quantize_into_fp8")


def fused_dequantize_from_fp8(
    inputs: list[torch.Tensor], output: torch.Tensor, all_reduce_group_size: int
) -> None:
    """Refused, see the module."""
    _refuse("fused_dequantize_from_fp8")


def fused_reduce_fp8(
    inputs: list[torch.Tensor],
    output: torch.Tensor,
    all_reduce_group_size: int,
    all_reduce_rank: int,
    reduce_op: Any = ReduceOp.SUM,
) -> None:
    """Refused, see the module."""
    _refuse("fused_reduce_fp8")


def _refuse(name: str) -> NoReturn:
    raise UserError(
        f"torchft.quantization.{name}: ftrun has none of torchft's Triton kernels. Nothing was "
        'computed; call Manager.allreduce(tensor, should_quantize="fp8") or '
        "torchft.collectives.allreduce_quantized"
    )
