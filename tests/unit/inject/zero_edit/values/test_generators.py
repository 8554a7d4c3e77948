"""Generators of random numbers that a script has made."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from ftrun.inject.zero_edit.randomness import States
from ftrun.inject.zero_edit.values.generators import is_generator
from ftrun.inject.zero_edit.values.walk import Walk

KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch": (
        lambda: torch.Generator().manual_seed(3),
        lambda x: torch.randn(5, generator=x).tolist(),
    ),
    "python": (lambda: random.Random(3), lambda x: [x.gauss(0, 1) for _ in range(5)]),
    "PCG64": (lambda: numpy.random.default_rng(3), lambda x: x.normal(size=5).tolist()),
    "MT19937": (
        lambda: numpy.random.Generator(numpy.random.MT19937(3)),
        lambda x: x.normal(size=5).tolist(),
    ),
    "Philox": (
        lambda: numpy.random.Generator(numpy.random.Philox(3)),
        lambda x: x.normal(size=5).tolist(),
    ),
    "RandomState": (lambda: numpy.random.RandomState(3), lambda x: x.normal(size=5).tolist()),
}


class Noise:
    """A script's own class."""

    def __init__(self, made: Any) -> None:
        self.generators = [made]


@pytest.mark.parametrize("name", KINDS)
def test_another_one_goes_on_where_it_stood(name: str) -> None:
    make, draw = KINDS[name]
    one, other = make(), make()
    draw(one)
    one_by_name, other_by_name = {"noise": one}, {"noise": other}
    parts = States.now(one_by_name).encode()
    expected = draw(one)
    States.decode(parts).set(other_by_name)
    assert draw(other) == expected
    States.decode(parts).set()  # this process has not made it


def test_they_are_found_by_path() -> None:
    made = numpy.random.default_rng(0)
    variables = {"own": random.Random(0), "noise": Noise(made), "rank_noise": random.Random(1)}
    [found] = Walk().walk([sys._getframe()], [variables])
    assert list(found.generators) == ["own", "noise.generators[0]"]
    assert found.generators["noise.generators[0]"] is made
    assert not is_generator(random.SystemRandom)
