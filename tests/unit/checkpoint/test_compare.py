"""The differences between two replicas' states that are named, and those that are ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ftrun.checkpoint import compare


def state(model: torch.nn.Module, optimizer: Any = None) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict() if optimizer else {}}


def differences(mine: Any, theirs: Any) -> list[str]:
    return compare.compare(compare.describe(mine), compare.describe(theirs), "at the donor")


def test_other_shapes_are_named() -> None:
    mine, theirs = torch.nn.Linear(64, 128), torch.nn.Linear(64, 256)
    assert differences(state(mine), state(theirs)) == [
        "model.weight: 128x64 here, 256x64 at the donor",
        "model.bias: 128 here, 256 at the donor",
    ]


def test_other_dtypes_and_missing_layers_are_named() -> None:
    mine = {"m": {"a": torch.ones(()), "b": torch.ones(2)}}
    theirs = {"m": {"a": torch.ones((), dtype=torch.int64), "c": torch.ones(2, 2)}}
    assert differences(mine, theirs) == [
        "m.a: float32 here, int64 at the donor",
        "m.b: 2 float32 here, missing at the donor",
        "m.c: missing here, 2x2 float32 at the donor",
    ]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD], ids=["adam", "sgd"])
def test_a_fresh_optimizer_differs_in_nothing(make: Any) -> None:
    donor, mine = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    trained, fresh = make(donor.parameters()), make(mine.parameters())
    donor(torch.ones(1, 2)).sum().backward()
    trained.step()
    assert differences(state(mine, fresh), state(donor, trained)) == []
    assert differences(state(donor, trained), state(mine, fresh)) == []


@pytest.mark.parametrize("key", [0, "layers.0.weight"])
def test_an_optimizer_may_make_its_state_bit_by_bit(key: int | str) -> None:
    fresh = {"optim": {"state": {key: {"master": torch.ones(2)}}}}
    trained = {"optim": {"state": {key: {"master": torch.ones(2), "moment": torch.ones(2)}}}}
    assert differences(fresh, trained) == differences(trained, fresh) == []
    other = {"optim": {"state": {key: {"master": torch.ones(3), "moment": torch.ones(2)}}}}
    assert len(differences(fresh, other)) == 1


def test_many_differences_are_shortened_and_none_is_empty() -> None:
    mine = {f"k{i}": torch.ones(i + 1) for i in range(12)}
    theirs = {f"k{i}": torch.ones(i + 2) for i in range(12)}
    text = compare.differences(mine, theirs, "at replica 0")
    assert text.startswith("k0: 1 here, 2 at replica 0; k1: ")
    assert text.endswith("; and 4 more")
    assert compare.differences(mine, mine, "at replica 0") == ""
