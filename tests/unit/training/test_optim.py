"""The optimizer that begins a step with a quorum and ends it with a commit."""

from __future__ import annotations

import pytest
import torch
from replicas import Ring, StandIn

from ftrun.training.optim import Optimizer, OptimizerWrapper


def make() -> tuple[StandIn, torch.nn.Parameter, OptimizerWrapper]:
    (manager,) = Ring(1).managers
    weight = torch.nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    return manager, weight, OptimizerWrapper(manager, inner)  # type: ignore[arg-type]


def test_it_steps_if_and_only_if_the_commit_stands() -> None:  # C5
    manager, weight, optimizer = make()
    weight.grad = torch.ones(2)
    manager.commits = False
    optimizer.step()
    assert weight.tolist() == [1, 1]
    manager.commits = True
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5]


def test_zero_grad_starts_the_quorum() -> None:
    manager, weight, optimizer = make()
    weight.grad = torch.ones(2)
    optimizer.zero_grad()
    assert manager.quorums == 1 and weight.grad is None
    weight.grad = torch.ones(2)
    optimizer.zero_grad(set_to_none=False)
    assert weight.grad is not None and weight.grad.tolist() == [0, 0]


def test_everything_else_is_the_wrapped_optimizer_s() -> None:
    _, weight, optimizer = make()
    assert isinstance(optimizer, torch.optim.Optimizer) and Optimizer is OptimizerWrapper
    assert optimizer.param_groups is optimizer.optim.param_groups
    assert optimizer.defaults["momentum"] == 0.9 and "SGD" in repr(optimizer)
    weight.grad = torch.ones(2)
    steps: list[str] = []
    optimizer.register_step_post_hook(lambda *_: steps.append("stepped"))
    optimizer.step()
    assert steps == ["stepped"]
    assert weight in optimizer.state
    state = optimizer.state_dict()
    _, other_weight, other = make()
    other.load_state_dict(state)
    assert torch.equal(
        other.state[other_weight]["momentum_buffer"], optimizer.state[weight]["momentum_buffer"]
    )
    extra = torch.nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": [extra], "lr": 0.1})
    assert len(optimizer.param_groups) == 2


def test_learning_rate_schedulers_take_it() -> None:
    _, weight, optimizer = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    weight.grad = torch.ones(2)
    optimizer.step()
    scheduler.step()
    assert optimizer.optim.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_fused_optimizer_is_unscaled_by_the_scaler_itself() -> None:
    (manager,) = Ring(1).managers
    weight = torch.nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([weight], lr=1.0, fused=True)
    optimizer = OptimizerWrapper(manager, inner)  # type: ignore[arg-type]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == 0.0


def test_closures_are_refused() -> None:
    _, _, optimizer = make()
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(lambda: 0.0)
