"""A loader's iterator goes to another batch, and reads no sample on its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ftrun.inject.zero_edit.loaders import OPEN, LoaderIterator


class Numbers(Dataset[int]):
    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


def iterator_of(loader: Any) -> LoaderIterator:
    def make() -> Iterator[Any]:
        return DataLoader.__iter__(loader)

    return LoaderIterator(loader, make(), make)


def batches(iterator: Any) -> list[list[int]]:
    return [batch.tolist() for batch in iterator]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drawn", [0, 1, 4])
def test_it_goes_to_a_batch(workers: int, drawn: int) -> None:
    plain = batches(DataLoader(Numbers(), 8, num_workers=workers))
    numbers = Numbers()
    iterator = iterator_of(DataLoader(numbers, 8, num_workers=workers))
    iterator.go_to(None, drawn)
    assert batches(iterator) == plain[drawn:]
    if not workers:
        assert numbers.read == [n for batch in plain[drawn:] for n in batch]


def test_it_goes_back() -> None:
    iterator = iterator_of(DataLoader(Numbers(), 8))
    next(iterator), next(iterator), next(iterator)
    iterator.go_to(None, 1)
    assert next(iterator).tolist() == list(range(8, 16))
    assert iterator.drawn == 2


def test_it_goes_to_another_epoch() -> None:
    numbers = Numbers()
    sampler: Any = DistributedSampler(numbers, num_replicas=2, rank=1, seed=3)
    loader = DataLoader(numbers, 4, sampler=sampler)
    sampler.set_epoch(2)
    wanted = batches(DataLoader.__iter__(loader))
    sampler.set_epoch(0)
    iterator = iterator_of(loader)
    next(iterator)
    iterator.go_to(2, 3)
    assert iterator.epoch == 2
    assert batches(iterator) == wanted[3:]


def test_open_iterators() -> None:
    loader = DataLoader(Numbers(), 8)
    made = [iterator_of(loader) for _ in range(2)]
    assert [it.number for it in made] == [0, 1]
    assert all(it in OPEN.all() for it in made)
    batches(made[0])
    assert made[0] not in OPEN.all()
    assert len(made[1]) == 5
    assert isinstance(next(made[1]), torch.Tensor)
