"""Forms of DistributedDataParallel, each trained for some steps. For two ranks."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.undisturbed.table import outcome, program, rank, run, size

SAMPLES = TensorDataset(
    torch.randn(32, 8, generator=torch.Generator().manual_seed(5)),
    torch.randn(32, 2, generator=torch.Generator().manual_seed(6)),
)


def net(seed: int = 1, *, has_norm: bool = False) -> nn.Sequential:
    """A small model, the same at all ranks."""
    torch.manual_seed(seed)
    middle = nn.BatchNorm1d(8) if has_norm else nn.Tanh()
    return nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 2))


def loader(batch: int = 4) -> DataLoader[Any]:
    """The samples, split over the ranks."""
    sampler: Any = DistributedSampler(SAMPLES, shuffle=True, seed=2)
    return DataLoader(SAMPLES, batch, sampler=sampler)


def sums(model: nn.Module) -> list[float]:
    """Each parameter's sum, to the last bit."""
    return [parameter.detach().double().sum().item() for parameter in model.parameters()]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    batches: Iterable[Any] | None = None,
    loss: Callable[[Any, Any], torch.Tensor] = nn.functional.mse_loss,
) -> list[Any]:
    """Train one epoch; the losses and the parameters."""
    used = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for x, y in batches or loader():
        used.zero_grad()
        value = loss(model(x), y)
        value.backward()
        used.step()
        found.append(value.item())
    return [found, sums(model)]


@program
def plain() -> Any:
    return train(DDP(net()))


@program
def facts_of_the_model() -> Any:
    model = DDP(net())
    return [
        isinstance(model, DDP),
        type(model).__name__,
        type(model).__module__,
        type(model).__mro__[-3:] == DDP.__mro__[-3:],
        list(model.state_dict()),
        [name for name, _ in model.named_modules()],
        model.device_ids,
        model.find_unused_parameters,
        model.static_graph,
        model.broadcast_buffers,
        model.gradient_as_bucket_view,
        model.require_backward_grad_sync,
        model.process_group is dist.group.WORLD,
        model.module is not None,
        model.training,
        str(model).splitlines()[0],
    ]


@program
def several_buckets() -> Any:
    return train(DDP(net(), bucket_cap_mb=0.0001))


@program
def begun_without_a_seed() -> Any:
    torch.manual_seed(100 + rank())
    model = nn.Linear(8, 2)
    before = sums(model)
    wrapped = DDP(model)
    return [before != sums(model), *train(wrapped)]


@program
def sync_left_out() -> Any:
    torch.manual_seed(100 + rank())
    model = DDP(nn.Linear(8, 2), init_sync=False)
    return sums(model)


@program
def buffers_of_rank_0_alone() -> Any:
    model = net(has_norm=True)
    if rank() == 0:
        with torch.no_grad():
            for buffer in model.buffers():
                buffer.add_(3)
    wrapped = DDP(model)
    return [[buffer.clone() for buffer in wrapped.buffers()], train(wrapped)]


@program
def batch_norm_with_an_evaluation() -> Any:
    model = DDP(net(has_norm=True))
    found = []
    for epoch in range(2):
        batches = loader()
        sampler: Any = batches.sampler
        sampler.set_epoch(epoch)
        found.append(train(model, torch.optim.SGD(model.parameters(), lr=0.05), batches))
        model.eval()
        with torch.no_grad():
            total = torch.zeros(2)
            for x, y in DataLoader(SAMPLES, 8, sampler=range(rank(), 32, size())):
                total += torch.tensor([float((model(x) - y).pow(2).sum()), len(x)])
        dist.all_reduce(total)
        found.append((total[0] / total[1]).item())
        model.train()
    return [found, [buffer.double().sum() for buffer in model.buffers()]]


@program
def buffers_not_broadcast() -> Any:
    model = DDP(net(has_norm=True), broadcast_buffers=False)
    train(model)
    return [buffer.double().sum() for buffer in model.buffers()]


@program
def accumulated_without_sync() -> Any:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for number, (x, y) in enumerate(loader()):
        if number % 2 == 0:
            with model.no_sync():
                nn.functional.mse_loss(model(x), y).backward()
            first = next(model.parameters()).grad
            found.append(None if first is None else first.sum().item())
        else:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [found, sums(model)]


