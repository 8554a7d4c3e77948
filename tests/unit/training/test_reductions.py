"""One reduction: where it is divided, and what a repair with other contributors writes."""

from __future__ import annotations

import math
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp, Work

from ftrun.process_groups.built import AbortSignal, BuiltGroup, FinishedWork, Tensors
from ftrun.training.reductions import REDUCIBLE, ManagedWork, Reduction

DEADLINE_S = 60.0
TOO_SOON_S = 0.2
"""Seconds that a chained callback waits for a ``wait()`` that must not return before it."""


class Interrupted(BuiltGroup):
    """A group whose all-reduces write nonsense; after ``pieces_max`` it is broken."""

    def __init__(self, piece_bytes: int | None = None, pieces_max: int = 100) -> None:
        super().__init__(0, 2, None, AbortSignal())
        self.piece_bytes = piece_bytes
        self.reduced: list[list[float]] = []
        self._pieces_max = pieces_max

    def allreduce(self, tensors: Tensors, op: Any = ReduceOp.SUM) -> Work:
        if len(self.reduced) >= self._pieces_max:
            raise RuntimeError("it broke")
        self.reduced += [tensor.tolist() for tensor in tensors]
        for tensor in tensors:
            tensor.fill_(float("nan"))
        return FinishedWork(tensors)


def test_an_average_is_divided_when_it_is_handed_out() -> None:
    tensor = torch.tensor([6.0])
    reduction = Reduction(tensor, ReduceOp.AVG)
    reduction.divide_by(3)
    assert tensor.item() == 6.0
    reduction.hand_out(3)
    assert reduction.future.value() is tensor and tensor.item() == 2.0


def test_what_was_divided_by_a_number_that_holds_no_more_is_written_again() -> None:
    tensor, written = torch.tensor([2.0]), []

    def restore(divided_by: int) -> None:
        written.append(divided_by)
        tensor.fill_(6.0 / divided_by)

    reduction = Reduction(tensor, ReduceOp.AVG, restore, divided_by=3)
    reduction.divide_by(3)
    assert written == []
    reduction.divide_by(2)
    reduction.divide_by(2)
    assert written == [2] and tensor.item() == 3.0
    reduction.hand_out(2)
    assert tensor.item() == 3.0


def test_a_repair_writes_what_is_right_for_the_survivors() -> None:
    tensor = torch.tensor([float("nan")])

    def restore(by: int) -> None:
        tensor.fill_(6.0 / by)

    reduction = Reduction(tensor, ReduceOp.AVG, restore, divided_by=3)
    reduction.restore(2)
    assert tensor.item() == 3.0


def test_a_kept_input_comes_back_undivided() -> None:
    tensor = torch.tensor([6.0])
    reduction = Reduction(tensor, ReduceOp.AVG)
    reduction.launch(Interrupted())
    assert math.isnan(tensor.item())
    reduction.restore(2)
    assert tensor.item() == 6.0
    reduction.hand_out(2)
    assert tensor.item() == 3.0


def test_a_large_tensor_goes_out_in_pieces_and_comes_back_whole() -> None:
    tensor = torch.arange(12.0).view(3, 4).t()  # its memory is dense, in another order
    before = tensor.clone()
    group = Interrupted(piece_bytes=20)
    reduction = Reduction(tensor, ReduceOp.SUM)
    reduction.launch(group)
    assert group.reduced == [list(range(5)), list(range(5, 10)), [10, 11]]
    reduction.restore(2)
    assert torch.equal(tensor, before)
    reduction.launch(group)
    reduction.restore(1)
    assert torch.equal(tensor, before)


def test_a_bucket_goes_out_whole_as_torchs_does() -> None:
    group = Interrupted(piece_bytes=8)
    for restore in (None, lambda _: None):
        tensor = torch.arange(4.0)
        Reduction(tensor, ReduceOp.AVG, restore, batched=True, awaited=True).launch(group)
    assert group.reduced == [[0, 1, 2, 3]] * 2


