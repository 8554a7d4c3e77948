"""A step's reductions as tensors and futures; core/worker/operations.py refers to them by index.

Not here: when a reduction is issued, handed out or given up (core/worker/machine.py decides,
in_flight.py carries out).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp, Work

from ftrun.base.errors import UserError
from ftrun.core.worker.comparison import Shape
from ftrun.process_groups.built import BuiltGroup, FinishedWork, JoinedWork
from ftrun.training.kept_inputs import KeptInputs

Restore = Callable[[int], None]
"""Writes the local input, divided by a number, into a tensor again."""


REDUCIBLE = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8}
    | {torch.int8, torch.int32, torch.int64, torch.complex32, torch.complex64, torch.complex128}
)
"""The types that Gloo reduces. NCCL has all of these but complex32."""
WIDER = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}
"""The types in which other types are reduced, because Gloo lacks those."""
NAMES = {
    "sum": ReduceOp.SUM,
    "product": ReduceOp.PRODUCT,
    "max": ReduceOp.MAX,
    "min": ReduceOp.MIN,
    "or": ReduceOp.BOR,
    "xor": ReduceOp.BXOR,
    "and": ReduceOp.BAND,
}
"""Names of operations: for people, and equal in all processes."""


class Reduction:
    """A tensor on its way through an all-reduce.

    Args:
        tensor: reduced in place; any shape. A copy is reduced if its values are not one block of
            memory, or are of a type that backends lack.
        op: the ReduceOp; AVG is a SUM that is divided by the number of contributors.
        restore: puts the local input back into ``tensor`` for a repair; None keeps a copy here,
            made just before the tensor is first written to.
        divided_by: the number by which an average's input has been divided already; None: the
            result is divided.
        keep: without ``restore``, keep a copy of the input for a repair.
        batched: handed out only with its batch (DDP's buckets).
        closes: the last reduction of its batch.
        awaited: the training thread awaits its batch (DDP's buckets), and so computes nothing then.
        counted: maps the number of contributors to the divisor of an average; called when the
            result is final. None: the divisor is the number of contributors.
        copies: the memory for copies.
    """

    writes_early = True
    """Whether its tensor is written to while the reduction runs, not only when it is handed out."""

    def __init__(
        self,
        tensor: torch.Tensor,
        op: Any,
        restore: Restore | None = None,
        divided_by: int | None = None,
        keep: bool = True,
        *,
        batched: bool = False,
        closes: bool = False,
        awaited: bool = False,
        counted: Callable[[int], int] | None = None,
        copies: KeptInputs | None = None,
    ) -> None:
        self.tensor = tensor
        self.data = _reducible(tensor)
        self.average = op == ReduceOp.AVG
        self.op = ReduceOp.SUM if self.average else op
        self.batched = batched
        self.closes = closes
        self.awaited = awaited
        devices: list[int | str | torch.device] | None = [tensor.device] if tensor.is_cuda else None
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self.is_claimed = False
        self.is_released = False
        self.failure: Exception | None = (
            None  # the result is final, but could not be written to the tensor
        )
        self._releases: int | None = None  # the thread that completes the future
        self._released = threading.Condition()
        self.shape = _shape(self.data, self.op)
        self._neutral = neutral(self.op, self.data.dtype)
        self._restore = restore
        self._divided_by = divided_by
        self._counted = counted
        self._copies = copies or KeptInputs()
        self._keeps = keep and restore is None
        self._kept: torch.Tensor | None = None
        self._kept_values = 0

    def restore(self, divisor: int) -> None:
        """Put the local input back, because the tensor may hold a partial reduction."""
        if self._divided_by is not None:
            self._divided_by = divisor
        if self._restore is not None:
            self._restore(self._divided_by or 1)
        elif self._kept is not None:
            kept = self._kept[: self._kept_values]
            self._memory()[: self._kept_values].copy_(kept)

    def divide_by(self, divisor: int) -> None:
        """Before launch: divide the input by ``divisor`` instead, if the number has changed."""
        if self._divided_by is not None and self._divided_by != divisor:
            self.restore(divisor)

    def weigh(self, weight: float) -> None:
        """Before launch: multiply an average's input, because replicas have batches of different
        sizes."""
        if weight == 0.0:
            self.add_nothing()
        elif weight != 1.0 and (self.data.is_floating_point() or self.data.is_complex()):
            self._keep(self.data.numel())
            self.data.mul_(weight)

    def add_nothing(self) -> None:
        """Make the input neutral, for a spare or a healing rank, which does not count (C4)."""
        self._keep(self.data.numel())
        self.data.fill_(self._neutral)

    def answer(self, known: torch.Tensor) -> None:
        """Instead of ``launch``: set this result."""
        self._keep(self.data.numel())
        self._memory().copy_(known.view(self.data.dtype))
        _await_device(self.data)

    def launch(self, group: BuiltGroup) -> Work:
        """Launch it, in pieces if the group asks for pieces.

        Each piece is copied for a repair just before it goes out, while earlier pieces are being
        sent. DDP's buckets go out whole: several are in flight anyway, and torch reduces whole
        buckets.
        """
        works: list[Work] = []
        values = self.data.numel()
        if group.piece_bytes is not None and not self.awaited:
            values = group.piece_bytes // self.data.element_size()
        if self.data.numel() <= values:
            self._keep(self.data.numel())
            return group.allreduce([self.data], self.op)
        for piece in torch.split(self._memory(), values):
            self._keep(min(self.data.numel(), values * (len(works) + 1)))
            try:
                works.append(group.allreduce([piece], self.op))
            except RuntimeError as error:
                if not works:
                    raise
                works.append(FinishedWork(error=error))  # earlier pieces may still be written to
                break
        return JoinedWork(works, [self.data])

    def _keep(self, values: int) -> None:
        """Copy the first ``values`` values of the input, which are about to be overwritten."""
        if not self._keeps or values <= self._kept_values:
            return
        memory, first = self._memory(), self._kept_values
        if self._kept is None:
            self._kept = self._copies.empty_like(memory)
        self._kept[first:values].copy_(memory[first:values])
        self._kept_values = values

    def _memory(self) -> torch.Tensor:
        """All values in memory order."""
        return self.data.as_strided((self.data.numel(),), (1,))

    def claim(self) -> bool:
        """Claim the right to complete the future; False: it is taken. Under the engine's lock."""
        was_claimed, self.is_claimed = self.is_claimed, True
        return not was_claimed

    def hand_out(self, divisor: int) -> None:
        """Complete the future with the result, which is final."""
        try:
            self._finish(divisor)
        except Exception as error:  # noqa: BLE001  # whatever torch says of the script's tensor
            self.failure = error
        self.release()

    def _finish(self, divisor: int) -> None:
        if self.average and self._divided_by is None:
            number = divisor if self._counted is None else self._counted(divisor)
            if number > 1:
                self._divide(number)

    def release(self) -> None:
        """Complete the future with the tensor as it is, and run the callbacks chained on it.

        It always completes; an error is noted in ``failure``.
        """
        kept, self._kept = self._kept, None
        self._keeps = False
        if kept is not None:
            self._copies.give_back(kept)
        self._releases = threading.get_ident()
        try:
            if self.data.data_ptr() != self.tensor.data_ptr():
                self.tensor.detach().copy_(self.data)
                _await_device(self.data)
        except Exception as error:  # noqa: BLE001
            self.failure = self.failure or error
        try:
            self.future.set_result(self.tensor)
        finally:
            with self._released:
                self.is_released = True
                self._released.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the future is complete and its callbacks have run.

        (A wait for torch's future ends before the callbacks run.) A callback that waits for its own
        reduction returns at once.

        Returns:
            False if that took longer than ``timeout_s``.
        """
        if self._releases != threading.get_ident():
            with self._released:
                if not self._released.wait_for(lambda: self.is_released, timeout_s):
                    return False
        self.future.wait()  # for a CUDA tensor, this stream waits for the stream that wrote it
        return True

    def _divide(self, divisor: int) -> None:
        if self.data.is_floating_point() or self.data.is_complex():
            self.data.div_(divisor)
        else:
            self.data.div_(divisor, rounding_mode="trunc")
        _await_device(self.data)


def _await_device(tensor: torch.Tensor) -> None:
    """Wait for the device: a waiting thread may use another stream than this one."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def _reducible(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, or a copy that backends can reduce.

    Raises:
        ValueError: no backend can reduce it.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"one tensor is reduced at a time, and this is a {type(tensor).__name__}")
    kind = WIDER.get(tensor.dtype, tensor.dtype)
    if tensor.layout != torch.strided or kind not in REDUCIBLE or tensor.is_meta:
        text = f"a tensor of {tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise ValueError(f"{text} cannot be reduced")
    is_lazy = tensor.is_conj() or tensor.is_neg()
    if kind == tensor.dtype and _is_dense(tensor) and not is_lazy:
        return tensor.detach()  # a parameter itself refuses to be written to
    if _overlaps(tensor):
        raise ValueError(
            "elements of this tensor share memory (as after expand()), so they cannot have a "
            "result each: clone() it before it is reduced"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.to(kind, copy=True, memory_format=torch.contiguous_format)


def _shape(tensor: torch.Tensor, op: Any) -> Shape:
    """The properties that peers' reductions must share with this one."""
    name = next((name for name, known in NAMES.items() if op == known), str(op))
    return Shape(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def neutral(op: Any, dtype: torch.dtype) -> float | int | bool:
    """The value that changes no result of ``op``.

    Raises:
        ValueError: the operation has no such value.
    """
    if op == ReduceOp.SUM:
        return 0
    if dtype.is_complex:
        raise ValueError(f"{dtype} can be reduced by SUM only, and not by {op}")
    if op == ReduceOp.PRODUCT:
        return 1
    if op in (ReduceOp.MAX, ReduceOp.MIN):
        return _extreme(dtype, lowest=op == ReduceOp.MAX)
    is_whole = not dtype.is_floating_point and not dtype.is_complex
    if is_whole and op in (ReduceOp.BOR, ReduceOp.BXOR):
        return 0
    if is_whole and op == ReduceOp.BAND:
        return -1 if dtype.is_signed else _extreme(dtype, lowest=False)
    raise ValueError(f"{op} of {dtype} cannot be managed: it has no neutral element")


def _extreme(dtype: torch.dtype, lowest: bool) -> float | int | bool:
    if dtype == torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if lowest else limits.max


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements are one block of memory, in any order: backends see no strides."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two of its elements share memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    places = torch.zeros((), dtype=torch.int64)
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return len(set(places.flatten().tolist())) < tensor.numel()


class Batch:
    """Reductions that get their results together (``Manager.batch``). ``issue`` issues one.

    Which reduction is the last one is known only at the end of the block, but the step machine must
    know it when that reduction is issued. So each reduction is issued when the next one comes.
    """

    def __init__(self, issue: Callable[[Reduction], Any]) -> None:
        self.is_open = True
        self._issue = issue
        self._held: Reduction | None = None

    def add(self, reduction: Reduction) -> None:
        """Issue the previous reduction."""
        held, self._held = self._held, reduction
        if held is not None:
            self._issue(held)

    def close(self) -> None:
        """Issue the last one, which closes the batch."""
        self.is_open = False
        held, self._held = self._held, None
        if held is not None:
            held.closes = True
            self._issue(held)


class ManagedWork(Work):
    """The Work of ``Manager.allreduce``. It completes when the result is final, and never raises.

    An error is in ``Manager.errored()`` and makes ``should_commit`` return False.
    """

    def __init__(
        self,
        reduction: Reduction,
        report: Callable[[Exception], None],
        batch: Batch | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__()
        self._reduction = reduction
        self._report = report
        self._batch = batch
        self._waiting = waiting

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result, and for the callbacks chained on its future until now.

        The step machine's deadlines bound the wait. If ``timeout`` passes, it returns False, which
        is an error of the step.

        Raises:
            UserError: its batch is still open, so the wait would never end.
        """
        if self._batch is not None and self._batch.is_open:
            raise UserError("a reduction has its result after its batch: wait after the block")
        with self._waiting():
            if self._reduction.wait(timeout.total_seconds() if timeout else None):
                return True
        self._report(TimeoutError(f"a reduction took longer than {timeout}"))
        return False

    def synchronize(self) -> None:
        """Same as ``wait``: torch sometimes calls it by this name."""
        self.wait()

    def is_success(self) -> bool:
        """Whether it is complete. Errors are in ``Manager.errored()``."""
        return self._reduction.is_released

    def exception(self) -> None:
        """None. Errors are in ``Manager.errored()``."""

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self._reduction.tensor]

    def is_completed(self) -> bool:
        """Whether ``wait`` would return at once."""
        return self._reduction.is_released

    def get_future(self) -> torch.futures.Future[Any]:
        return self._reduction.future
