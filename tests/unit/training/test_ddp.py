"""DDP over stand-in Managers: layouts, unused parameters, accumulation, repair."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from ftrun.base.errors import UserError
from ftrun.process_groups.built import AbortSignal
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.process_groups.solo import SoloGroup
from ftrun.training.ddp import DistributedDataParallel, PureDistributedDataParallel
from tests.unit.training.replicas import Ring, StandIn

KINDS: list[dict[str, Any]] = [
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
    {"bucket_cap_mb": 0.1},
    {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": True, "find_unused_parameters": True},
]


GENERATOR = threading.Lock()  # torch has one for all threads of a process.


def make_model() -> nn.Module:
    with GENERATOR:
        torch.manual_seed(7)
        return nn.Sequential(*(nn.Linear(150, 150) for _ in range(6)))


def inputs(seed: int) -> torch.Tensor:
    return torch.randn(4, 150, generator=torch.Generator().manual_seed(seed))


def local_gradients(*seeds: int) -> list[torch.Tensor]:
    model = make_model()
    for seed in seeds:
        model(inputs(seed)).square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kwargs", KINDS)
def test_a_newcomer_s_first_step_has_the_buckets_of_all_later_ones(kwargs: dict[str, Any]) -> None:
    def train(number: int, manager: StandIn) -> list[list[tuple[int, bool]]]:
        model = DistributedDataParallel(manager, make_model(), **kwargs)  # type: ignore[arg-type]
        assert manager.operations == []  # Constructing it talks to nobody.
        layouts = []
        for step in range(3):
            model.zero_grad()
            model(inputs(10 * step + number)).square().sum().backward()
            expected = zip(local_gradients(10 * step), local_gradients(10 * step + 1), strict=True)
            assert_same(gradients(model), [(one + other) / 2 for one, other in expected])
            layouts.append(manager.operations[:])
            manager.operations.clear()
        return layouts

    for layouts in Ring(2).run(train):
        assert layouts[0] == layouts[1] == layouts[2]
        assert [last for _, last in layouts[0]] == [False] * (len(layouts[0]) - 1) + [True]


def test_the_layout_is_the_one_that_torch_comes_to_itself() -> None:
    group = ProcessGroupGloo()
    group.use(SoloGroup(AbortSignal()))
    torchs = nn.parallel.DistributedDataParallel(
        make_model(), process_group=group, init_sync=False, bucket_cap_mb=0.1
    )
    sizes: list[int] = []

    def note(state: None, bucket: Any) -> Any:
        sizes.append(bucket.buffer().numel())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    note.__annotations__.clear()
    torchs.register_comm_hook(None, note)
    for step in range(2):
        sizes.clear()
        torchs(inputs(step)).sum().backward()

    (manager,) = Ring(1).managers
    ours = DistributedDataParallel(manager, make_model(), bucket_cap_mb=0.1)  # type: ignore[arg-type]
    ours(inputs(0)).sum().backward()
    assert [size for size, _ in manager.operations] == sizes and len(sizes) > 2


@pytest.mark.parametrize("kwargs", [KINDS[0], KINDS[3]])
def test_no_sync_accumulates_and_the_next_pass_reduces_all(kwargs: dict[str, Any]) -> None:
    def train(number: int, manager: StandIn) -> None:
        model = DistributedDataParallel(manager, make_model(), **kwargs)  # type: ignore[arg-type]
        with model.no_sync():
            model(inputs(number)).square().sum().backward()
        assert manager.operations == []
        assert_same(gradients(model), local_gradients(number))
        model(inputs(number + 2)).square().sum().backward()
        expected = zip(local_gradients(0, 2), local_gradients(1, 3), strict=True)
        assert_same(gradients(model), [(one + other) / 2 for one, other in expected])

    Ring(2).run(train)


class Branches(nn.Module):
    """Three layers, of which a forward pass uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(5, 1, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](x)


