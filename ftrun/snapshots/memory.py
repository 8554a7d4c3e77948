"""Memory that the training process copies a state into, and the writer's process reads it from.

One anonymous file, mapped by both. The copy is all that the training thread waits for. Not here:
what is copied (training/snapshots.py).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import torch

ALIGNMENT = 64
"""Of each leaf, so that it can be a tensor of any dtype where it lies."""


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where leaves of these sizes begin, and the size of all."""
    offsets, at = [], 0
    for nbytes in sizes:
        offsets.append(at)
        at += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, at


class SharedMemory:
    """The file ``fd``, mapped as far as ``reserve`` was asked for.

    Args:
        fd: of the other process; None: a new file.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("ftrun-snapshot") if fd is None else fd
        self._is_own = fd is None
        self._map: mmap.mmap | None = None

    def reserve(self, nbytes: int) -> None:
        """Have at least ``nbytes``. Views of before keep the mapping that they were made on."""
        if self._map is not None and len(self._map) >= nbytes:
            return
        if self._is_own:
            os.ftruncate(self.fd, nbytes)
        self._map = mmap.mmap(self.fd, nbytes)

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """``nbytes`` bytes from ``offset`` on, as a tensor whose storage has just that size."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        assert self._map is not None, "reserved before"
        return torch.frombuffer(self._map, dtype=torch.uint8, count=nbytes, offset=offset)

    def close(self) -> None:
        """Free the memory, once all views of it are gone."""
        self._map = None
        if self._is_own:
            os.close(self.fd)
