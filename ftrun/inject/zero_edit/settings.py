"""Settings and parameters of an unmodified script's optimizers, which replicas compare.

Not here: when they are noted (loop.py), how they are compared (core/lighthouse/divergence.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ftrun.checkpoint.leaves import local_of

_NUMBERS = (int, float)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the size of an element: a sum of integers is the same in every order."""

Settings = list[tuple[str, list[tuple[str, Any]]]]


def settings_of(optimizers: Sequence[Optimizer]) -> Settings:
    """All parameter groups as they are now. It may run in every step, so it selects nothing."""
    return [
        (type(optimizer).__name__, list(group.items()))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def _is_setting(value: Any) -> bool:
    kind = type(value)
    if kind is tuple:
        return all(type(part) in _NUMBERS for part in value)
    return kind in _NUMBERS


def text_of(settings: Settings) -> str:
    """The numbers in them, to read and to compare: ``SGD lr 0.1, SGD momentum 0.9``."""
    return ", ".join(
        f"{name} {key} {'/'.join(map(repr, value)) if type(value) is tuple else repr(value)}"
        for name, group in settings
        for key, value in group
        if _is_setting(value)
    )


def digest_of(optimizers: Sequence[Optimizer]) -> str:
    """A digest of the bits of all parameters that these optimizers step: one pass over them.

    Of a sharded one, this worker's part.
    """
    sums: dict[torch.device, list[torch.Tensor]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                sums.setdefault(parameter.device, []).append(_sum(local_of(parameter.detach())))
    numbers = [torch.stack(found).tolist() for found in sums.values()]
    return hashlib.blake2b(repr(numbers).encode(), digest_size=8).hexdigest()


def _sum(values: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(values) if values.is_complex() else values
    bits = real.contiguous().view(-1).view(_INTEGERS[real.element_size()])
    return bits.sum(dtype=torch.int64)
