"""The state of the script's objects, matched in the order in which they were made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ftrun.inject.zero_edit.carried import Carried
from ftrun.inject.zero_edit.refusals import Refused
from ftrun.inject.zero_edit.stepping import Created


class Made:
    """What a script has made: a model, optimizers, a scheduler."""

    def __init__(self, optimizers: list[Any], models: int = 1) -> None:
        self.created, self.optimizers = Created(), optimizers
        for optimizer in optimizers:
            self.created.add(optimizer)
        none = Created()
        stepping: Any = SimpleNamespace(
            optimizers_that_heal=self.created.all,
            schedulers_that_heal=list,
            scalers=none,
            has_late=True,
        )
        self.models = [nn.Linear(2, 2) for _ in range(models)]
        models_: Any = SimpleNamespace(wrapped=self.models, loose_roots=list)
        frameworks: Any = SimpleNamespace(parts=list)
        self.carried = Carried(models_, stepping, frameworks, lambda: None, lambda: None)


def sgd(*groups: int) -> torch.optim.SGD:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))] * 1} for _ in groups], lr=1.0)


def test_equal_objects_take_the_state() -> None:
    first, second = sgd(1), sgd(1)
    first.param_groups[0]["lr"] = 0.25
    here, there = Made([second]), Made([first])
    here.carried.load(there.carried.state())
    assert second.param_groups[0]["lr"] == 0.25


def test_what_was_made_in_the_middle_of_the_training_is_refused() -> None:
    there, here = Made([sgd(1)], models=2), Made([sgd(1)])
    with pytest.raises(Refused, match="2 models in the replicas that train, and 1 in this one"):
        here.carried.load(there.carried.state())


def test_groups_that_were_added_are_refused() -> None:
    there, here = Made([sgd(1, 1)]), Made([sgd(1)])
    with pytest.raises(Refused, match=r"groups of \[1, 1\] parameters.*of \[1\]"):
        here.carried.load(there.carried.state())


def test_of_later_ones_only_those_of_the_training_heal() -> None:
    created, first, probe, trains = Created(), sgd(1), sgd(1), sgd(1)
    created.add(first)
    created.keep()
    created.add(probe)
    created.add(trains)
    assert created.late() == [probe, trains]
    assert created.that_heal(lambda x: x is trains) == [first, trains]
