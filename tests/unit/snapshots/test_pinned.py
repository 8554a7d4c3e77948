"""Copies from a GPU by way of pinned memory: with a double of CUDA, whose tensors are the CPU's."""

from __future__ import annotations

import ctypes

import pytest
import torch

from ftrun.snapshots import pinned
from ftrun.snapshots.pinned import Pinned
from tests.unit.process_groups.nccl_double import CUDA, Torch


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_cuda", CUDA)
    monkeypatch.setattr(pinned, "torch", Torch())


def test_copies_are_as_what_was_copied_and_use_the_memory_again() -> None:
    made = Pinned()
    given = [
        torch.arange(5, dtype=torch.int16),
        torch.randn(3, 4).t(),
        torch.tensor(2.5, dtype=torch.float64),
        torch.zeros(0),
        torch.ones(3, 2, dtype=torch.bfloat16),
    ]
    found = made.copies(given)
    assert all(torch.equal(x, y) for x, y in zip(given, found, strict=True))
    assert [x.shape for x in found] == [x.shape for x in given]
    assert all(x.is_contiguous() for x in found)
    again = made.copies([torch.full((5,), 7, dtype=torch.int16)])
    assert again[0].data_ptr() == found[0].data_ptr()


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250, 1000])
def test_all_pieces_come_to_their_places(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(pinned, "PIECE_BYTES", 100)
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    into = ctypes.create_string_buffer(size + 8)
    made = Pinned()
    for _ in range(2):
        made.write(data, ctypes.addressof(into))
        assert into.raw == data.numpy().tobytes() + bytes(8)


def test_a_piece_is_moved_on_when_it_has_come_and_before_its_memory_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two pieces are under way at most, and each is awaited before it is read."""
    story: list[str] = []

    class Event:
        number = 0

        def __init__(self, *, blocking: bool) -> None:
            assert blocking, "the thread sleeps meanwhile"
            Event.number += 1
            self.own = Event.number

        def record(self, _stream: object) -> None:
            story.append(f"copies {self.own}")

        def synchronize(self) -> None:
            story.append(f"awaits {self.own}")

    class Cuda:
        def __init__(self) -> None:
            self.Event, self.current_stream = Event, CUDA.current_stream

    monkeypatch.setattr(pinned, "_cuda", Cuda())
    monkeypatch.setattr(pinned, "PIECE_BYTES", 10)
    into = ctypes.create_string_buffer(40)
    Pinned().write(torch.zeros(35, dtype=torch.uint8), ctypes.addressof(into))
    assert story == [
        "copies 1", "copies 2", "awaits 1", "copies 3", "awaits 2", "copies 4", "awaits 3",
        "awaits 4",
    ]  # fmt: skip
