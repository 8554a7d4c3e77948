"""The state of the script's objects, matched in the order in which they were made."""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from ftrun.core.ids import WorkerKey
from ftrun.inject.zero_edit.carried import Carried, in_order
from ftrun.inject.zero_edit.refusals import Refused
from ftrun.inject.zero_edit.stepping import Created


def created_by(is_used: Callable[[Any], bool] = lambda made: True) -> Created:
    script: Any = SimpleNamespace(charge=SimpleNamespace(made_late=str))
    return Created(script, is_used)


class Made:
    """What a script has made: a model, optimizers, a scheduler."""

    def __init__(self, optimizers: list[Any], models: int = 1) -> None:
        self.created, self.optimizers = created_by(), optimizers
        for optimizer in optimizers:
            self.created.add(optimizer)
        self.sharded: list[Any] = []
        self.names: dict[int, str] = {}
        none = created_by()
        self.stepping = stepping = SimpleNamespace(
            optimizers=self.created,
            schedulers=created_by(),
            scalers=none,
            has_late=True,
        )
        self.models = [nn.Linear(2, 2) for _ in range(models)]
        models_: Any = SimpleNamespace(
            wrapped=self.models,
            syncs=[True] * models,
            set_syncs=lambda syncs: setattr(models_, "syncs", [*syncs]),
            is_sharded=lambda model: model in self.sharded,
        )
        self.world = models_
        key = WorkerKey("0", "aa", 0)
        script: Any = SimpleNamespace(
            here=SimpleNamespace(key=key),
            is_in_place=False,
            is_starting=False,
            models=models_,
            stepping=stepping,
            frameworks=SimpleNamespace(parts=list),
            marking=SimpleNamespace(apart=""),
            tensors=SimpleNamespace(names=lambda: self.names),
            may_load=lambda: True,
        )
        self.script, self.carried = script, Carried(script)


def sgd(*groups: int) -> torch.optim.SGD:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))] * 1} for _ in groups], lr=1.0)


def test_equal_objects_take_the_state() -> None:
    first, second = sgd(1), sgd(1)
    first.param_groups[0]["lr"] = 0.25
    here, there = Made([second]), Made([first])
    there.world.syncs = [False]  # it has evaluated
    here.carried.load(there.carried.state())
    assert second.param_groups[0]["lr"] == 0.25
    assert here.world.syncs == [False]


def test_before_the_first_step_each_rank_has_its_own() -> None:
    here, there = Made([sgd(1)]), Made([sgd(1), sgd(1)])
    own = here.models[0].weight.clone()
    here.carried.load(there.carried.first_state())
    assert torch.equal(here.models[0].weight, own)
    assert here.carried.life == there.carried.life


def test_before_the_first_step_what_fsdp_shards_gets_equal_values() -> None:
    here, there = Made([sgd(1)]), Made([sgd(1)])
    there.sharded.extend(there.models)
    here.carried.load(there.carried.first_state())
    assert torch.equal(here.models[0].weight, there.models[0].weight)


def test_what_was_made_in_the_middle_of_the_training_is_refused() -> None:
    there, here = Made([sgd(1)], models=2), Made([sgd(1)])
    with pytest.raises(Refused, match="2 models in the replicas that train, and 1 in"):
        here.carried.load(there.carried.state())


def test_groups_that_were_added_are_refused() -> None:
    there, here = Made([sgd(1, 1)]), Made([sgd(1)])
    with pytest.raises(Refused, match=r"groups of \[1, 1\] parameters.*of \[1\]"):
        here.carried.load(there.carried.state())


def test_of_later_ones_only_those_of_the_training_heal() -> None:
    first, probe, trains = sgd(1), sgd(1), sgd(1)
    created = created_by(lambda x: x is trains)
    created.add(first)
    created.keep()
    created.add(probe)
    created.add(trains)
    assert created.late() == [probe, trains]
    assert created.that_heal() == [first, trains]


class Phase(enum.Enum):
    WARM, HOT = 1, 2


@dataclass
class Rates:
    low: float
    high: float


def is_flat(parameter: Any) -> bool:
    return bool(parameter.ndim == 1)


def is_deep(parameter: Any) -> bool:
    return bool(parameter.ndim > 1)


CARRIED = [
    numpy.float64(0.5), numpy.float32(0.5), numpy.bool_(True), numpy.linspace(0, 1, 3), Phase.HOT,
    1j, Rates(0.1, 0.2), torch.bfloat16, Path("/a"),
    {"a": [(1, numpy.int64(2))]}, torch.tensor(2.0),
]  # fmt: skip