def test_a_group_that_breaks_between_two_pieces_fails_the_work() -> None:
    tensor = torch.arange(4.0)
    group = Interrupted(piece_bytes=8, pieces_max=1)
    reduction = Reduction(tensor, ReduceOp.SUM)
    work = reduction.launch(group)
    with pytest.raises(RuntimeError, match="broke"):
        work.get_future().wait()
    reduction.restore(1)
    assert tensor.tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="broke"):
        Reduction(tensor, ReduceOp.SUM).launch(Interrupted(piece_bytes=8, pieces_max=0))


def test_a_replica_that_adds_nothing_gets_its_input_back() -> None:
    tensor = torch.ones(3)
    reduction = Reduction(tensor, ReduceOp.SUM)
    reduction.add_nothing()
    assert tensor.tolist() == [0, 0, 0]
    reduction.restore(1)
    reduction.weigh(0.5)
    assert tensor.tolist() == [0.5, 0.5, 0.5]
    reduction.restore(1)
    assert tensor.tolist() == [1, 1, 1]


def test_waiting_for_a_work_waits_for_what_is_chained_on_its_future() -> None:
    """torch completes a future, wakes its waiters, and runs the callbacks after that."""
    reduction = Reduction(torch.ones(1), ReduceOp.SUM)
    work = ManagedWork(reduction, lambda error: None)
    returned, ran = threading.Event(), []

    def note(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        ran.append(returned.wait(TOO_SOON_S))
        return future.value()

    chained = work.get_future().then(note)
    chained.add_done_callback(lambda future: (note(future), None)[1])
    releasing = threading.Thread(target=reduction.hand_out, args=(1,))
    releasing.start()
    assert work.wait()
    returned.set()
    assert ran == [False, False]
    assert work.is_completed() and work.is_success()
    releasing.join(DEADLINE_S)


def test_a_callback_may_wait_for_its_own_work() -> None:
    reduction = Reduction(torch.full((1,), 4.0), ReduceOp.AVG)
    work = ManagedWork(reduction, lambda error: None)
    seen = work.get_future().then(lambda _: (work.wait(), work.result()[0].item()))
    reduction.hand_out(2)
    assert seen.value() == (True, 2.0)


def test_a_wait_that_is_too_short_is_reported() -> None:
    errors: list[Exception] = []
    work = ManagedWork(Reduction(torch.ones(1), ReduceOp.SUM), errors.append)
    assert not work.wait(timedelta(milliseconds=1))
    assert isinstance(errors[0], TimeoutError) and not work.is_completed()


@pytest.mark.parametrize("kind", [torch.int16, torch.uint16, torch.float8_e5m2])
def test_a_type_that_backends_lack_is_reduced_in_a_wider_one(kind: torch.dtype) -> None:
    tensor = torch.tensor([1.0, 2.0]).to(kind)
    reduction = Reduction(tensor, ReduceOp.SUM)
    assert reduction.data.dtype in REDUCIBLE
    reduction.data += 4
    reduction.hand_out(2)
    assert tensor.tolist() == [5, 6] and reduction.future.value() is tensor


def test_a_tensor_with_gaps_is_reduced_in_a_copy() -> None:
    whole = torch.arange(6.0).view(3, 2)
    column = whole[:, 0]
    reduction = Reduction(column, ReduceOp.AVG)
    reduction.data *= 2
    reduction.hand_out(2)
    assert whole.tolist() == [[0, 1], [2, 3], [4, 5]] and reduction.data.is_contiguous()
    reduction = Reduction(column, ReduceOp.SUM)
    reduction.data += 1
    reduction.release()
    assert whole[:, 0].tolist() == [1, 3, 5]


def test_what_nobody_can_reduce_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="uint64"):
        Reduction(torch.zeros(2, dtype=torch.uint64), ReduceOp.SUM)
    with pytest.raises(ValueError, match="sparse"):
        Reduction(torch.zeros(2).to_sparse(), ReduceOp.SUM)
