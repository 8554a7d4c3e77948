"""What ftrun says of the objects that it carries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ftrun.inject.zero_edit.charge import parts
from ftrun.inject.zero_edit.stepping import Created


def test_what_shards_a_model_is_not_guessed() -> None:
    """Seen: a model of ``parallelize_module`` was called FSDP2's."""
    whole, shards = torch.nn.Linear(2, 1), torch.nn.Bilinear(1, 1, 1)
    models: Any = SimpleNamespace(
        wrapped=[whole, shards],
        sites=["a.py:3", "a.py:5"],
        is_sharded=lambda x: x is shards,
        beside=dict,
    )
    script: Any = None  # nothing is made
    nothing = Created(script, bool)
    stepping: Any = SimpleNamespace(optimizers=nothing, schedulers=nothing, scalers=nothing)
    found = ["DistributedDataParallel of Linear (a.py:3)", "sharded Bilinear (a.py:5)"]
    assert parts(models, stepping) == (found, [])
