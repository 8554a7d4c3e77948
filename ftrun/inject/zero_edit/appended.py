"""Files that a worker keeps writing to: a replacement in its replica repeats no line in them.

A replacement repeats the steps after its predecessor's generation, and would write their lines
again. So a generation has the length of each file at its place, and the worker's offset in files
opened without O_APPEND. For a file opened later, a file of the slot has its length at that moment.

The replacement truncates each file to the known length, and continues at the known offset. It
removes a file that did not exist then, because a script may write a table's header only to a new
file. It does not truncate a file of several workers, where each one appends or has its own offset.
Workers of other nodes put bits of a file's name on the board; another file may have the same bits,
and is then not truncated either.

Before the script rewrites such a file from its beginning (a table with one more column), the old
contents are saved until the next rewrite; those of a file that it reads too, with each generation.
If they are needed and missing (the file was too large), a notice is printed, and a file that the
script appends to is not truncated.

Not here: which files count, and what a replacement writes before its place (rewriting.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import weakref
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.values.journal import Journal, read
from ftrun.snapshots.board import Word, bits_of
from ftrun.snapshots.group_memory import GroupMemory

FILE = "appended-{replica_id}.{group_rank}"
FILES_MAX, BORN_MAX = 64, 4_096
REWRITTEN_BYTES_MAX, REWRITTEN_IN_ALL = 1 << 20, 8 << 20
Sizes = dict[str, tuple[int, int]]
"""By file name: the length in bytes, and this worker's offset; -1: it appends."""
NEVER = -1
FRONT_BYTES, BACK_BYTES = 4 << 10, 64 << 10
"""How many bytes of a file's start and end go into its checksum."""


