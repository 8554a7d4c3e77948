"""Optimizers, schedulers and scalers whose steps do not count."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, SequentialLR, StepLR

from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.states import State
from ftrun.inject.zero_edit.stepping import Stepping


class Job:
    """A script: whether its steps are committed, and whether nothing may step."""

    commits, stands_still, now = True, False, State.STEPPING


def stepping_of(job: Job) -> Stepping:
    script: Any = SimpleNamespace(
        models=SimpleNamespace(has_parameter_of=lambda optimizer: True),
        loop=SimpleNamespace(commit=lambda: job.commits),
        course=SimpleNamespace(now=job.now),
        ending=job,
        passing=SimpleNamespace(is_on=False),
        world=SimpleNamespace(optimizer=""),
        exactly_once=SimpleNamespace(is_on=False),
    )
    return Stepping(script)


@pytest.fixture
def job() -> Iterator[Job]:
    made, patches = Job(), Patches()
    stepping = stepping_of(made)
    stepping.install(patches)
    yield made
    patches.undo()


def step(scaler: torch.amp.GradScaler, optimizer: SGD, model: torch.nn.Module) -> None:
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def test_a_scaler_goes_on_after_steps_that_did_not_count(job: Job) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    job.stands_still, job.commits = True, False
    before = model.weight.detach().clone()
    for _ in range(2):
        step(scaler, optimizer, model)
    assert torch.equal(before, model.weight)
    job.stands_still, job.commits = False, True
    step(scaler, optimizer, model)
    assert not torch.equal(before, model.weight)


def test_an_optimizer_that_cannot_be_carried_is_torch_s_own_where_that_is_no_error() -> None:
    told: list[str] = []
    patches = Patches()
    job = Job()
    job.commits = False
    stepping = stepping_of(job)
    stepping.on_unfit = told.append
    stepping.install(patches)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.LBFGS([weight], lr=0.5, max_iter=5)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    patches.undo()
    assert calls > 1 and abs(weight.item()) < 0.5
    assert len(told) == 1 and "LBFGS" in told[0]


def test_steps_without_a_pass_of_the_model_are_unfit_from_the_second_on() -> None:
    """Seen: a script (minimind's PPO) trains the module in its DDP, and never calls that."""
    told: list[str] = []
    patches, job = Patches(), Job()
    job.now = State.SET_UP
    stepping = stepping_of(job)
    stepping.on_unfit = told.append
    stepping.install(patches)
    one, other = (SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    one.step(), other.step()
    assert told == []
    one.step()
    patches.undo()
    assert len(told) == 1 and "SGD steps parameters of a DistributedDataParallel" in told[0]


def test_a_scheduler_takes_its_first_step_while_it_is_made(job: Job) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    first = StepLR(optimizer, 1, 0.5)
    job.stands_still = True
    second = StepLR(optimizer, 1, 0.5)
    assert second.get_last_lr() == [0.1]
    both = SequentialLR(
        optimizer, [LambdaLR(optimizer, lambda n: 1.0), StepLR(optimizer, 1, 0.5)], milestones=[3]
    )
    rates = [x.get_last_lr() for x in (first, second, both)]
    for scheduler in (first, second, both):
        scheduler.step()
    assert [x.get_last_lr() for x in (first, second, both)] == rates
