"""Copies from a GPU to host memory through pinned memory, at the full speed of the link.

Copies are ordered with the caller's current stream, and are complete when these functions return.

Not here: which stream (inject/zero_edit/world/on_device.py), the destination (memory.py, area.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

_cuda: Any = torch.cuda
PIECE_BYTES = 16 << 20
ALIGNMENT = 64


class Pinned:
    """A pinned buffer for one thread at a time, which grows with what is copied through it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def copies(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of ``tensors`` in host memory, valid until the next call."""
        sizes = [-(-x.nbytes // ALIGNMENT) * ALIGNMENT for x in tensors]
        memory, at, found = self._of(sum(sizes)), 0, []
        for tensor, size in zip(tensors, sizes, strict=True):
            copy = memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            found.append(copy.copy_(tensor.detach(), non_blocking=True))
            at += size
        _cuda.current_stream(tensors[0].device).synchronize()
        return found

    def write(self, data: torch.Tensor, address: int) -> None:
        """Copy bytes on a GPU to an address in pieces, each moved on while the next one arrives."""
        if not data.numel():
            return
        memory = self._of(2 * min(PIECE_BYTES, data.numel()))
        halves = memory.view(2, -1)
        stream = _cuda.current_stream(data.device)
        last: tuple[Any, torch.Tensor] | None = None
        for number, part in enumerate(torch.split(data, halves.shape[1])):
            half = halves[number % 2, : part.numel()]
            half.copy_(part, non_blocking=True)
            event = _cuda.Event(blocking=True)
            event.record(stream)
            if last is not None:
                address += _moved(last, address)
            last = event, half
        assert last is not None, "there is something"
        _moved(last, address)

    def _of(self, nbytes: int) -> torch.Tensor:
        if self._memory.numel() < nbytes:
            self._memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return self._memory[:nbytes]


def _moved(piece: tuple[Any, torch.Tensor], address: int) -> int:
    event, half = piece
    event.synchronize()
    ctypes.memmove(address, half.data_ptr(), half.numel())
    return half.numel()
