"""A small file of a slot: entries that a worker leaves to its successor, also if it is killed.

An entry is a head that JSON can have, and bytes. It is added by one write. When there is no room
for one more, a file with a new beginning takes the place of the old one. If a SIGKILL tears an
entry, it is the last one, which then does not count.

Not here: the content of the entries (legacy.py, randomness.py, files.py, directories.py, kept.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftrun.inject.zero_edit import told

BYTES_MAX = 384 << 10
"""Above what a beginning may take (legacy.py), so that entries can follow it."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_replace = os.replace  # before the script's is another one (files.py)
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """For the one worker that writes. What its predecessor has left stays until it begins.

    Args:
        path: in a directory that only this user may write to.
        loses: what nobody can follow without this file, for people; "": nobody is told.
        bytes_max: of the whole file.
    """

    def __init__(self, path: Path, loses: str = "", bytes_max: int = BYTES_MAX) -> None:
        self._path, self._loses, self._bytes_max = path, loses, bytes_max
        self._file: int | None = None
        self._size = 0

    def begin(self, head: Any = None, bodies: Sequence[bytes] = ()) -> bool:
        """Let this entry be the only one; False: it is too large, or cannot be written, and all is
        as before."""
        entry = packed(head, bodies)
        try:
            return len(entry) <= self._bytes_max and self._begin(entry)
        except OSError as error:
            if self._loses:
                told.once(f"{self._loses}: {error}")
            return False

    def _begin(self, entry: bytes) -> bool:
        draft = self._path.with_name(f".{self._path.name}.draft")
        file = os.open(draft, _FLAGS, 0o600)
        try:
            if os.write(file, entry) < len(entry):
                raise OSError(f"{self._path}: there is no room for {len(entry)} bytes")
            _replace(draft, self._path)
        except BaseException:
            os.close(file)
            raise
        if self._file is not None:
            os.close(self._file)
        self._file, self._size = file, len(entry)
        return True

    def add(self, head: Any, bodies: Sequence[bytes] = ()) -> bool:
        """Add an entry; False: there is no room for it, so that a beginning must come."""
        entry = packed(head, bodies)
        if self._file is None or self._size + len(entry) > self._bytes_max:
            return False
        with contextlib.suppress(OSError):
            if os.write(self._file, entry) == len(entry):
                self._size += len(entry)
                return True
        self._size = self._bytes_max  # nothing may follow half an entry
        return False

    def put(self, head: Any, bodies: Sequence[bytes] = ()) -> bool:
        """Add an entry, or let it be the only one; False: neither can be."""
        return self.add(head, bodies) or self.begin(head, bodies)


def read(path: Path) -> list[tuple[Any, list[bytes]]]:
    """The entries that a worker has left, the beginning first; none if there is no such file."""
    found: list[tuple[Any, list[bytes]]] = []
    try:
        text, at = path.read_bytes(), 0
        while at < len(text):
            head, bodies, at = unpacked(text, at)
            found.append((head, bodies))
    except (OSError, ValueError, TypeError):
        pass  # the last one was torn
    return found


def packed(head: Any, bodies: Sequence[bytes]) -> bytes:
    """A head that JSON can have, and bytes, as one entry."""
    return b"".join((_encode([head, [len(x) for x in bodies]]).encode(), b"\n", *bodies))


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
