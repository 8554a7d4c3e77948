"""Files that a worker of one group writes on: none has a line twice after its replacement.

A replacement repeats what followed its predecessor's generation, and would write it once more. So
a worker leaves how long these files were at its last generations, and where it stood in those to
which it does not append. Its replacement cuts off what came later, and goes on at that place. A
file of several workers is not cut: each writes at its own place, or all append. Workers of another
node may do so unseen, so a group that spans nodes has none of this. What the script has written
again in front since the generation cannot be put back, which is told.

Not here: which files count, and what a replacement writes before its place (rewriting.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
import zlib
from pathlib import Path
from typing import Any

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.values.journal import Journal, read

FILE = "appended-{replica_id}.{group_rank}"
FILES_MAX, KEPT = 64, 4
Sizes = dict[str, tuple[int, int]]
"""Of the files, by name: how long one is, and where this worker stands in it; -1: it appends."""
Fronts = dict[str, int]
"""Of the files that the script reads too, a checksum of that length."""
FRONT_BYTES_MAX = 16 << 20


class Appended:
    """The files of one worker. For the main thread.

    Args:
        path: of the slot's file.

    Attributes:
        at_place: of the last place.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._journal = path, Journal(path)
        self._left = _read(path)
        self._lengths: list[tuple[int, Sizes, Fronts]] = []  # at the steps of the last generations
        self._open: dict[str, Any] = {}
        self.at_place: Sizes = {}
        self._before: Sizes = {}

    def opened(self, file: Any, opened: Any) -> None:
        """The script has opened a file to append to it, or to write it in all of its steps."""
        name = os.path.realpath(os.fspath(file))
        is_new = name not in self._open
        if is_new and len(self._open) >= FILES_MAX:
            return
        self._open[name] = weakref.ref(opened)
        if is_new and self._lengths:
            size = os.fstat(opened.fileno()).st_size, _place_of(opened)
            for _, sizes, _ in self._lengths:
                sizes[name] = size
            self._leave()

    def takes(self, step: int) -> None:
        """A generation is made, of the last place."""
        fronts = {}
        for name, (length, _) in self.at_place.items():
            opened = self._open[name]()
            if opened is not None and not opened.closed and opened.readable():
                fronts[name] = _front(name, length)
        self._lengths = [*self._lengths[1 - KEPT :], (step, self.at_place, fronts)]
        if self._open or self._left:
            self._left = []  # of an incarnation that has ended
            self._leave()

    def lengths(self) -> Sizes:
        """How long the files are now."""
        lengths: Sizes = {}
        for name, ref in self._open.items():
            with contextlib.suppress(OSError, ValueError):
                opened, place = ref(), -1
                if opened is not None and not opened.closed:
                    opened.flush()
                    place = _place_of(opened)
                lengths[name] = os.stat(name).st_size, place
        return lengths

    def place(self, name: str) -> int | None:
        """Where the predecessor stood in a file; None: it appended, or that is not known."""
        _, place = self._before.get(name, (0, -1))
        return place if place >= 0 else None

    def _leave(self) -> None:
        self._journal.begin(self._lengths)

    def goes_on(self, step: int) -> None:
        """This worker goes on from its predecessor's generation."""
        left = {at: (sizes, fronts) for at, sizes, fronts in self._left}
        before, fronts = left.get(step, ({}, {}))
        self._before = before
        paths = self._path.parent.glob(FILE.format(replica_id="*", group_rank="*"))
        found = [sizes for path in paths if path != self._path for _, sizes, _ in _read(path)]
        others = {name for sizes in found for name in sizes}
        for name in before.keys() - others:
            length, _ = before[name]
            with contextlib.suppress(OSError):
                if name in fronts and fronts[name] != _front(name, length):
                    told.say(
                        f"{os.path.basename(name)} was written again from its beginning in a step "
                        "that a replacement repeats: some of its lines may be wrong"
                    )
                if os.stat(name).st_size > length:
                    os.truncate(name, length)
        self._lengths = [(step, before, fronts)] if before else []


def _place_of(opened: Any) -> int:
    number: int = opened.fileno()
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND:
        return -1
    return os.lseek(number, 0, os.SEEK_CUR)


def _front(name: str, length: int) -> int:
    with contextlib.suppress(OSError), Path(name).open("rb") as file:
        return zlib.crc32(file.read(min(length, FRONT_BYTES_MAX)))
    return 0


def _read(path: Path) -> list[tuple[int, Sizes, Fronts]]:
    return [tuple(row) for head, _ in read(path)[-1:] for row in head]
