"""What modules keep beside the parameters and buffers of their state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._composable.contract import contract

from ftrun.inject.zero_edit.values.attributes import PLAIN, TENSORS, Attributes


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.5)
        self.linear = nn.Linear(2, 2)
        self.count, self.name, self.rank_count = 0, "layer", 0
        self.seen: list[int] = []
        self.mean, self.constant = torch.zeros(2), torch.ones(2)
        self.kept = [torch.zeros(2)]
        self.tied = self.linear.weight.detach()
        self.register_buffer("last", torch.zeros(2), persistent=False)
        self.register_buffer("known", torch.zeros(2))
        self.function = print


def change(layer: Any) -> None:
    layer.count += 3
    layer.rank_count += 1
    layer.seen.append(5)
    layer.inner.p = 0.25
    layer.mean = layer.mean + 1
    layer.kept[0].add_(2)
    layer.last.fill_(4)
    layer.known.fill_(4)
    layer.tied.add_(1)
    layer.linear.weight.requires_grad_(False)


def test_what_has_changed_since_the_first_step_heals() -> None:
    one, other = Layer(), Layer()
    ones, others = Attributes(lambda: {"0": one}), Attributes(lambda: {"0": other})
    for each in (ones, others):
        each.begin()
    own = {one.linear.weight.untyped_storage().data_ptr()}
    assert ones.state(own) == {PLAIN: {}, TENSORS: {}}
    change(one)
    state = ones.state(own)
    assert set(state[PLAIN]["0"]) == {
        " count",
        " seen",
        "inner p",
        "linear requires_grad of weight",
    }
    assert set(state[TENSORS]["0"]) == {" mean", " kept", " last"}
    seen, kept = other.seen, other.kept[0]
    others.load(state, own)
    assert (other.count, other.rank_count, other.inner.p) == (3, 0, 0.25)
    assert other.seen is seen and seen == [5]
    assert other.mean.tolist() == [1, 1] and vars(other)["_buffers"]["last"].tolist() == [4, 4]
    assert other.kept[0] is kept and kept.tolist() == [2, 2]
    assert other.state_dict()["known"].tolist() == [0, 0], "that is in the module's state"
    assert not other.linear.weight.requires_grad and other.linear.bias.requires_grad
    assert others.state(own).keys() == state.keys()


def test_what_another_one_has_not_made_stays() -> None:
    one = Attributes(lambda: {"0": Layer(), "loss": Layer()})
    one.load({PLAIN: {"0": {"nowhere count": 3}, "other": {" count": 3}}}, set())


def test_what_torch_registers_with_a_module_is_no_value_of_it() -> None:
    """Its name has a random part, which another process never has."""
    layer = Layer()
    attributes = Attributes(lambda: {"0": layer})
    attributes.begin()
    contract()(lambda module: module)(layer)
    registered = [name for name in vars(layer) if name.startswith("__composable_api")]
    assert len(registered) == 2
    for name in registered:
        setattr(layer, name, {"step": 1})
    assert attributes.state(set()) == {PLAIN: {}, TENSORS: {}}