@pytest.mark.parametrize("value", CARRIED, ids=lambda x: type(x).__name__)
def test_a_value_of_a_group_that_is_not_plain_heals(value: Any) -> None:
    first, second = sgd(1), sgd(1)
    first.param_groups[0].update(lr=numpy.float64(0.25), more=value)
    second.param_groups[0]["more"] = None
    here, there = Made([second]), Made([first])
    here.carried.load(there.carried.state())
    group = second.param_groups[0]
    assert group["lr"] == 0.25 and type(group["lr"]) is numpy.float64
    assert type(group["more"]) is type(value) and str(group["more"]) == str(value)
    assert here.carried.lacking == []


@pytest.mark.parametrize(
    "value",
    [is_flat, len, Rates, lambda p: p.ndim],
    ids=["function", "built-in", "class", "lambda"],
)
def test_code_that_is_equal_everywhere_stays_and_needs_no_word(value: Any) -> None:
    first, second = sgd(1), sgd(1)
    first.param_groups[0].update(lr=0.25, more=value, most={"a": [value]})
    second.param_groups[0].update(more=value, most={"a": [value]})
    here, there = Made([second]), Made([first])
    here.carried.load(there.carried.state())
    group = second.param_groups[0]
    assert (group["lr"], group["more"], group["most"]) == (0.25, value, {"a": [value]})
    assert here.carried.lacking == []


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (is_flat, is_deep, "a function"),
        (functools.partial(is_flat, 1), functools.partial(is_flat, 2), "a partial"),
        (threading.local(), is_flat, "a _local"),
        (is_flat, None, "a function"),
    ],
    ids=["another function", "a partial", "an object", "nothing"],
)
def test_what_cannot_be_carried_and_may_differ_is_named(there: Any, here: Any, words: str) -> None:
    first, second = sgd(1), sgd(1)
    first.param_groups[0].update(lr=0.25, more=there, steps=3)
    second.param_groups[0].update({"more": here} if here else {})
    made = Made([second])
    made.carried.load(Made([first]).carried.state())
    group = second.param_groups[0]
    assert (group["lr"], group["steps"], type(group.get("more"))) == (0.25, 3, type(here))
    assert made.carried.lacking == [f"more of SGD ({words})"]


def test_a_scheduler_s_objects_stay_its_own_and_the_rest_heals() -> None:
    def made() -> torch.optim.lr_scheduler.LRScheduler:
        scheduler = torch.optim.lr_scheduler.StepLR(sgd(1), 1)
        scheduler.curve = is_flat  # type: ignore[attr-defined]
        return scheduler

    first, second = made(), made()
    first.last_epoch = 7
    here, there = Made([]), Made([])
    for one, scheduler in ((here, second), (there, first)):
        one.stepping.schedulers.add(scheduler)
    here.carried.load(there.carried.state())
    assert second.last_epoch == 7 and second.curve is is_flat  # type: ignore[attr-defined]


def test_the_dicts_of_the_groups_stay_those_that_the_script_holds() -> None:
    there, optimizer = Made([sgd(1, 1)]), sgd(1, 1)
    listed, groups = optimizer.param_groups, [*optimizer.param_groups]
    there.optimizers[0].param_groups[1]["lr"] = 0.25
    Made([optimizer]).carried.load(there.carried.state())
    assert optimizer.param_groups is listed
    assert all(x is y for x, y in zip(listed, groups, strict=True))
    assert groups[1]["lr"] == 0.25


def test_a_backward_pass_may_still_need_what_is_loaded_again() -> None:
    made = Made([sgd(1)])
    made.world.beside = dict
    model = made.models[0]
    loss = model(torch.ones(2, requires_grad=True)).sum()
    with made.carried.versions_kept():
        model.load_state_dict({k: x.clone() for k, x in model.state_dict().items()})
    loss.backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss = model(torch.ones(2, requires_grad=True)).sum()
        model.load_state_dict({k: x.clone() for k, x in model.state_dict().items()})
        loss.backward()


