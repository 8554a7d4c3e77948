"""One step's reductions as tensors and futures: what the ledger in core/ counts by index.

Not here: when one is issued, handed out or given up (core/step.py decides, engine.py carries out).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp, Work

Restore = Callable[[int], None]
"""Writes the local input, divided by a number, into a tensor again."""


class Reduction:
    """A tensor on its way through an all-reduce.

    Args:
        tensor: reduced in place; any shape.
        op: what torch's all-reduce does; AVG is a SUM that is divided by the contributors.
        restore: puts the local input back into ``tensor`` for a repair; None keeps a copy here.
        divided_by: what an average's input has been divided by already; None: the result is.
        held: handed out with its batch only (DDP's buckets).
        closes: the last one of its batch.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        op: Any,
        restore: Restore | None = None,
        divided_by: int | None = None,
        keep: bool = True,
        *,
        held: bool = False,
        closes: bool = False,
    ) -> None:
        self.tensor = tensor
        self.average = op == ReduceOp.AVG
        self.op = ReduceOp.SUM if self.average else op
        self.held = held
        self.closes = closes
        devices: list[int | str | torch.device] | None = [tensor.device] if tensor.is_cuda else None
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._resolved = False
        self._restore = restore
        self._divided_by = divided_by
        self._kept = tensor.clone() if keep and restore is None else None

    def restore(self, divisor: int) -> None:
        """Put the local input back: the tensor may hold half a reduction."""
        if self._divided_by is not None:
            self._divided_by = divisor
        if self._restore is not None:
            self._restore(self._divided_by or 1)
        elif self._kept is not None:
            self.tensor.copy_(self._kept)

    def divide_by(self, divisor: int) -> None:
        """Make sure, before it goes out, that the input was divided by the right number."""
        if self._divided_by is not None and self._divided_by != divisor:
            self.restore(divisor)

    def add_nothing(self) -> None:
        """Make the input neutral: a spare or a healing rank takes part without counting (C4)."""
        self.tensor.fill_(neutral(self.op, self.tensor.dtype))

    def hand_out(self, divisor: int) -> None:
        """The result stands: give it to whoever waits."""
        if self.average and divisor > 1 and self._divided_by is None:
            if self.tensor.is_floating_point() or self.tensor.is_complex():
                self.tensor.div_(divisor)
            else:
                self.tensor.div_(divisor, rounding_mode="trunc")
            if self.tensor.is_cuda:  # whoever waits may be on another stream
                torch.cuda.current_stream(self.tensor.device).synchronize()
        self.release()

    def release(self) -> None:
        """Complete the future with what the tensor holds; once."""
        if not self._resolved:
            self._resolved = True
            self._kept = None
            self.future.set_result(self.tensor)


def neutral(op: Any, dtype: torch.dtype) -> float | int | bool:
    """The value that changes no result of ``op``.

    Raises:
        ValueError: the operation has none.
    """
    if op in (ReduceOp.SUM, ReduceOp.BOR, ReduceOp.BXOR):
        return 0
    if op == ReduceOp.PRODUCT:
        return 1
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if op == ReduceOp.MAX:
        return limits.min
    if op == ReduceOp.MIN:
        return limits.max
    if op == ReduceOp.BAND:
        return -1 if dtype.is_signed else limits.max
    raise ValueError(f"{op} cannot be managed: it has no neutral element")


class ManagedWork(Work):
    """What ``Manager.allreduce`` returns: completes when the result stands, never raises.

    An error is in ``Manager.errored()`` and makes ``should_commit`` return False.
    """

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result; the step machine's deadlines bound it."""
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Whether ``wait`` would return at once."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[Any]:
        """Completes with the tensor."""
        return self._future
