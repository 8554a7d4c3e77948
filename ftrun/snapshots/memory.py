"""Memory into which the training process copies a state, and from which the writer reads it.

It is one anonymous file that both processes map. The training thread waits only for the copy.
Functions import torch when they copy, because the agent, which has no torch, makes such memory too
(area.py). Not here: what is copied (training/snapshots.py).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.base.errors import PeerError

if TYPE_CHECKING:
    import torch

    from ftrun.checkpoint.leaves import Leaf
    from ftrun.snapshots.pinned import Pinned

MADV_POPULATE_WRITE = 23
"""Since Linux 5.14. Python's mmap module does not name it."""
TOUCH_BYTES = 4 << 20
PIECE_BYTES = 2 << 20
THREADS_MAX = 4
JOIN_TIMEOUT_S = 60.0
ALIGNMENT = 64
"""Alignment of each leaf, in bytes, so that it can be viewed as a tensor of any dtype."""


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The offset of each leaf of these sizes, and the total size."""
    offsets, at = [], 0
    for nbytes in sizes:
        offsets.append(at)
        at += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, at


class SharedMemory:
    """The file ``fd``, mapped up to the size given to ``reserve``.

    Args:
        fd: a descriptor of another process's file; None: a new file.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("ftrun-snapshot") if fd is None else fd
        self._is_own = fd is None
        self._map: mmap.mmap | None = None
        self._pinned: Pinned | None = None

    @classmethod
    def at(cls, place: str) -> SharedMemory:
        """Open another process's file by its ``place``.

        Raises:
            OSError: the process is gone, or has closed the file.
        """
        path, _, inode = place.rpartition(".")
        opened = cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        if os.fstat(opened.fd).st_ino != int(inode):  # the number has been reused for another file
            os.close(opened.fd)
            raise OSError(errno.ENOENT, "the memory is gone", place)
        return opened

    @property
    def place(self) -> str:
        """The argument for ``at``, valid in any process of this user on this node."""
        return f"/proc/{os.getpid()}/fd/{self.fd}.{os.fstat(self.fd).st_ino}"

    def reserve(self, nbytes: int) -> None:
        """Map at least ``nbytes`` bytes. Earlier views keep their mapping."""
        if self._map is not None and len(self._map) >= nbytes:
            return
        if self._is_own:
            os.ftruncate(self.fd, nbytes)
        self._map = mmap.mmap(self.fd, nbytes)

    @property
    def address(self) -> int:
        """The address of the mapping in this process."""
        assert self._map is not None, "reserved before"
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def touch(self, begin: int = 0, nbytes: int | None = None) -> None:
        """Make all pages resident, so that the first copy does not fault. From any thread.

        It works in small pieces, because the kernel meanwhile keeps other threads from mapping
        memory. An old kernel refuses; then the first copy is slower.
        """
        whole = self._map
        if whole is None:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        end = len(whole) if nbytes is None else begin + nbytes
        for offset in range(begin // mmap.PAGESIZE * mmap.PAGESIZE, end, TOUCH_BYTES):
            size = ctypes.c_size_t(min(TOUCH_BYTES, end - offset))
            if libc.madvise(ctypes.c_void_p(self.address + offset), size, MADV_POPULATE_WRITE):
                return

    def fill(self, leaves: Sequence[Leaf], offsets: Sequence[int], threads: int) -> None:
        """Copy ``leaves`` to their ``offsets``, with up to ``threads`` threads if in host memory.

        The threads and the caller take small pieces from one queue. So on a busy machine no thread
        waits for one that does not run, as it would at the end of each of torch's own parallel
        copies.
        """
        import torch

        pieces = []
        for leaf, offset in zip(leaves, offsets, strict=True):
            data = leaf.data
            if isinstance(data, torch.Tensor) and not is_on_host(data):
                self._from_device(data, offset)
                continue
            whole = data if isinstance(data, torch.Tensor) else _tensor_of(data)
            for at in range(0, leaf.spec.nbytes, PIECE_BYTES):
                nbytes = min(PIECE_BYTES, leaf.spec.nbytes - at)
                pieces.append((self.address + offset + at, whole.data_ptr() + at, nbytes, whole))
        _copy_pieces(pieces, min(threads, THREADS_MAX, len(pieces)))

    def _from_device(self, data: torch.Tensor, offset: int) -> None:
        from ftrun.snapshots.pinned import Pinned

        self._pinned = self._pinned or Pinned()
        self._pinned.write(data, self.address + offset)

    def give_back(self, offset: int, nbytes: int) -> None:
        """Free the pages from ``offset`` on. They read as zero and are allocated again when
        written."""
        assert self._map is not None, "reserved before"
        if nbytes:
            self._map.madvise(mmap.MADV_REMOVE, offset, nbytes)

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """``nbytes`` bytes from ``offset`` on, as a tensor whose storage has exactly that size."""
        import torch

        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        assert self._map is not None, "reserved before"
        return torch.frombuffer(self._map, dtype=torch.uint8, count=nbytes, offset=offset)

    def buffer(self, offset: int, nbytes: int) -> memoryview:
        """``nbytes`` bytes from ``offset`` on."""
        assert self._map is not None, "reserved before"
        return memoryview(self._map)[offset : offset + nbytes]

    def words(self, offset: int, count: int) -> ctypes.Array[ctypes.c_int64]:
        """``count`` words of 64 bits from ``offset`` on. Each is read and written atomically."""
        assert self._map is not None, "reserved before"
        return (ctypes.c_int64 * count).from_buffer(self._map, offset)

    def close(self) -> None:
        """Free the memory, once all views of it are gone."""
        self._map = None
        os.close(self.fd)


def is_on_host(data: torch.Tensor) -> bool:
    """Whether a tensor is in host memory."""
    return data.is_cpu


def _tensor_of(data: memoryview) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)


def _copy_pieces(pieces: Sequence[tuple[int, int, int, object]], threads: int) -> None:
    """Copy each (to, from, bytes). The last field keeps the memory alive."""
    left = iter(pieces)  # threads that draw from one list's iterator get different pieces

    def work() -> None:
        for into, data, nbytes, _ in left:
            ctypes.memmove(into, data, nbytes)

    others = [
        threading.Thread(target=work, name="ftrun-copy", daemon=True) for _ in range(threads - 1)
    ]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join(JOIN_TIMEOUT_S)
        if thread.is_alive():
            raise PeerError("a thread that copies the state does not run")
