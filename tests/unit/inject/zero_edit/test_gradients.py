"""Which gradients a script keeps, so that a replacement needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from ftrun.inject.zero_edit.gradients import WORDS, Gradients
from ftrun.inject.zero_edit.patches import Patches


class Pair:
    """Two models with an optimizer each."""

    def __init__(self) -> None:
        self.models = [nn.Linear(2, 1), nn.Linear(2, 1)]
        self.optimizers = [torch.optim.SGD(model.parameters()) for model in self.models]
        self.told: list[str] = []
        self.gradients = Gradients(lambda: self.optimizers, self.told.extend)

    def train(self, which: int, drop: Callable[[], None] = lambda: None) -> None:
        """One step of one of them, in which nothing else drops gradients."""
        drop()
        self.models[which](torch.ones(2)).sum().backward()
        self.optimizers[which].step()


@pytest.fixture
def pair() -> Iterator[Pair]:
    found, patches = Pair(), Patches()
    found.gradients.install(patches)
    yield found
    patches.undo()


@pytest.mark.parametrize("by", ["optimizer", "model", "in place"])
def test_what_each_step_drops_is_not_kept(pair: Pair, by: str) -> None:
    optimizer, model = pair.optimizers[0], pair.models[0]
    drop: dict[str, Callable[[], None]] = {
        "optimizer": optimizer.zero_grad,
        "model": model.zero_grad,
        "in place": lambda: optimizer.zero_grad(set_to_none=False),
    }
    for _ in range(3):
        pair.gradients.step_begins()
        assert not pair.gradients.are_kept
        pair.gradients.are_left_out()
        pair.train(0, drop[by])
    assert not pair.told


def test_what_is_dropped_after_the_step_is_not_kept(pair: Pair) -> None:
    for _ in range(3):
        pair.gradients.step_begins()
        assert not pair.gradients.are_kept
        pair.gradients.are_left_out()
        pair.train(0)
        pair.optimizers[0].zero_grad(set_to_none=False)
    assert not pair.told


def test_a_sum_over_steps_is_kept(pair: Pair) -> None:
    pair.gradients.step_begins()
    pair.train(0, pair.optimizers[0].zero_grad)
    pair.gradients.step_begins()
    pair.gradients.are_left_out()  # the step before has dropped them
    pair.train(0)
    assert pair.told == [WORDS]
    pair.gradients.step_begins()
    assert pair.gradients.are_kept
    pair.gradients.are_given()
    pair.train(0)
    assert pair.told == [WORDS]


def test_another_models_are_kept_until_it_is_trained_again(pair: Pair) -> None:
    """Seen: a GAN whose replacement did not send along the discriminator's gradients, as the others
    did, and folds with a model each, which were not followed at all."""
    first, second = (x.zero_grad for x in pair.optimizers)
    pair.gradients.step_begins()
    pair.train(0, first)
    pair.gradients.step_begins()
    pair.gradients.are_left_out()
    pair.train(1, second)
    pair.gradients.step_begins()
    assert pair.gradients.are_kept, "the first one's"
    pair.train(0, first)
    assert not pair.told
