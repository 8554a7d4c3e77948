"""Files to which a worker of one group appends: none has a line twice after its replacement.

A replacement repeats what followed its predecessor's generation, and would append it once more. So
a worker leaves how long these files were at its last generations, and its replacement cuts off what
came later. A file to which several workers append stays as it is. Workers of another node may do so
unseen, so a group that spans nodes has none of this.

Not here: which files count, and what a replacement writes before its place (rewriting.py).
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import Any

from ftrun.inject.zero_edit.values.journal import Journal, read

FILE = "appended-{replica_id}.{group_rank}"
FILES_MAX, KEPT = 64, 4
Lengths = list[tuple[int, dict[str, int]]]
"""Of the files, by name, at the steps of the last generations."""


class Appended:
    """The files of one worker. For the main thread.

    Args:
        path: of the slot's file.

    Attributes:
        at_place: how long they were at the last place.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._journal = path, Journal(path)
        self._left = _read(path)
        self._lengths: Lengths = []
        self._open: dict[str, Any] = {}
        self.at_place: dict[str, int] = {}

    def opened(self, file: Any, opened: Any) -> None:
        """The script has opened a file to append to it, or to write it in all of its steps."""
        name = os.path.realpath(os.fspath(file))
        is_new = name not in self._open
        if is_new and len(self._open) >= FILES_MAX:
            return
        self._open[name] = weakref.ref(opened)
        if is_new and self._lengths:
            length = os.fstat(opened.fileno()).st_size
            for _, lengths in self._lengths:
                lengths[name] = length
            self._leave()

    def takes(self, step: int) -> None:
        """A generation is made, of the last place."""
        self._lengths = [*self._lengths[1 - KEPT :], (step, self.at_place)]
        if self._open:
            self._leave()

    def lengths(self) -> dict[str, int]:
        """How long the files are now."""
        lengths = {}
        for name, ref in self._open.items():
            with contextlib.suppress(OSError, ValueError):
                opened = ref()
                if opened is not None and not opened.closed:
                    opened.flush()
                lengths[name] = os.stat(name).st_size
        return lengths

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            self._journal.begin(self._lengths)

    def goes_on(self, step: int) -> None:
        """This worker goes on from its predecessor's generation."""
        before = dict(self._left).get(step, {})
        paths = self._path.parent.glob(FILE.format(replica_id="*", group_rank="*"))
        found = [lengths for path in paths if path != self._path for _, lengths in _read(path)]
        others = {name for lengths in found for name in lengths}
        for name in before.keys() - others:
            with contextlib.suppress(OSError):
                if os.stat(name).st_size > before[name]:
                    os.truncate(name, before[name])
        self._lengths = [(step, before)] if before else []


def _read(path: Path) -> Lengths:
    return [(step, lengths) for head, _ in read(path)[-1:] for step, lengths in head]
