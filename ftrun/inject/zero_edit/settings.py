"""What is compared of an unmodified script's optimizers: their settings, and their parameters.

Not here: when it is noted (loop.py), how it is compared (core/lighthouse/divergence.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

_NUMBERS = (int, float)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the size of an element: a sum of integers is the same in every order."""

Settings = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


def settings_of(optimizers: Sequence[Optimizer]) -> Settings:
    """The numbers in all parameter groups, by name. It runs in every step."""
    return tuple(
        (type(optimizer).__name__, tuple(item for item in group.items() if _is_setting(item[1])))
        for optimizer in optimizers
        for group in optimizer.param_groups
    )


def _is_setting(value: Any) -> bool:
    kind = type(value)
    if kind is tuple:
        return all(type(part) in _NUMBERS for part in value)
    return kind in _NUMBERS


def text_of(settings: Settings) -> str:
    """For people, and for comparison: ``SGD lr 0.1, SGD momentum 0.9``."""
    return ", ".join(
        f"{name} {key} {'/'.join(map(repr, value)) if type(value) is tuple else repr(value)}"
        for name, group in settings
        for key, value in group
    )


def digest_of(optimizers: Sequence[Optimizer]) -> str:
    """A digest of the bits of all parameters that these optimizers step: one pass over them."""
    sums: dict[torch.device, list[torch.Tensor]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                sums.setdefault(parameter.device, []).append(_sum(parameter.detach()))
    numbers = [torch.stack(found).tolist() for found in sums.values()]
    return hashlib.blake2b(repr(numbers).encode(), digest_size=8).hexdigest()


def _sum(values: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(values) if values.is_complex() else values
    bits = real.contiguous().view(-1).view(_INTEGERS[real.element_size()])
    return bits.sum(dtype=torch.int64)