class Appended:
    """The files of one worker. For the main thread.

    Args:
        path: the slot's file.
        memory: the memory of a replica on several nodes, and this worker's rank; None: the replica
            is on one node.

    Attributes:
        at_place: lengths and offsets at the last place.
    """

    def __init__(self, path: Path, memory: tuple[GroupMemory, int] | None = None) -> None:
        self._path, self._journal, self._memory = path, Journal(path), memory
        rewritten = path.with_name(f"rewritten-{path.name}")  # old contents of files
        self._rewritten = Journal(rewritten, bytes_max=REWRITTEN_IN_ALL)
        self._their_rewritten = read(rewritten) if path.exists() else []
        self._kept: dict[str, int] = {}  # by name: the generation at which it was saved last
        self._is_successor, self._left = path.exists(), _read(path)
        self._is_left = False  # there is a generation, so the slot's file must be written
        self._first: dict[str, tuple[int, int, int]] = {}  # length, offset, generation before it
        self._born: dict[str, int] = {}  # files made in the loop: the newest generation then
        self._step = NEVER  # the step of the newest generation
        self._open: dict[str, Any] = {}
        self.at_place: Sizes = {}
        self._before: Sizes = {}

    def makes(self, file: Any) -> None:
        """The script or a package is about to create a file in the loop."""
        if len(self._born) < BORN_MAX:
            self._born[os.path.realpath(os.fspath(file))] = self._step

    def rewrites(self, file: Any) -> None:
        """The script or a package is about to rewrite a file. If it is a known one, save it."""
        name = os.path.realpath(os.fspath(file))
        if self._step == NEVER or name not in self._open or self._kept.get(name) == self._step:
            return
        with contextlib.suppress(OSError):
            if os.stat(name).st_size <= REWRITTEN_BYTES_MAX:
                self._rewritten.put([name, self._step], [Path(name).read_bytes()])
                self._kept[name] = self._step

    def opened(self, file: Any, opened: Any) -> None:
        """The script has opened a file to append to it, or to keep writing to it."""
        name = os.path.realpath(os.fspath(file))
        is_new = name not in self._open
        if is_new and len(self._open) >= FILES_MAX:
            return
        self._open[name] = weakref.ref(opened)
        if is_new:
            self._tells(name)
            size = os.fstat(opened.fileno()).st_size
            self._first[name] = size, _place_of(opened), self._born.get(name, NEVER)
            if self._is_left:
                self._leave()

    def lengths(self) -> Sizes:
        """The current lengths and offsets of the files."""
        lengths: Sizes = {}
        for name, ref in self._open.items():
            with contextlib.suppress(OSError, ValueError):
                opened, place = ref(), self._before[name][1] if ref is _not_opened else -1
                if opened is not None and not opened.closed:
                    opened.flush()
                    place = _place_of(opened)
                lengths[name] = os.stat(name).st_size, place
        return lengths

    def for_generation(self, step: int) -> dict[str, tuple[int, int, int]]:
        """A generation is made at the last place. Returns length, offset and checksum by file."""
        self._step = step
        if not self._is_left:
            self._is_left = True
            self._leave()
        for name, ref in self._open.items():
            if (opened := ref()) is not None and not opened.closed and opened.readable():
                self.rewrites(name)  # it may do so in the open file, which nobody sees
        known = self.at_place.items()
        return {name: (length, at, _checksum(name, length)) for name, (length, at) in known}

    def place(self, name: str) -> int | None:
        """The predecessor's offset in a file; None: it appended, or the offset is not known."""
        _, place = self._before.get(name, (0, -1))
        return place if place >= 0 else None

    def _tells(self, name: str) -> None:
        if self._memory is not None:
            memory, rank = self._memory
            memory.board.appends(rank, bits_of(name))

    def _is_elsewhere(self, name: str) -> bool:
        """Whether a worker of another node may append to a file as well."""
        if self._memory is None:
            return False
        (memory, _), bits = self._memory, bits_of(name)
        known = enumerate(memory.board.all(Word.APPENDS))
        return any(bits & ~x == 0 for rank, x in known if rank not in memory.here)

    def _leave(self) -> None:
        self._journal.begin(self._first)

    def goes_on(self, step: int, files: Mapping[str, tuple[int, int, int]]) -> None:
        """Restore the files to the predecessor's generation of ``step``, which has ``files``."""
        has_moved = self._memory is not None and bool(self._memory[0].board.decree)
        if not (self._is_successor or has_moved):
            return  # the job starts from a disk: the files may have changed hands since
        self._step = step
        self._before = {name: (length, at) for name, (length, at, _) in self._left.items()}
        self._before |= {name: (length, at) for name, (length, at, _) in files.items()}
        paths = self._path.parent.glob(FILE.format(replica_id="*", group_rank="*"))
        others = {name for path in paths if path != self._path for name in _read(path)}
        for name in self._before:
            self._tells(name)
        for name in self._before.keys() - others:
            if self._is_elsewhere(name):
                continue
            with contextlib.suppress(OSError):
                if name not in files and self._left[name][2] >= step:
                    os.unlink(name)
                else:
                    self._cut(name, step, files)
        self._open = dict.fromkeys(self._before, _not_opened) | self._open
        now = {name: (*x, NEVER) for name, x in (self.lengths() | self._before).items()}
        self._first, self._is_left = now | self._left, True
        self._leave()

    def _cut(self, name: str, step: int, files: Mapping[str, tuple[int, int, int]]) -> None:
        length, place = self._before[name]
        is_other = name in files and files[name][2] != _checksum(name, length)
        if is_other and self._put_back(name, step, length, files[name][2]):
            return
        if is_other:
            told.say(
                f"some lines of {os.path.basename(name)} may be wrong, because the script wrote it "
                "again from its beginning in a step that this replacement repeats"
            )
        if os.stat(name).st_size > length and not (is_other and place < 0):
            os.truncate(name, length)

    def _put_back(self, name: str, step: int, length: int, checksum: int) -> bool:
        """Restore a file's saved contents at the generation of ``step``; False: none fit."""
        every = (x for (known, at), (x,) in self._their_rewritten if known == name and at >= step)
        text = next(every, b"")[:length]
        if len(text) < length or _checksum_of(io.BytesIO(text), length) != checksum:
            return False
        with Path(name).open("r+b") as file:
            file.write(text)
            file.truncate()
        return True


def _not_opened() -> None:
    """Stands for the weak reference of a file that only the predecessor has opened."""


def _place_of(opened: Any) -> int:
    number: int = opened.fileno()
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND:
        return -1
    return os.lseek(number, 0, os.SEEK_CUR)


def _checksum(name: str, length: int) -> int:
    with contextlib.suppress(OSError), Path(name).open("rb") as file:
        return _checksum_of(file, length)
    return 0


def _checksum_of(file: BinaryIO, length: int) -> int:
    front = zlib.crc32(file.read(min(length, FRONT_BYTES)))
    file.seek(max(0, length - BACK_BYTES))
    return zlib.crc32(file.read(min(length, BACK_BYTES)), front)


def _read(path: Path) -> dict[str, tuple[int, int, int]]:
    return {name: tuple(x) for head, _ in read(path)[-1:] for name, x in head.items()}
