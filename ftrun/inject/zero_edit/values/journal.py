"""A small file of a slot: entries that a worker leaves to its successor, even if it is killed.

An entry is a JSON head and byte strings, appended by one write. When there is no room for another
entry, a new file with one entry atomically replaces the old file. A SIGKILL can only tear the last
entry, and a torn entry is ignored.

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
"""More than the first entry may have (legacy.py), so that others can follow it."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_replace = os.replace  # the plain one, before files.py patches it for the script
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Writes the file. The predecessor's entries stay until the first ``begin``.

    Args:
        path: in a directory that only this user may write to.
        loses: the notice to print if the file cannot be written; "": none.
        bytes_max: the limit of the whole file.
    """

    def __init__(self, path: Path, loses: str = "", bytes_max: int = BYTES_MAX) -> None:
        self._path, self._loses, self._bytes_max = path, loses, bytes_max
        self._file: int | None = None
        self._size = 0

    def begin(self, head: Any = None, bodies: Sequence[bytes] = ()) -> bool:
        """Replace the file by one with this entry only.

        False: it is too large or cannot be written, and the old file stays.
        """
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
        """Append an entry; False: there is no room for it, so call ``begin``."""
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
        """Append an entry, or begin the file again with it; False: neither is possible."""
        return self.add(head, bodies) or self.begin(head, bodies)


def read(path: Path) -> list[tuple[Any, list[bytes]]]:
    """The entries that a worker has left, in order; none if there is no such file."""
    found: list[tuple[Any, list[bytes]]] = []
    try:
        text, at = path.read_bytes(), 0
        while at < len(text):
            head, bodies, at = unpacked(text, at)
            found.append((head, bodies))
    except (OSError, ValueError, TypeError):
        pass  # no file, or its last entry is torn
    return found


def packed(head: Any, bodies: Sequence[bytes]) -> bytes:
    """One entry: a head that JSON can represent, and byte strings."""
    return b"".join((_encode([head, [len(x) for x in bodies]]).encode(), b"\n", *bodies))


def unpacked(text: bytes, at: int = 0) -> tuple[Any, list[bytes], int]:
    """The head and the byte strings of the entry at offset ``at``, and the offset of its end.

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
