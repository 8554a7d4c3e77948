"""A newcomer's random numbers are neither the job's first ones nor another newcomer's."""

from __future__ import annotations

import random

import numpy as np
import torch

from ftrun.inject.zero_edit.randomness import renew_random


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_newcomer_draws_numbers_of_its_own() -> None:
    found = []
    for rank, step in ((0, 0), (1, 0), (1, 7), (40_000, 123_456)):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        at_first = drawn()
        renew_random(rank, step)
        found += [at_first, drawn()]
    for kind in zip(*found, strict=True):
        assert len(set(kind)) == 5, "the script's own seed, and four others"
