"""What ``ftrun check`` compares of a batch."""

from __future__ import annotations

from typing import Any

import numpy
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
