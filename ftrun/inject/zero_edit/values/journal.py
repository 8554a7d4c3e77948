"""A small file in which a worker leaves entries for its successor; a SIGKILL tears none of them.

The file is mapped into memory, so that an entry costs a copy of its bytes and no system call. It
has two halves. Entries follow each other in one of them; when it is full, a new beginning goes to
the other half, whose number is written last. An entry counts if its checksum is right, which also
depends on the number of its half: bytes that an older beginning has left there are no entries.

Not here: the content of the entries (legacy.py).
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HALF_BYTES = 384 << 10
"""Above what a beginning may take (legacy.py), so that entries can follow it."""
_HEAD = struct.Struct("<QI")  # the number of the half's beginning, and its checksum
_ENTRY = struct.Struct("<II")  # the length of an entry, and its checksum


class Journal:
    """For the one worker that writes.

    Args:
        path: in a directory that only this user may write to.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._map = _mapped(path, create=True)
        heads = [_number(self._map, half) for half in (0, 1)]
        self._number = max(heads)
        self._half = heads.index(self._number)
        self._end = HALF_BYTES  # nothing can be added before a beginning

    def begin(self, entry: bytes) -> bool:
        """Let ``entry`` be the only one; False: it is too large, and all is as before."""
        if _HEAD.size + _ENTRY.size + len(entry) > HALF_BYTES:
            return False
        number, half = self._number + 1, 1 - self._half
        begin = half * HALF_BYTES
        self._map[begin : begin + _HEAD.size] = bytes(_HEAD.size)
        self._put(half, _HEAD.size, number, entry)
        self._map[begin : begin + _HEAD.size] = _HEAD.pack(number, _checked(b"", number))
        self._number, self._half = number, half
        self._end = _HEAD.size + _ENTRY.size + len(entry)
        return True

    def add(self, entry: bytes) -> bool:
        """Add an entry; False: there is no room for it, so that a beginning must come."""
        after = self._end + _ENTRY.size + len(entry)
        if after > HALF_BYTES:
            return False
        self._put(self._half, self._end, self._number, entry)
        self._end = after
        return True

    def _put(self, half: int, at: int, number: int, entry: bytes) -> None:
        begin = half * HALF_BYTES + at
        inner = begin + _ENTRY.size
        self._map[inner : inner + len(entry)] = entry
        self._map[begin:inner] = _ENTRY.pack(len(entry), _checked(entry, number))


def read(path: Path) -> list[bytes]:
    """The entries that a worker has left, the beginning first; none if there is no such file."""
    try:
        found = _mapped(path, create=False)
    except (OSError, ValueError):
        return []
    with found:
        halves = sorted((_number(found, half), half) for half in (0, 1))
        for number, half in reversed(halves):
            entries = _entries(found, half, number) if number else []
            if entries:
                return entries
    return []


def _mapped(path: Path, *, create: bool) -> mmap.mmap:
    flags = os.O_CREAT if create else 0
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        if create:  # a full disk is an error here, and not a SIGBUS later
            os.posix_fallocate(fd, 0, 2 * HALF_BYTES)
        return mmap.mmap(fd, 2 * HALF_BYTES)
    finally:
        os.close(fd)


def _checked(entry: bytes, number: int) -> int:
    return zlib.crc32(entry, zlib.crc32(number.to_bytes(8, "little")))


def _number(found: mmap.mmap, half: int) -> int:
    """The number of a half's beginning; 0: it has none."""
    begin = half * HALF_BYTES
    number, check = _HEAD.unpack(found[begin : begin + _HEAD.size])
    return int(number) if number and check == _checked(b"", number) else 0


def _entries(found: mmap.mmap, half: int, number: int) -> list[bytes]:
    entries, at, end = [], half * HALF_BYTES + _HEAD.size, (half + 1) * HALF_BYTES
    while at + _ENTRY.size <= end:
        length, check = _ENTRY.unpack(found[at : at + _ENTRY.size])
        at += _ENTRY.size
        entry = found[at : at + length]
        if at + length > end or check != _checked(entry, number):
            break
        entries.append(entry)
        at += length
    return entries


def packed(head: Any, bodies: Sequence[bytes]) -> bytes:
    """A head that JSON can have, and bytes, as one entry."""
    return b"".join((json.dumps([head, [len(x) for x in bodies]]).encode(), b"\n", *bodies))


def unpacked(text: bytes, at: int = 0) -> tuple[Any, list[bytes], int]:
    """The head and the bytes of the entry that begins ``at``, and where it ends.

    Raises:
        ValueError: no whole entry begins there.
    """
    end = text.index(b"\n", at)
    head, lengths = json.loads(text[at:end])
    bodies, at = [], end + 1
    for length in lengths:
        bodies.append(text[at : at + length])
        at += length
    if at > len(text):
        raise ValueError("the entry has no end")
    return head, bodies, at
