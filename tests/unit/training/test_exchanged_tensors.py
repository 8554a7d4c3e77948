"""Tensors as bytes, and back again."""

from __future__ import annotations

import torch

from ftrun.training.exchanged_tensors import from_bytes, small_bytes, to_bytes


def test_bytes_are_those_of_the_elements_in_order() -> None:
    for tensor in (
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.zeros(0),
    ):
        assert torch.equal(from_bytes(to_bytes(tensor), tensor), tensor)


def test_a_storage_whose_bytes_were_taken_can_still_be_resized() -> None:
    tensor = torch.ones(4)
    to_bytes(tensor)
    assert tensor.untyped_storage().resizable()


def test_small_tensors_of_the_host_are_copied_and_no_others() -> None:
    tensors = [torch.arange(6.0).view(2, 3).t(), torch.zeros(0), torch.tensor([1, 2])]
    assert small_bytes(tensors, 40) == [to_bytes(tensor) for tensor in tensors]
    assert small_bytes(tensors, 39) is None
    assert small_bytes([torch.eye(2).to_sparse()], 40) is None
    assert small_bytes([torch.ones(1, device="meta")], 40) is None
