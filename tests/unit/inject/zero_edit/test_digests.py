"""What ``ftrun check`` compares of a batch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from ftrun.inject.zero_edit import digests


class Boxes:
    """A batch of a package's own kind."""

    def __init__(self, images: torch.Tensor, names: list[str]) -> None:
        self.images, self.names = images, names


BATCH: dict[str, Any] = {
    "x": torch.zeros(3, 40_000),
    "of": [numpy.zeros(3), (1, "a", None)],
    "boxes": Boxes(torch.ones(2), ["b"]),
}


def test_each_part_of_a_batch_has_a_mark() -> None:
    """Seen: the rest of a large tensor, arrays and a class of the script's had none."""
    marks = digests.marks_of(BATCH)
    assert len(marks) == 7
    assert digests.marks_of({**BATCH}) == marks
    late = torch.zeros(3, 40_000)
    late[2, -1] = 1
    others: list[tuple[int, dict[str, Any]]] = [
        (0, {"x": late}),
        (1, {"of": [numpy.ones(3), (1, "a", None)]}),
        (2, {"of": [numpy.zeros(3), (2, "a", None)]}),
        (5, {"boxes": Boxes(torch.zeros(2), ["b"])}),
        (6, {"boxes": Boxes(torch.ones(2), ["c"])}),
    ]
    for at, changed in others:
        found = digests.marks_of({**BATCH, **changed})
        assert [n for n in range(7) if found[n] != marks[n]] == [at]


def test_a_batch_of_many_parts_has_marks_of_all() -> None:
    many = [*range(digests.LEAVES_MAX + 9)]
    marks = digests.marks_of(many)
    assert len(marks) == digests.LEAVES_MAX + 1
    assert digests.marks_of([*many[:-1], 0])[-1] != marks[-1]


def test_the_same_objects_of_other_memory_have_the_same_marks() -> None:
    def value() -> Any:
        return [numpy.array([object(), None]), object(), torch.nn.Linear(2, 1), Boxes, len]

    assert digests.marks_of(value()) == digests.marks_of(value())


def test_a_mark_shows_how_near_another_tensor_is() -> None:
    """Also one that is farther away in one value alone, or has its values in another order."""

    def numbers(tensor: torch.Tensor) -> list[float]:
        return [float(x) for x in digests.marked(tensor).split()[1:]]

    values = torch.arange(1.0, 9.0)
    norm, found = numbers(values)
    assert norm == pytest.approx(204**0.5)
    assert numbers(values * (1 + 1e-7)) == pytest.approx([norm, found], rel=1e-5)
    assert numbers(values.flip(0))[1] != pytest.approx(found, rel=1e-2)
    assert numbers(torch.zeros(0)) == [0, 0]
    assert numbers(torch.tensor([3j, 4]))[0] == 5
    assert digests.marked(values) != digests.marked(values.view(2, 4))


def test_tensors_of_several_models_and_optimizers_have_names_of_their_own() -> None:
    """Seen: of two models with batch norms the buffers of the second one alone were compared."""
    models = [torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)]
    optimizers = [torch.optim.Adam(x.parameters()) for x in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        model(torch.rand(3, 2)).sum().backward()
        optimizer.step()
    own = torch.nn.Parameter(torch.ones(1))
    optimizers.append(torch.optim.Adam([own]))
    known = {id(x) for model in models for x in model.parameters()}
    found = digests.digests_of(models, known, {}, optimizers, {})
    assert "running_mean" in found["buffers"] and "1: running_mean" in found["buffers"]
    assert [*found["parameters"]] == ["weight", "bias", "1: weight", "1: bias"]
    assert "Adam 0.exp_avg" in found["optimizers"] and "Adam (2) 0.exp_avg" in found["optimizers"]
    assert [*found[digests.OWN]] == ["Adam (3) 0"]
