"""A newcomer in the middle of a step has what its donor had before its pass, or after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ftrun.checkpoint.format import leaves_of
from ftrun.checkpoint.serve import _still
from ftrun.training.passes import LEARNS, LEARNS_EVERY, Passes


class Momentum(nn.Module):
    """Buffers, a trained part, and one that the pass itself moves."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target, self.frozen = (nn.Linear(2, 2) for _ in range(3))
        self.norm = nn.BatchNorm1d(2)
        self.target.requires_grad_(False)
        self.frozen.requires_grad_(False)
        self.moves = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.moves:
            for parameter in self.target.parameters():
                parameter.add_(1.0)
        return self.norm(self.online(x))


class Worker:
    def __init__(self, *, keeps: bool = False) -> None:
        self.module = Momentum()
        self.passes = Passes(keeps=keeps)
        self.passes.watch(self.module)

    def leaves(self) -> Any:
        return leaves_of({"module": self.module.state_dict()})

    def step(self) -> None:
        self.passes.begins()
        self.module(torch.randn(4, 2))
        self.passes.over(self.leaves)

    def served(self) -> dict[str, Any]:
        """By path what is copied, as it is served."""
        stills = self.passes.stills()
        tensors = [x for x in self.leaves() if x.data.data_ptr() in stills]
        return {x.spec.path: _still(x.data, stills, False) for x in tensors}


MOVED = {
    ".module.norm.running_mean",
    ".module.norm.running_var",
    ".module.norm.num_batches_tracked",
    ".module.target.weight",
    ".module.target.bias",
}


def test_what_passes_change_is_found_out_and_nothing_else() -> None:
    donor = Worker()
    donor.step()
    assert donor.served().keys() == MOVED


def test_a_parameter_that_moves_later_is_found_now_and_then() -> None:
    donor = Worker()
    donor.module.moves = False
    for _ in range(LEARNS):
        donor.step()
    assert ".module.target.weight" not in donor.served()
    donor.module.moves = True
    for _ in range(LEARNS_EVERY + 1 - LEARNS):
        donor.step()
    assert donor.served().keys() == MOVED


def test_before_its_pass_and_between_steps_a_donor_gives_what_it_holds() -> None:
    donor = Worker()
    donor.step()
    assert not donor.passes.has_passed()
    donor.passes.begins()
    assert not donor.passes.has_passed()
    donor.module(torch.randn(4, 2))
    assert donor.passes.has_passed()


def test_copies_from_before_the_pass_are_served_where_all_replicas_are_waited_for() -> None:
    donor = Worker(keeps=True)
    donor.step()
    for _ in range(2):  # the second time into the same memory
        before = donor.served()
        donor.passes.begins()
        donor.module(torch.randn(4, 2))
        served = donor.served()
        assert not donor.passes.has_passed()
        assert served.keys() == MOVED
        assert all(torch.equal(served[path], x) for path, x in before.items())
        donor.passes.over(donor.leaves)
        assert not torch.equal(*(x[".module.target.bias"] for x in (served, donor.served())))


@pytest.mark.parametrize("is_first", [True, False])
def test_who_got_what_a_pass_had_changed_puts_it_back_after_its_own(is_first: bool) -> None:
    donor, newcomer = Worker(), Worker()
    for worker in (donor, *[newcomer] * (not is_first)):
        worker.step()
    donor.passes.begins()
    donor.module(torch.randn(4, 2))
    assert donor.passes.has_passed()
    newcomer.passes.begins()
    newcomer.module.load_state_dict(donor.module.state_dict())
    given = leaves_of({"module": {k: x.clone() for k, x in donor.module.state_dict().items()}})
    newcomer.passes.heal_after(given)
    newcomer.module(torch.randn(4, 2))
    assert not torch.equal(newcomer.module.target.weight, donor.module.target.weight)
    newcomer.passes.over(newcomer.leaves)
    donor.passes.over(donor.leaves)
    states = [worker.module.state_dict() for worker in (donor, newcomer)]
    assert all(torch.equal(x, states[1][path]) for path, x in states[0].items())
    newcomer.step()
    assert not torch.equal(newcomer.module.target.weight, donor.module.target.weight)


def test_what_is_not_the_donors_stays() -> None:
    """As running averages that each rank has for itself."""
    donor, newcomer = Worker(), Worker()
    own = next(newcomer.module.buffers())
    newcomer.passes.own = lambda: frozenset({own.data_ptr()})
    donor.passes.begins()
    donor.module(torch.randn(4, 2))
    newcomer.passes.begins()
    given = leaves_of({"module": {k: x.clone() for k, x in donor.module.state_dict().items()}})
    newcomer.passes.heal_after(given)
    newcomer.module(torch.randn(4, 2))
    kept = own.clone()
    newcomer.passes.over(newcomer.leaves)
    assert torch.equal(own, kept) and not torch.equal(own, next(donor.module.buffers()))


class Late(nn.Module):
    """It registers a buffer in its pass, one that the state has not, and another one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.inner._buffers:
            self.inner.register_buffer("seen", torch.zeros(2))
            self.inner.register_buffer("count", torch.zeros(2), persistent=False)
        self.inner.get_buffer("seen").add_(x.sum())
        self.inner.get_buffer("count").add_(1)
        return x


@pytest.mark.parametrize("keeps", [True, False])
def test_buffers_that_a_pass_registers_are_watched_too(keeps: bool) -> None:
    """Seen: a newcomer got them as they were after its donor's pass, and changed them once more."""
    module, passes = Late(), Passes(keeps=keeps)
    passes.watch(module)
    passes.begins()
    module(torch.ones(2))
    passes.over(list)
    passes.begins()
    buffers = dict(module.named_buffers())
    before = {name: x.clone() for name, x in buffers.items()}
    module(torch.ones(2))
    assert passes.has_passed() is not keeps
    stills = passes.stills()
    served = {name: stills[x.data_ptr()] for name, x in buffers.items()}
    expected = before if keeps else buffers
    assert len(served) == 2
    assert all(torch.equal(served[name], x) for name, x in expected.items())


def test_of_a_buffer_that_a_pass_replaces_the_one_before_the_pass_is_served() -> None:
    module, passes = nn.BatchNorm1d(2), Passes(keeps=True)
    passes.watch(module)
    passes.begins()
    module.running_mean = torch.ones(2)
    replaced = module.running_mean
    assert passes.stills()[replaced.data_ptr()].tolist() == [0.0, 0.0]
    passes.over(list)
    assert replaced.data_ptr() not in passes.stills()


def test_a_buffer_that_a_pass_replaces_has_been_changed_by_it() -> None:
    module, passes = nn.BatchNorm1d(2), Passes()
    passes.watch(module)
    passes.begins()
    module.register_buffer("running_mean", torch.ones(2))
    assert passes.has_passed()