@pytest.mark.parametrize("views", [False, True])
def test_what_any_contributor_uses_is_stepped_by_all(views: bool) -> None:
    def train(number: int, manager: StandIn) -> list[list[torch.Tensor | None]]:
        model = DistributedDataParallel(
            manager,  # type: ignore[arg-type]
            Branches(),
            find_unused_parameters=True,
            gradient_as_bucket_view=views,
        )
        found = []
        for branch in (number, 1 - number, 2):
            model.zero_grad()
            model(torch.ones(1, 5), branch).sum().backward()
            found.append(gradients(model))
        return found

    half, whole = torch.full((1, 5), 0.5), torch.ones(1, 5)
    for both, swapped, alike in Ring(2).run(train):
        assert_same(both[:2], [half, half])
        assert_same(swapped[:2], [half, half])
        assert both[2] is None and swapped[2] is None
        assert alike[0] is None and alike[1] is None
        assert_same(alike[2:], [whole])


def test_what_only_a_spare_uses_is_stepped_by_nobody() -> None:
    def train(number: int, manager: StandIn) -> list[torch.Tensor | None]:
        model = DistributedDataParallel(manager, Branches(), find_unused_parameters=True)  # type: ignore[arg-type]
        model(torch.ones(1, 5), number).sum().backward()
        return gradients(model)

    for found in Ring(2, spares=(1,)).run(train):
        assert_same(found[:1], [torch.ones(1, 5)])
        assert found[1:] == [None, None]


@pytest.mark.parametrize("views", [False, True])
def test_a_use_that_was_not_reduced_is_forgotten(views: bool) -> None:
    """Seen in a newcomer, which had gone through passes of its peers' past on its way to them."""

    def train(number: int, manager: StandIn) -> list[torch.Tensor | None]:
        model = DistributedDataParallel(
            manager,  # type: ignore[arg-type]
            Branches(),
            find_unused_parameters=True,
            gradient_as_bucket_view=views,
        )
        model.module(torch.ones(1, 5), 2).sum().backward()
        model.zero_grad()
        model.forget_uses()
        model(torch.ones(1, 5), number).sum().backward()
        return gradients(model)

    for found in Ring(2).run(train):
        assert_same(found[:2], [torch.full((1, 5), 0.5)] * 2)
        assert found[2] is None


def test_clipping_sees_the_averages() -> None:
    def train(number: int, manager: StandIn) -> torch.Tensor:
        model = DistributedDataParallel(manager, make_model())  # type: ignore[arg-type]
        model(inputs(number)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    one, other = Ring(2).run(train)
    assert torch.equal(one, other)
    torch.testing.assert_close(one.norm(), torch.tensor(1.0))


@pytest.mark.parametrize("name", ["process_group", "device_mesh", "skip_all_reduce_unused_params"])
def test_arguments_that_cannot_be_kept_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=name):
        DistributedDataParallel(Ring(1).managers[0], make_model(), **{name: object()})  # type: ignore[arg-type]


def test_sparse_gradients_and_torch_s_own_join_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (manager,) = Ring(1).managers
    with pytest.raises(UserError, match="sparse"):
        DistributedDataParallel(manager, nn.Embedding(4, 4, sparse=True))  # type: ignore[arg-type]
    model = DistributedDataParallel(manager, make_model(), broadcast_buffers=True)  # type: ignore[arg-type]
    assert "broadcast_buffers=True: no effect" in caplog.text
    with pytest.raises(UserError, match=r"ftrun\.Join"):
        torch.distributed.algorithms.join.Join([model])


def test_buffers_stay_a_replica_s_own() -> None:
    def train(number: int, manager: StandIn) -> torch.Tensor:
        model = DistributedDataParallel(manager, nn.BatchNorm1d(150))  # type: ignore[arg-type]
        model(inputs(number)).sum().backward()
        model(inputs(number)).sum().backward()
        mean = model.module.running_mean
        assert isinstance(mean, torch.Tensor)
        return mean

    one, other = Ring(2).run(train)
    assert not torch.equal(one, other)


def test_pure_ddp_averages_and_counts_missing_gradients_as_zeros() -> None:
    def train(number: int, manager: StandIn) -> list[torch.Tensor | None]:
        model = PureDistributedDataParallel(manager, Branches())  # type: ignore[arg-type]
        with model.no_sync():
            model(torch.ones(1, 5), 2).sum().backward()
        model.zero_grad()
        model(torch.ones(1, 5), number).sum().backward()
        return gradients(model)

    half = torch.full((1, 5), 0.5)
    for found in Ring(2).run(train):
        assert_same(found, [half, half, torch.zeros(1, 5)])