@program
def accumulated_with_sync() -> Any:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(loader()):
        (nn.functional.mse_loss(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return sums(model)


@program
def static_graph() -> Any:
    return train(DDP(net(), static_graph=True))


@program
def gradient_as_bucket_view() -> Any:
    return train(DDP(net(), gradient_as_bucket_view=True))


class Branches(nn.Module):
    """Uses one of its layers by turns."""

    def __init__(self, by: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(8, 2), nn.Linear(8, 2)
        self.turn = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return (self.a if self.turn % 2 else self.b)(x)


@program
def unused_parameters() -> Any:
    return train(DDP(Branches(0), find_unused_parameters=True))


@program
def unused_parameters_that_differ_by_rank() -> Any:
    return train(DDP(Branches(rank()), find_unused_parameters=True))


@program
def unused_parameters_not_looked_for() -> Any:
    return outcome(lambda: train(DDP(Branches(0))), has_words=False)


@program
def folds() -> Any:
    found = []
    for fold in range(3):
        model = DDP(net(seed=fold))
        part = TensorDataset(*SAMPLES[fold * 8 : fold * 8 + 16])
        sampler: Any = DistributedSampler(part)
        found.append(train(model, None, DataLoader(part, 4, sampler=sampler))[1])
    return found


@program
def sweep() -> Any:
    found = {}
    for rate in (0.1, 0.01):
        torch.manual_seed(7)
        model = DDP(nn.Linear(8, 2))
        found[rate] = train(model, torch.optim.Adam(model.parameters(), lr=rate))
    return found


@program
def a_second_model_after_steps() -> Any:
    first = DDP(net())
    found = [train(first)]
    torch.manual_seed(50 + rank())
    second = DDP(nn.Linear(8, 2))
    return [*found, sums(second), train(second), train(first)]


@program
def subclass() -> Any:
    class Mine(DDP):
        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

    model = Mine(nn.Linear(8, 2))
    return [isinstance(model, Mine), model.in_features, train(model)]


@program
def subclass_with_a_forward_of_its_own() -> Any:
    class Counting(DDP):
        def __init__(self, module: nn.Module, *, start: int) -> None:
            super().__init__(module, bucket_cap_mb=1)
            self.count = start

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return super().forward(*args, **kwargs)

    model = Counting(net(), start=10)
    other = copy.deepcopy(model)
    return [train(model), model.count, type(other).__name__, str(other).splitlines()[0]]


@program
def sparse_gradients() -> Any:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.table = nn.Embedding(10, 4, sparse=True)
            self.out = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.table(x))

    model = DDP(Words())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        model(torch.tensor([rank(), number, 5 + rank()])).pow(2).mean().backward()
        optimizer.step()
    return [sums(model), model.module.table.weight.sum(1)]


@program
def over_a_subgroup_of_each_rank() -> Any:
    groups = [dist.new_group([at]) for at in range(size())]
    model = DDP(net(), process_group=groups[rank()])
    return train(model)


@program
def over_a_group_of_its_own() -> Any:
    return train(DDP(net(), process_group=dist.new_group()))


@program
def two_steps_in_one_forward() -> Any:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader():
        found = model(x)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.mse_loss(found, y).backward(retain_graph=True)
        optimizer.step()
    return sums(model)


@program
def step_without_a_forward_between() -> Any:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.step()
    return sums(model)


@program
def two_optimizers() -> Any:
    model = DDP(net())
    parameters = list(model.parameters())
    optimizers = [
        torch.optim.SGD(parameters[:2], lr=0.1),
        torch.optim.Adam(parameters[2:], lr=0.01),
    ]
    for x, y in loader():
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    return sums(model)


@program
def adversaries() -> Any:
    torch.manual_seed(8)
    maker, judge = DDP(nn.Linear(8, 8)), DDP(nn.Linear(8, 1))
    makes = torch.optim.Adam(maker.parameters(), lr=0.01)
    judges = torch.optim.Adam(judge.parameters(), lr=0.01)
    found = []
    for x, _ in loader():
        judges.zero_grad()
        made = maker(x)
        loss = judge(x).sigmoid().mean() - judge(made.detach()).sigmoid().mean()
        loss.backward()
        judges.step()
        makes.zero_grad()
        other = judge(made).sigmoid().mean()
        other.backward()
        makes.step()
        found.append((loss.item(), other.item()))
    return [found, sums(maker), sums(judge)]


@program
def clipping_and_scheduling() -> Any:
    model = DDP(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    found = []
    for x, y in loader():
        optimizer.zero_grad(set_to_none=False)
        nn.functional.mse_loss(model(x), y).backward()
        found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        scheduler.step()
        found.append(scheduler.get_last_lr()[0])
    return [found, sums(model)]


@program
def mixed_precision_and_scaling() -> Any:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
    found = []
    for x, y in loader():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((loss.item(), scaler.get_scale()))
    return [found, sums(model)]


@program
def gradients_of_64_bits() -> Any:
    model = DDP(net().double())
    return train(model, batches=[(x.double(), y.double()) for x, y in loader()])


@program
def average_of_the_weights() -> Any:
    model = DDP(net())
    average = torch.optim.swa_utils.AveragedModel(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model.module)
    return [sums(average), average.n_averaged]


@program
def copied_deeply() -> Any:
    model = DDP(net())
    train(model)
    other = copy.deepcopy(model)
    return [sums(copy.deepcopy(model.module)), type(other).__name__, train(other), sums(model)]


@program
def saved_whole() -> Any:
    model = DDP(net())
    train(model)
    path = f"{os.environ['TMPDIR']}/whole-{rank()}.pt"
    torch.save(model, path)
    other = torch.load(path, weights_only=False)
    return [type(other).__name__, sums(other) == sums(model), train(other)]


@program
def saved_and_loaded() -> Any:
    model = DDP(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer)
    path = f"{os.environ['TMPDIR']}/model.pt"
    if rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    other = DDP(net(seed=9))
    saved = torch.load(path, weights_only=True)
    other.load_state_dict(saved["model"])
    adam = torch.optim.Adam(other.parameters(), lr=0.5)
    adam.load_state_dict(saved["optimizer"])
    return [sums(other) == sums(model), adam.param_groups[0]["lr"], train(other, adam)]


@program
def frozen_and_shared_layers() -> Any:
    model = net()
    model[2].weight.requires_grad_(False)
    wrapped = DDP(nn.Sequential(model, nn.Linear(2, 2)))
    return [train(wrapped), sum(x.requires_grad for x in wrapped.parameters())]


@program
def a_hook_of_a_parameter() -> Any:
    model = net()
    seen = []
    model[0].weight.register_hook(lambda grad: seen.append(grad.sum().item()))
    return [train(DDP(model)), seen]


@program
def closure() -> Any:
    model = DDP(net())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    found = []
    for x, y in list(loader())[:2]:

        def again(x: Any = x, y: Any = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        found.append(float(optimizer.step(again)))
    return [found, sums(model)]


@program
def checkpointed_activations() -> Any:
    from torch.utils.checkpoint import checkpoint

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = net(), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(checkpoint(self.inner, x, use_reentrant=False))

    return train(DDP(Saving(), static_graph=True))


@program
def no_gradient_needed() -> Any:
    model = net().requires_grad_(False)
    return outcome(lambda: DDP(model))


@program
def wrong_models() -> Any:
    return [
        outcome(lambda: DDP(net(), device_ids=[0, 1]), has_words=False),
        outcome(lambda: DDP(net(), output_device=0), has_words=False),
        outcome(lambda: DDP(net(), nonsense=1), has_words=False),  # type: ignore[call-arg]
        outcome(DDP, has_words=False),  # type: ignore[arg-type]
    ]


@program
def uneven_batches_by_rank() -> Any:
    model = DDP(net())
    batches = [(x[: 2 + rank()], y[: 2 + rank()]) for x, y in loader()]
    return train(model, batches=batches)


@program
def a_module_beside_that_differs_by_rank() -> Any:
    torch.manual_seed(100 + rank())
    encoder, model = nn.Linear(8, 8), DDP(net())
    batches = [(encoder(x).detach(), y) for x, y in loader()]
    return [train(model, batches=batches), sums(encoder)]


@program
def rank_0_evaluates_alone_a_model_with_buffers() -> Any:
    """Under torch its one broadcast is that of its peers' next pass in training."""
    model = DDP(net(has_norm=True))
    found = []
    for _ in range(3):
        if rank() == 0:
            model.eval()
            with torch.no_grad():
                found = [model(torch.ones(2, 8)).sum().item() for _ in range(4)]
            model.train()
        found.append(train(model))
    return found


class TwoSteps(nn.Module):
    """A pass in which two optimizers step, as a training step by hand does in Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = net(1), net(2)
        self.optimizers = [torch.optim.SGD(x.parameters(), lr=0.1) for x in self.children()]
        self.reduces: Callable[[torch.Tensor], None] = lambda loss: None

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[float]:
        found = []
        for part, optimizer in zip(self.children(), self.optimizers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(part(x), y)
            self.reduces(loss)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found


@program
def two_steps_in_one_forward_pass() -> Any:
    module = TwoSteps()
    model = DDP(module, find_unused_parameters=True)
    module.reduces = lambda loss: model.reducer.prepare_for_backward([loss])
    return [[model(x, y) for x, y in loader()], sums(module)]


@program
def compiled() -> Any:
    model = DDP(net())
    return train(torch.compile(model, backend="eager"))  # type: ignore[arg-type]


@program
def trained_by_hand() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # type: ignore[arg-type]
            parameter.grad /= size()
        optimizer.step()
    return sums(model)


if __name__ == "__main__":
    run(timeout=timedelta(seconds=90))
