"""The optimizer that begins a step with a quorum and ends it with a commit."""

from __future__ import annotations

import pytest
import torch

from ftrun.training.optim import GradScaler, Optimizer, OptimizerWrapper
from tests.unit.training.replicas import Ring, StandIn


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


@pytest.mark.parametrize("unscales", [False, True])
def test_it_unscales_to_the_bit_as_a_scaler_does(unscales: bool) -> None:
    def train(wrap: bool) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 7))
        inner = torch.optim.Adam([weight], lr=0.1)
        (manager,) = Ring(1).managers
        optimizer = OptimizerWrapper(manager, inner) if wrap else inner  # type: ignore[arg-type]
        scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(weight.pow(3).sum()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return weight.detach()

    assert torch.equal(train(True), train(False))


def test_a_step_that_a_scaler_skips_is_committed_and_changes_nothing() -> None:
    manager, weight, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum() * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert manager.decisions == 1 and optimizer.committed
    assert weight.tolist() == [1, 1] and optimizer.optim.state == {}
    assert scaler.get_scale() == 2.0


def test_half_precision_gradients_are_refused_as_torch_does() -> None:
    (manager,) = Ring(1).managers
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = OptimizerWrapper(manager, torch.optim.SGD([weight], lr=1.0))  # type: ignore[arg-type]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="FP16"):
        scaler.step(optimizer)


def test_our_scaler_counts_committed_steps_only_and_is_healed() -> None:
    manager, weight, optimizer = make()
    scaler = GradScaler(manager, "cpu", init_scale=4.0)  # type: ignore[arg-type]
    assert manager.states["grad_scaler"]()["scale"] == 4.0
    for manager.commits, factor, scale in (
        (False, torch.inf, 4.0),
        (True, torch.inf, 2.0),
        (False, 1.0, 2.0),
    ):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
        assert weight.tolist() == [1, 1]
    assert scaler.state_dict()["_growth_tracker"] == 0


def test_closures_are_refused() -> None:
    _, _, optimizer = make()
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(lambda: 0.0)
