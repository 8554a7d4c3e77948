"""What a worker of one group holds alike with others, and when nothing is compared."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard

from ftrun.core.replay.settling import Mark
from ftrun.inject.zero_edit.alike import Alike, replicas_of
from ftrun.inject.zero_edit.generations import Generations
from ftrun.snapshots.group_memory import GroupMemory


@pytest.fixture
def group() -> Any:
    return SimpleNamespace(spans=False, board=SimpleNamespace(may_differ=False))


def model_of(*ranks: int, hooks: bool = False) -> Any:
    """A DistributedDataParallel over ``ranks``."""
    module = torch.nn.Linear(2, 2)
    return SimpleNamespace(
        module=module, process_group=ranks, parameters_to_ignore={"bias"}, _comm_hooks=[1] * hooks
    )


def optimizers_of(*models: Any, lr: float = 0.1) -> list[torch.optim.Optimizer]:
    parameters = [p for model in models for p in model.module.parameters()]
    return [torch.optim.SGD(parameters, lr=lr)]


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_process_group_ranks", list)


def test_a_mark_is_of_the_parameters_the_settings_and_who_holds_them(group: Any) -> None:
    known, model = Alike(group), model_of(0, 1, 2)
    known.wrapped = [model]
    before = known.marks(optimizers_of(model))()
    assert before is not None and before == known.marks(optimizers_of(model))()
    with torch.no_grad():
        model.module.bias.add_(1)  # torch does not average it
    assert known.marks(optimizers_of(model))() == before
    other = known.marks(optimizers_of(model, lr=0.2))()
    assert other is not None and other.settings != before.settings
    assert (other.mates, other.parameters) == (before.mates, before.parameters)
    with torch.no_grad():
        model.module.weight.add_(1)
    other = known.marks(optimizers_of(model))()
    assert other is not None and other.parameters != before.parameters


def test_those_that_hold_all_of_it_are_mates(group: Any) -> None:
    known, whole, part = Alike(group), model_of(0, 1, 2, 3), model_of(0, 2)
    known.wrapped = [part]
    of_part = known.marks(optimizers_of(part))()
    known.wrapped = [whole, part]
    both = known.marks(optimizers_of(whole, part))()
    assert both is not None and of_part is not None and both.mates == of_part.mates


def test_nothing_is_compared_where_workers_may_train_apart(group: Any) -> None:
    for models in ([model_of(0)], [model_of(0, 1), model_of(2, 0)], [model_of(0, 1, hooks=True)]):
        known = Alike(group)
        known.wrapped = models
        assert known.marks(optimizers_of(*models))() is None
    known, model = Alike(group), model_of(0, 1)
    known.wrapped = [model]
    assert known.marks(optimizers_of(model))() is not None
    known.is_averaged = False  # a pass that accumulates; another one follows
    known.is_averaged = True
    known.stepped()
    assert known.marks(optimizers_of(model))() is not None
    known.is_averaged = False
    known.stepped()
    known.is_averaged = True
    known.stepped()
    assert known.marks(optimizers_of(model))() is None
    known = Alike(group)
    known.wrapped = [model]
    assert known.marks(optimizers_of(model))() is not None
    group.spans = True  # the lead of several nodes compares them
    assert known.marks(optimizers_of(model))() is not None
    group.spans, group.board.may_differ = False, True
    assert known.marks(optimizers_of(model))() is None


@pytest.mark.parametrize(
    ("placements", "mesh", "expected"),
    [
        ((Replicate(), Shard(0)), [[0, 1], [2, 3]], (1, 3)),
        ((Replicate(), Shard(0), Replicate()), [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], (1, 5)),
        ((Replicate(), Shard(0)), [[2, 3], [4, 5]], ()),  # this rank is not in it
        ((Shard(0), Replicate()), [[0, 1], [2, 3]], ()),  # tensor parallel's
        ((Replicate(), Replicate()), [[0, 1], [2, 3]], ()),
        ((Shard(0),), [0, 1], ()),
    ],
)
def test_a_shard_is_held_by_those_at_its_place_of_the_mesh(
    monkeypatch: pytest.MonkeyPatch, placements: Any, mesh: Any, expected: tuple[int, ...]
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    of = SimpleNamespace(mesh=torch.tensor(mesh))
    assert replicas_of(SimpleNamespace(placements=placements, device_mesh=of)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_each_bit_counts_wherever_it_lies(group: Any, dtype: torch.dtype) -> None:
    known, model = Alike(group), model_of(0, 1)
    weight = torch.nn.Parameter(torch.arange(6).reshape(2, 3).to(dtype).t())  # not contiguous
    model.module = torch.nn.ParameterList([weight, torch.nn.Parameter(torch.ones(()))])
    model.module.append(torch.nn.Parameter(torch.empty(0)))
    known.wrapped = [model]
    before = known.marks(optimizers_of(model))()
    weight.data[2, 1] = 9
    after = known.marks(optimizers_of(model))()
    assert before is not None and after is not None and before.parameters != after.parameters


def test_a_plain_parameter_is_held_by_nobody_else() -> None:
    assert replicas_of(torch.nn.Parameter(torch.ones(2))) == ()


def test_the_last_generation_at_which_mates_were_alike_is_not_overwritten() -> None:
    """Until the agent has seen that they differ, or lets them."""
    memory = GroupMemory.make(2, 9 << 20)
    for rank, digests in enumerate(((1, 2), (1, 3))):
        memory.area(rank).lay_out(8192, 8192)
        for step, digest in enumerate(digests, 1):
            mark = Mark(5, digest, 0)
            memory.area(rank).write(step, b"", [], step, {}, {}, mark=partial(_same, mark))
    own: Any = SimpleNamespace(
        must=True, area=memory.area(0), world=SimpleNamespace(memory=memory), board=memory.board
    )
    assert not Generations.wants(own, 3)
    memory.board.let_differ()
    assert Generations.wants(own, 3)
    own.must = False
    assert not Generations.wants(own, 3)  # none is due
    memory.close()


def _same(mark: Mark) -> Mark:
    return mark
