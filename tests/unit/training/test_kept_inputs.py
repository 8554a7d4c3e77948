"""The memory of copies: used again, freed when nobody wants it."""

from __future__ import annotations

import torch

from ftrun.training.kept_inputs import SMALLEST_BYTES, UNUSED_STEPS_MAX, KeptInputs

VALUES = SMALLEST_BYTES // 4


def test_memory_is_used_again_for_what_is_alike() -> None:
    copies = KeptInputs()
    memory = copies.empty_like(torch.zeros(VALUES))
    copies.give_back(memory)
    assert copies.empty_like(torch.zeros(VALUES + 1)) is not memory
    assert copies.empty_like(torch.zeros(VALUES, dtype=torch.int32)) is not memory
    assert copies.empty_like(torch.zeros(VALUES)) is memory
    assert copies.empty_like(torch.zeros(VALUES)) is not memory


def test_memory_that_nobody_wants_is_freed() -> None:
    copies = KeptInputs()
    memory = copies.empty_like(torch.zeros(VALUES))
    copies.give_back(memory)
    for _ in range(UNUSED_STEPS_MAX):
        copies.step_begun()
    assert copies.empty_like(torch.zeros(VALUES)) is memory
    copies.give_back(memory)
    for _ in range(UNUSED_STEPS_MAX + 1):
        copies.step_begun()
    assert copies.empty_like(torch.zeros(VALUES)) is not memory


def test_small_memory_is_not_held() -> None:
    copies = KeptInputs()
    memory = copies.empty_like(torch.zeros(4))
    copies.give_back(memory)
    assert copies.empty_like(torch.zeros(4)) is not memory
