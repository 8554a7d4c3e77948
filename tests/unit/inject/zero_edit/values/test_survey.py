"""All plain values that a script reaches."""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

import pytest
import torch

from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.survey import survey
from ftrun.inject.zero_edit.values.walk import Walk


class Slotted:
    __slots__ = ("n", "unset")

    def __init__(self) -> None:
        self.n = 3


class Counts:
    made = 7

    def __init__(self) -> None:
        self.slotted, self.many, self.again = Slotted(), [{"x": (1, 2.5)}], self
        self.rank = 1


def test_values_wherever_they_are() -> None:
    counts, plain, numbers = Counts(), "text", count()
    found = {path.partition(" ")[2]: x for path, x in survey([sys._getframe()]).items()}
    assert found == {
        "counts.slotted.n": 3,
        "counts.many[0][x][0]": 1,
        "counts.many[0][x][1]": 2.5,
        "Counts.made": 7,
        "plain": "text",
        "numbers": {"kind": "count", "values": ["count(0)"]},
    }
    assert (counts, plain, numbers) is not None


def test_what_has_a_state_and_no_values() -> None:
    turns, left, text = (x for x in range(9)), iter([1, 2, 3]), bytearray(b"a")
    before = survey([sys._getframe()])
    assert next(turns) == 0 and next(left) == 1
    text.append(1)
    after = survey([sys._getframe()])
    changed = {path.partition(" ")[2] for path, x in after.items() if before.get(path) != x}
    assert {"turns", "left", "text"} <= changed
    assert "before" not in before


def test_a_loss_is_compared_by_its_number() -> None:
    """A newcomer is given a tensor without gradients. Seen with stylegan2's r1_loss in a dict."""
    loss = torch.ones((), requires_grad=True) * 3
    losses = {"r1": loss}
    before = survey([sys._getframe()])
    losses["r1"] = loss.detach().clone()
    after = survey([sys._getframe()])
    name = next(path for path in after if path.endswith(" losses[r1]"))
    assert after[name] == before[name]


def test_results_of_autograd_never_heal_and_are_told_by_their_bytes() -> None:
    weight = torch.ones(2, requires_grad=True)
    kept, same, copied = [weight * 1.0], weight * 2.0, [weight.clone()]
    before = survey([sys._getframe()])
    with torch.no_grad():
        kept[0].lerp_(torch.zeros(2), 0.5)
    after = survey([sys._getframe()])
    changed = {path.partition(" ")[2] for path, x in after.items() if before.get(path) != x}
    assert "kept[0]" in changed
    name = next(path for path in after if path.endswith(" same"))
    assert before[name] == after[name] and after[name]["kind"] == "result of autograd"
    assert not any("copied" in path for path in after) and copied  # they heal
    assert same is not None


def test_tensors_are_told_by_their_bytes() -> None:
    sums, table = torch.zeros(3), {"a": torch.ones(2)}
    before = survey([sys._getframe()], Walk())
    sums.add_(1)
    after = survey([sys._getframe()], Walk())
    changed = [path.partition(" ")[2] for path, x in before.items() if after[path] != x]
    assert changed == ["sums"]
    assert [x.partition(" ")[2] for x in after if x.endswith("table")] and table


class Averaging(torch.optim.SGD):
    """An optimizer of a package, with an average that no variable leads to."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.average = torch.zeros(2)


def test_tensors_that_packages_keep() -> None:
    optimizers, walk = [Averaging([torch.nn.Parameter(torch.zeros(2))])], Walk()
    walk.optimizers = lambda: optimizers
    before = survey([], walk)
    optimizers[0].average.add_(1)
    after = survey([], walk)
    assert [x.partition(" ")[2] for x in before] == ["Averaging.average"]
    assert before.keys() == after.keys() and before != after


def test_it_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRACKED", 10)
    table: dict[int, Any] = {x: [x] * 5 for x in range(100)}
    assert len(survey([sys._getframe()])) == 10
    assert table


def test_the_directory_of_a_run_is_no_difference() -> None:
    made_in = "/tmp/check-1/out"
    found = survey([sys._getframe()], here="/tmp/check-1")
    assert made_in not in found.values() and "./out" in found.values()