def test_a_group_whose_parameters_have_another_order_takes_the_state_of_its_own() -> None:
    """As those of a set: the weight and the bias of two layers, and one of no model."""

    def made(*order: int) -> tuple[Made, list[nn.Parameter]]:
        one = Made([], models=2)
        known = [x for model in one.models for x in model.parameters()]
        groups = [
            {"params": [known[at] for at in order]},
            {"params": [nn.Parameter(torch.ones(2))]},
        ]
        one.optimizers.append(torch.optim.SGD(groups, lr=1.0, momentum=0.9))
        one.created.add(one.optimizers[0])
        return one, known

    there, theirs = made(0, 1, 2, 3)
    for at, parameter in enumerate(theirs):
        parameter.grad = torch.full_like(parameter, float(at + 1))
    there.optimizers[0].step()
    here, own = made(2, 1, 3, 0)
    here.carried.apply(there.carried.state())
    momentum = here.optimizers[0].state
    assert [momentum[x]["momentum_buffer"].unique().item() for x in own] == [1, 2, 3, 4]
    assert here.optimizers[0].param_groups[0]["params"] == own


class Basis:
    """As an optimizer keeps one for each parameter."""

    def __init__(self, rows: torch.Tensor | None, more: Any = None) -> None:
        self.rows, self.more, self.step = rows, more, 3


def with_state(value: Any, device: str = "cpu") -> torch.optim.SGD:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1, device=device))], lr=1.0)
    optimizer.state[optimizer.param_groups[0]["params"][0]] = {"basis": value} if value else {}
    return optimizer


def state_of(optimizer: torch.optim.SGD) -> Any:
    return optimizer.state[optimizer.param_groups[0]["params"][0]].get("basis")


def test_an_object_in_an_optimizer_s_state_heals_and_stays_the_same_object() -> None:
    there = Made([with_state(Basis(torch.ones(2), [torch.ones(1)]))])
    bare, own = with_state(None), Basis(torch.zeros(2))
    older = with_state(own)
    for optimizer in (bare, older):
        made = Made([optimizer])
        made.carried.load(there.carried.state())
        found = state_of(optimizer)
        assert type(found) is Basis and [*vars(found)] == ["rows", "more", "step"]
        assert repr(found.rows) == "tensor([1., 1.])" and found.step == 3
        assert made.carried.lacking == []
    assert state_of(older) is own


def test_what_an_object_holds_is_put_where_its_parameter_is() -> None:
    there = Made([with_state(Basis(torch.ones(2), [torch.ones(1)]))])
    optimizer = with_state(None, device="meta")
    Made([optimizer]).carried.load(there.carried.state())
    found = state_of(optimizer)
    assert (found.rows.device.type, found.more[0].device.type) == ("meta", "meta")


@pytest.mark.parametrize("value", [threading.local(), Basis(None, is_flat)], ids=["C", "code"])
def test_an_optimizer_s_state_that_cannot_be_carried_whole_is_refused(value: Any) -> None:
    """Seen: a replica trained on without it, unlike its peers, and the job ended with 0."""
    there, made = Made([with_state(value)]), Made([with_state(None)])
    words = rf"cannot restore basis of SGD \(a {type(value).__name__}\), and would step unlike"
    with pytest.raises(Refused, match=words):
        made.carried.load(there.carried.state())


def test_parameters_that_nobody_else_has_are_refused() -> None:
    there, here = Made([sgd(1)]), Made([sgd(1)])
    there.script.marking.apart = "train.py:7"
    with pytest.raises(Refused, match=r"train\.py:7: the optimizers step by gradients that"):
        here.carried.load(there.carried.state())


# ---------------------------------------------------------------- the order of parameters

FORM, OTHER = "float32 [2]", "float32 [3]"
ORDERS = {
    "as they are": ([0, 1, 2], [0, 1, 2], [0, 1, 2], 0),
    "of models": ([2, 0, 1], [0, 1, 2], [1, 2, 0], 0),
    "one is of none": ([1, ["", FORM], 0], [["", FORM], 0, 1], [1, 2, 0], 0),
    "of other shapes": ([["", FORM], ["", OTHER]], [["", OTHER], ["", FORM]], [1, 0], 0),
    "by name": ([["a", FORM], 0, ["b", FORM]], [["b", FORM], ["a", FORM], 0], [2, 0, 1], 0),
    "all but one by name": ([["", FORM], ["b", FORM]], [["b", FORM], ["", FORM]], [1, 0], 0),
    "alike": ([0, ["", FORM], ["", FORM]], [0, ["", FORM], ["", FORM]], [0, 1, 2], 2),
    "named on one side": ([["a", FORM], ["b", FORM]], [["", FORM], ["", FORM]], [0, 1], 2),
    "alike, and others have moved": (
        [["", FORM], 0, ["", FORM]],
        [0, ["", FORM], ["", FORM]],
        None,
        2,
    ),
    "others": ([0, ["", FORM]], [0, ["", OTHER]], None, 0),
    "other places": ([0, 1], [0, 2], None, 0),
}


