"""Single numbers that are not Python's: numpy's, and tensors without a dimension on the CPU.

A best score or a running loss is often one of these. One of numpy's travels as Python's own number;
a tensor as its type and its number, and a newcomer's variable gets a new tensor, because the one
that it holds may be a part of another one. A tensor on another device is left out: to read it would
make the training thread wait for that device in each step.

Not here: where they are found (frames.py), lists of them (histories.py).
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

TENSOR = "ftrun.tensor"


@lru_cache(maxsize=4096)
def is_number(kind: Any) -> bool:
    """Whether this is a type of numpy's whose objects are single numbers: as a mean is."""
    numpy = sys.modules.get("numpy") if kind.__module__ == "numpy" else None
    if numpy is None or issubclass(kind, numpy.complexfloating):
        return False
    return issubclass(kind, (numpy.number, numpy.bool_))


@lru_cache(maxsize=4096)
def is_tensor(kind: Any) -> bool:
    """Whether this is torch's own type of tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and kind is torch.Tensor


def is_single(value: Any) -> bool:
    """Whether a tensor is a single number that may be a counter."""
    if value.dim() or value.requires_grad or value.is_complex():
        return False
    return value.device.type == "cpu" and not value.is_quantized


def packed(value: Any) -> dict[str, Any]:
    """Such a tensor, as JSON has it."""
    return {TENSOR: [str(value.dtype).removeprefix("torch."), value.item()]}


def unpacked(value: Any) -> Any:
    """The tensor that was packed as ``value``; anything else as it is."""
    if type(value) is not dict or list(value) != [TENSOR]:
        return value
    torch = sys.modules["torch"]
    kind, number = value[TENSOR]
    return torch.tensor(number, dtype=getattr(torch, kind))
