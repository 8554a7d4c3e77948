"""A reduction of a step that sends 8 bits for each value.

Its tensor stays unchanged until the result is handed out, so a repair needs no copy of the input.

Not here: the messages (process_groups/quantized_messages.py), the error (quantized.py there).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import Work

from ftrun.base.errors import UserError
from ftrun.core.worker.comparison import Shape
from ftrun.process_groups.built import BuiltGroup, QuantizedWork
from ftrun.process_groups.codec import CODECS, DEFAULT
from ftrun.process_groups.quantized import check_operation
from ftrun.training.reductions import Reduction


def quantized_kind(asked: bool | str) -> str:
    """The number format for ``should_quantize``.

    Raises:
        UserError: the name is unknown.
    """
    kind = DEFAULT if asked is True else str(asked)
    if kind not in CODECS:
        names = " or ".join(repr(name) for name in CODECS)
        raise UserError(f"allreduce(should_quantize={asked!r}): choose True, {names}")
    return kind


class QuantizedReduction(Reduction):
    """A mean or sum of floating point values, in numbers of ``kind``: "int8" or "fp8".

    Raises:
        ValueError: another operation, or values that are not floating point.
    """

    writes_early = False

    def __init__(self, tensor: torch.Tensor, op: Any, kind: str, *, batched: bool = False) -> None:
        if not tensor.is_floating_point():
            raise ValueError(f"{tensor.dtype} cannot be quantised: only floating point can")
        try:
            check_operation(op)
        except NotImplementedError as error:
            raise ValueError(str(error)) from None
        super().__init__(tensor, op, keep=False, batched=batched)
        self._codec = CODECS[kind]
        self.shape = Shape(f"{kind} {self.shape.op}", self.shape.dtype, self.shape.sizes)
        self._factor = 1.0
        self._work: Work | None = None

    def restore(self, _divisor: int) -> None:
        self._factor, self._work = 1.0, None

    def divide_by(self, divisor: int) -> None:
        """Do nothing: the result is divided."""

    def weigh(self, weight: float) -> None:
        self._factor = weight

    def add_nothing(self) -> None:
        self._factor = 0.0

    def launch(self, group: BuiltGroup) -> Work:
        self._work = group.allreduce_quantized(self.data, self._factor, self._codec)
        return self._work

    def _finish(self, divisor: int) -> None:
        work, self._work = self._work, None
        if isinstance(work, QuantizedWork):
            work.write(self._codec, self.data)
        elif self._factor != 1.0:  # alone
            self.data.mul_(self._factor)
        super()._finish(divisor)