@pytest.mark.parametrize("row", ORDERS)
def test_the_order_of_a_groups_parameters(row: str) -> None:
    have, want, order, doubt = ORDERS[row]
    assert in_order(have, want) == (order, doubt)  # type: ignore[arg-type]


def of_a_set(made: Made, *places: int) -> torch.optim.SGD:
    """Momentum of a model's two parameters and two others, in some order."""
    parameters = [*made.models[0].parameters(), *(nn.Parameter(torch.zeros(3)) for _ in range(2))]
    made.names = {id(x): f"name {at}" for at, x in enumerate(parameters[2:])}
    optimizer = torch.optim.SGD([parameters[at] for at in places], lr=1.0, momentum=0.5)
    for at in places:
        optimizer.state[parameters[at]]["momentum_buffer"] = torch.full_like(parameters[at], at)
    made.created.add(optimizer)
    made.optimizers.append(optimizer)
    return optimizer


def test_parameters_given_as_a_set_get_their_own_state() -> None:
    """Seen: with a parameter of no model among them, another one's."""
    there, here = Made([]), Made([])
    of_a_set(there, 3, 1, 0, 2)
    optimizer = of_a_set(here, 0, 2, 1, 3)
    for state in optimizer.state.values():
        state["momentum_buffer"].fill_(9)
    here.carried.load(there.carried.state())
    found = [optimizer.state[x]["momentum_buffer"] for x in optimizer.param_groups[0]["params"]]
    assert [float(x.flatten()[0]) for x in found] == [3, 1, 0, 2]
    assert here.carried.lacking == []


def test_parameters_that_nothing_tells_apart() -> None:
    there, moved, alike = Made([]), Made([]), Made([])
    for made, places in ((there, (0, 1, 2, 3)), (moved, (1, 0, 2, 3)), (alike, (0, 1, 2, 3))):
        of_a_set(made, *places)
        made.names = {}
    alike.carried.load(there.carried.state())
    words = "the order of the 2 parameters of SGD that no model has, which cannot be verified"
    assert alike.carried.lacking == [words]
    with pytest.raises(Refused, match="the 2 parameters of SGD that no model has come in another"):
        moved.carried.load(there.carried.state())


def test_other_parameters_are_refused() -> None:
    there, here = Made([]), Made([])
    of_a_set(there, 0, 2)
    of_a_set(here, 0, 1)
    with pytest.raises(Refused, match="its SGD has other parameters in the replicas that train"):
        here.carried.load(there.carried.state())


def test_a_buffer_that_the_peers_model_has_got_in_a_pass() -> None:
    there, here = Made([]), Made([])
    there.models[0].register_buffer("seen", torch.ones(3))
    here.carried.load(there.carried.state())
    assert here.models[0].state_dict()["seen"].tolist() == [1, 1, 1]


class Flat(torch.optim.SGD):
    """As torchtitan's: its state in a form of its own, and the steps of those that it has."""

    def state_dict(self) -> Any:
        return {"flat.lr": 1.0}

    def load_state_dict(self, state_dict: Any) -> None:
        raise AssertionError("it is not asked")


class Closed(Flat):
    def state_dict(self) -> Any:
        raise NotImplementedError("use distributed_state_dict()")


@pytest.mark.parametrize("kind", [Flat, Closed])
def test_an_optimizer_with_a_form_of_its_own_is_carried_in_torchs(kind: type[Flat]) -> None:
    made = []
    for lr in (0.5, 0.1):
        weight = nn.Parameter(torch.ones(2))
        optimizer = kind([weight], lr=lr, momentum=0.9)
        weight.grad = torch.full((2,), lr)
        optimizer.step()
        made.append(Made([optimizer]))
    donor, newcomer = made
    group = newcomer.optimizers[0].param_groups[0]
    newcomer.carried.apply(donor.carried.state())
    assert newcomer.optimizers[0].param_groups[0] is group and group["lr"] == 0.5
    [state] = newcomer.optimizers[0].state.values()
    assert state["momentum_buffer"].tolist() == [0.5, 0.5]
