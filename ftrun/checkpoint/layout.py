"""The address space in which the leaves of a state lie, end to end, and its chunks.

A ``Layout`` joins many pieces of memory into one range of bytes ``[0, nbytes)`` without copying
them, so that sockets read from and write to the tensors' own memory. The range is cut into chunks
of ``CHUNK_BYTES``. Each chunk has a digest, seeded with the state's id and the chunk's index, so
that a chunk of another state or index is never mistaken for it (S3).

Not here: sockets (serve.py, heal.py).
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import torch
import xxhash

from ftrun.checkpoint.leaves import Leaf
from ftrun.checkpoint.wire import PIECE_BYTES
from ftrun.core.ids import StateId, Tag

CHUNK_BYTES = 2 << 20
"""The unit of verification, and the most that a broken connection loses."""

DIGEST_BYTES = 8
HUGE_PAGES_FROM_BYTES = 4 << 20
SAMPLE_BYTES = 4 << 10
SAMPLE_EVERY_BYTES = 1 << 20
OWN_SAMPLE = 0


class Layout:
    """Many buffers as one range of bytes. Device memory is read through host copies."""

    def __init__(self, buffers: Sequence[torch.Tensor | memoryview]) -> None:
        self._buffers: list[torch.Tensor | memoryview] = []
        self._starts: list[int] = []
        self.nbytes = 0
        for buffer in buffers:
            nbytes = buffer.numel() if isinstance(buffer, torch.Tensor) else buffer.nbytes
            if nbytes == 0:
                continue
            self._starts.append(self.nbytes)
            self._buffers.append(self._host_view(buffer))
            self.nbytes += nbytes

    def _host_view(self, buffer: torch.Tensor | memoryview) -> torch.Tensor | memoryview:
        if isinstance(buffer, memoryview):
            return buffer
        if buffer.device.type == "cpu":
            return buffer.numpy().data
        return buffer

    @property
    def chunks(self) -> int:
        """The number of chunks; the last one may be short."""
        return -(-self.nbytes // CHUNK_BYTES)

    def span(self, chunk: int) -> tuple[int, int]:
        start = chunk * CHUNK_BYTES
        return start, min(start + CHUNK_BYTES, self.nbytes)

    def views(self, start: int, stop: int) -> list[memoryview]:
        """The memory of ``[start, stop)``, piece by piece; a copy if it is on a device."""
        return list(self._views(start, stop))

    def _views(self, start: int, stop: int) -> Iterator[memoryview]:
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            buffer, base = self._buffers[index], self._starts[index]
            end = self._starts[index + 1] if index + 1 < len(self._starts) else self.nbytes
            here = min(stop, end)
            piece = buffer[start - base : here - base]
            if isinstance(piece, torch.Tensor):
                piece = piece.cpu().numpy().data
            yield piece
            start, index = here, index + 1


def digest_seed(tag: Tag, state_id: StateId) -> int:
    """The part of a chunk digest's seed that depends on the state and its tag."""
    text = f"{tag.path()}|{state_id.step}|{state_id.lineage}"
    return xxhash.xxh3_64_intdigest(text.encode())


def chunk_hasher(seed: int, chunk: int) -> xxhash.xxh3_64:
    """The hasher of a chunk. Its digest is valid only for this state and this index."""
    return xxhash.xxh3_64(seed=(seed + chunk) & 0xFFFF_FFFF_FFFF_FFFF)


def pieces(views: Sequence[memoryview]) -> list[memoryview]:
    """``views`` cut into pieces that stay in a processor's cache between two uses."""
    return [
        view[start : start + PIECE_BYTES]
        for view in views
        for start in range(0, view.nbytes, PIECE_BYTES)
    ]


def samples(leaves: Sequence[Leaf], own: Collection[int] = ()) -> list[int]:
    """A fingerprint per leaf, of 4 KiB in each MiB, which detects differing replicas cheaply.

    Leaves in ``own``, which may differ between replicas, get OWN_SAMPLE.

    Replicas with the same state id must hold equal bytes (S1). The digests of chunks guard the
    transfer; these fingerprints guard against donors that differ from each other.
    """
    return [OWN_SAMPLE if i in own else sample(leaf.data) for i, leaf in enumerate(leaves)]


def sample(data: torch.Tensor | memoryview) -> int:
    """The fingerprint of one leaf's bytes."""
    return xxhash.xxh3_64_intdigest(_sample(data))


def _sample(data: torch.Tensor | memoryview) -> bytes | memoryview:
    if isinstance(data, torch.Tensor) and data.device.type != "cpu":
        # Gathered on the device, so that one small transfer is enough.
        parts = [data[span] for span in _sample_spans(data.numel())]
        return torch.cat(parts).cpu().numpy().data if parts else b""
    host = data.numpy().data if isinstance(data, torch.Tensor) else data
    return b"".join(host[span] for span in _sample_spans(host.nbytes))


def _sample_spans(nbytes: int) -> list[slice]:
    if nbytes <= 2 * SAMPLE_BYTES:
        return [slice(0, nbytes)] if nbytes else []
    starts = range(0, nbytes - SAMPLE_BYTES, SAMPLE_EVERY_BYTES)
    return [*(slice(s, s + SAMPLE_BYTES) for s in starts), slice(nbytes - SAMPLE_BYTES, nbytes)]


def allocate(nbytes: int) -> torch.Tensor:
    """Untouched host memory as a uint8 tensor, in huge pages, because they are filled faster."""
    if nbytes < HUGE_PAGES_FROM_BYTES:
        return torch.empty(nbytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
