"""What modules keep beside the parameters and buffers of their state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._composable.contract import contract

from ftrun.inject.zero_edit.values.attributes import (
    PLAIN,
    TENSORS,
    Attributes,
    buffers_of,
    give_buffers,
)
from ftrun.inject.zero_edit.values.tensors import Tensors


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
    assert set(state[TENSORS]["0"]) == {" mean", " kept", " buffer last"}
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


class Cached(nn.Module):
    """As one with rotary positions: some buffers are there after the first pass only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.late: torch.Tensor | None = None
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("grown", torch.zeros(0))
        self.register_buffer("dropped", torch.zeros(1))
        self.register_buffer("count", torch.tensor(0), persistent=False)

    def run(self) -> None:
        del self.late
        self.register_buffer("seen", torch.full((2,), 3.0))
        self.register_buffer("cache", torch.ones(3), persistent=False)
        self.register_buffer("late", torch.full((4,), 5.0), persistent=False)
        self.register_buffer("grown", torch.ones(5))
        self.register_buffer("dropped", None)
        self.get_buffer("count").add_(7)


def test_buffers_that_a_forward_pass_registers() -> None:
    """Seen: a replacement's broadcast of buffers had another size than its peers'."""
    cached = Cached()
    one, other = nn.Sequential(cached), nn.Sequential(Cached())
    tensors = [Tensors(lambda: [one]), Tensors(lambda: [other])]
    for each in tensors:
        each.begin()
    cached.run()
    give_buffers(other, buffers_of(one))
    assert [*vars(other[0])["_buffers"]] == [*vars(one[0])["_buffers"]]
    other.load_state_dict(one.state_dict())
    tensors[1].load(tensors[0].state())
    found = dict(other.named_buffers())
    assert [*found] == [*dict(one.named_buffers())]
    assert all(torch.equal(x, found[name]) for name, x in one.named_buffers())
    assert other.state_dict().keys() == one.state_dict().keys()
    other[0].register_buffer("late", torch.zeros(1), persistent=False)


def test_buffers_that_are_alike_stay_the_tensors_that_they_are() -> None:
    one, other = Cached(), Cached()
    before = {name: id(x) for name, x in other.named_buffers()}
    give_buffers(other, buffers_of(one))
    assert {name: id(x) for name, x in other.named_buffers()} == before


def test_a_buffer_that_is_not_persistent_heals_although_it_is_a_models() -> None:
    one, other = Cached(), Cached()
    tensors = [Tensors(lambda: [one]), Tensors(lambda: [other])]
    for each in tensors:
        each.begin()
    vars(one)["_buffers"]["count"].add_(2)
    tensors[1].load(tensors[0].state())
    assert vars(other)["_buffers"]["count"].item() == 2
    assert all(
        x.are_trained(list(module.buffers()))
        for x, module in zip(tensors, (one, other), strict=True)
    )
