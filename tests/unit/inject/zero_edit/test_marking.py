"""What replicas compare of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ftrun.inject.zero_edit.marking import Marking


def test_parameters_of_no_model_are_compared_with_nobodys() -> None:
    """Seen: a newcomer with its own part of a table had healed, and was replaced again and again,
    because its parameters were not those of its peer."""
    mates = SimpleNamespace(are_several=False)
    script: Any = SimpleNamespace(mates=mates, standing=None, world=None, memory=None)
    marking = Marking(script)
    of_model, own = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    marking.optimizers = [torch.optim.SGD([of_model, own], lr=0.1)]
    marking.known = lambda: {id(of_model)}
    before = marking.digest()
    with torch.no_grad():
        own.add_(1)
    assert marking.digest() == before
    with torch.no_grad():
        of_model.add_(1)
    assert marking.digest() != before
