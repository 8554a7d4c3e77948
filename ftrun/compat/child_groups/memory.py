"""Memory shared with the child that holds a group, for tensors that cannot be moved.

A tensor on a device stays where the script has it. It is copied to a block that the child has
mapped, and the result is copied back when the child is done. So a kernel of a killed child, which
may run for another moment, writes to a block and never to the script's tensor (S7). A block is
mapped once and reused. After the child's end all of its blocks are freed.

``CudaMemory`` makes such blocks on a GPU. The tests use blocks in host memory, which a child maps
by file names, to cover everything but CUDA's own calls. Not here: the messages (messages.py).
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

SMALLEST_BYTES = 1 << 16


class Memory(Protocol):
    """A kind of memory, on the owner's side."""

    kind: str

    def allocate(self, nbytes: int, device: torch.device) -> tuple[torch.Tensor, list[Any]]:
        """Bytes on ``device``, and a handle with which the child maps them, as JSON."""

    def settle(self, device: torch.device) -> None:
        """Wait until the device has finished this thread's work."""

    def aside(self, device: torch.device) -> AbstractContextManager[Any]:
        """A context for copies that do not wait for the script's pending work on the device."""

    def release(self, handle: list[Any]) -> None:
        """After the child's end: release its claim on memory that it had mapped."""


class CudaMemory:
    """Memory on a GPU, shared by CUDA's inter-process handles.

    torch counts the processes that have mapped a block, and keeps the block while the count is
    above zero. A killed child has not decremented it, so ``release`` does.
    """

    kind = "cuda"

    def allocate(self, nbytes: int, device: torch.device) -> tuple[torch.Tensor, list[Any]]:
        block = torch.empty(nbytes, dtype=torch.uint8, device=device)
        storage: Any = block.untyped_storage()
        return block, as_json(storage._share_cuda_())

    def settle(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()

    def aside(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    def release(self, handle: list[Any]) -> None:
        device, _, _, _, counter, offset, _, _ = from_json(handle)
        storage: Any = torch.UntypedStorage
        with contextlib.suppress(RuntimeError):  # otherwise the block stays until this process ends
            storage._release_ipc_counter(counter, offset, device=device)


class Blocks:
    """The blocks of one child, on the owner's side. Thread-safe."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._handles: dict[int, list[Any]] = {}
        self._free: dict[int, torch.Tensor] = {}
        self._used: dict[int, torch.Tensor] = {}
        self._closed = False

    def take(self, nbytes: int, device: torch.device) -> tuple[int, torch.Tensor, list[Any] | None]:
        """A block of at least ``nbytes`` bytes, with its handle if the child has not mapped it.

        Raises:
            RuntimeError: the child has ended.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the process of this group has ended")
            fits = [n for n, b in self._free.items() if b.device == device and b.nbytes >= nbytes]
            if fits:
                number = min(fits, key=lambda n: self._free[n].nbytes)
                self._used[number] = block = self._free.pop(number)
                return number, block, None
            size = max(SMALLEST_BYTES, 1 << (nbytes - 1).bit_length()) if nbytes else SMALLEST_BYTES
            block, handle = self.memory.allocate(size, device)
            number = next(self._numbers)
            self._used[number], self._handles[number] = block, handle
            return number, block, handle

    def give_back(self, numbers: Sequence[int]) -> None:
        """Take back blocks that the child no longer uses. Never a block that it may still write
        to."""
        with self._lock:
            for number in numbers:
                if number in self._used:
                    self._free[number] = self._used.pop(number)

    def refuse(self) -> None:
        """Hand out no more blocks, because the child ends."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """Free everything, because the child has ended, and its kernels with it."""
        with self._lock:
            self._closed = True
            handles, self._handles = self._handles, {}
            self._free, self._used = {}, {}
        for handle in handles.values():
            self.memory.release(handle)


class Staging:
    """The tensors of one collective, in blocks."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._staged: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def put(self, tensor: torch.Tensor) -> list[Any]:
        """Copy ``tensor`` to a block. Returns its place for the child."""
        number, block, handle = self._blocks.take(
            tensor.numel() * tensor.element_size(), tensor.device
        )
        place = (
            block[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        )
        place.copy_(tensor.detach())
        self._staged.append((number, place, tensor.detach()))
        kind = self._blocks.memory.kind
        return [number, str(tensor.dtype), list(tensor.shape), kind, handle]

    def settle(self) -> None:
        """Wait until all copies are made, because the child uses other streams."""
        for device in {tensor.device for _, _, tensor in self._staged}:
            self._blocks.memory.settle(device)

    def collect(self, outputs: int) -> None:
        """The child is done: copy back the first ``outputs`` tensors, and free the blocks."""
        if not self._staged:
            return
        with self._blocks.memory.aside(self._staged[0][2].device):
            for _, place, tensor in self._staged[:outputs]:
                tensor.copy_(place)
            self.settle()
        self._blocks.give_back([number for number, _, _ in self._staged])
        self._staged = []


class MappedBlocks:
    """The blocks that a child has mapped, until its end."""

    def __init__(self) -> None:
        self._blocks: dict[int, torch.Tensor] = {}

    def find(self, written: list[Any], dtypes: dict[str, torch.dtype]) -> torch.Tensor:
        """The tensor at a place that ``Staging.put`` returned."""
        number, dtype, shape, kind, handle = written
        if handle is not None:
            self._blocks[number] = _MAPS[kind](handle)
        kind_of = dtypes[dtype]
        count = torch.Size(shape).numel() * kind_of.itemsize
        return self._blocks[number][:count].view(kind_of).view(shape)


def as_json(fields: Sequence[Any]) -> list[Any]:
    """Convert numbers, flags and bytes to JSON values."""
    return [
        {"bytes": base64.b64encode(field).decode()} if isinstance(field, bytes) else field
        for field in fields
    ]


def from_json(written: list[Any]) -> list[Any]:
    return [base64.b64decode(f["bytes"]) if isinstance(f, dict) else f for f in written]


def _map_cuda(handle: list[Any]) -> torch.Tensor:
    fields = from_json(handle)
    storage: Any = torch.UntypedStorage
    memory = storage._new_shared_cuda(*fields)
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)


def _map_host(handle: list[Any]) -> torch.Tensor:
    return map_file(*handle)


def map_file(path: str, nbytes: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


_MAPS = {"cuda": _map_cuda, "host": _map_host}
