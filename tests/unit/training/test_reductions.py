"""One reduction: who divides, and what a repair with other contributors writes again."""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from ftrun.training.reductions import Reduction


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
    reduction = Reduction(
        tensor, ReduceOp.AVG, lambda by: tensor.fill_(6.0 / by) and None, divided_by=3
    )
    reduction.restore(2)
    assert tensor.item() == 3.0


def test_a_kept_input_comes_back_undivided() -> None:
    tensor = torch.tensor([6.0])
    reduction = Reduction(tensor, ReduceOp.AVG)
    tensor.fill_(float("nan"))
    reduction.restore(2)
    assert tensor.item() == 6.0
    reduction.hand_out(2)
    assert tensor.item() == 3.0
