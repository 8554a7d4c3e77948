"""Copies of the inputs of reductions, for a repair. Their memory is reused in later steps.

Fresh memory costs more than the copy, because the kernel clears each of its pages at the first
write. On a device, torch's allocator caches memory by itself.

Not here: when a copy is written back (reductions.py).
"""

from __future__ import annotations

import threading

import torch

UNUSED_STEPS_MAX = 8
"""Memory that was not used for this many steps in a row is freed."""
SMALLEST_BYTES = 1 << 16
"""Smaller copies are not kept, because the C library's allocator reuses memory of that size."""


class KeptInputs:
    """Memory for copies that no reduction needs now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = 0
        self._free: list[tuple[int, torch.Tensor]] = []

    def step_begun(self) -> None:
        """Free memory that has not been used for long."""
        with self._lock:
            self._step += 1
            oldest = self._step - UNUSED_STEPS_MAX
            self._free = [(step, memory) for step, memory in self._free if step >= oldest]

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory of the size and type of ``tensor``, which is flat. Return it after use."""
        with self._lock:
            for place, (_, memory) in enumerate(self._free):
                if memory.dtype == tensor.dtype and memory.numel() == tensor.numel():
                    del self._free[place]
                    return memory
        return torch.empty_like(tensor)

    def give_back(self, kept: torch.Tensor) -> None:
        """Take back memory that no thread reads or writes any more."""
        if kept.device.type != "cpu" or kept.nbytes < SMALLEST_BYTES:
            return
        with self._lock:
            self._free.append((self._step, kept))
