"""Tensors as bytes, and back again."""

from __future__ import annotations

import torch

from ftrun.training.exchanged_tensors import from_bytes, to_bytes


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
