"""A copy of the current directory in which a trial runs, so that it leaves no files behind.

Each run begins with the same files at the same path. Large files are links to the originals,
because data sets are only read. ``..`` and everything above lead to the same directories as in the
original. Not here: the runs (command.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType

from ftrun.base.errors import UserError
from ftrun.base.words import counted

LINKED_BYTES = 64 << 20
"""Files of this size or larger are links to the originals."""
BYTES_MAX, FILES_MAX, SIBLINGS_MAX, LINES_MAX = 2 << 30, 50_000, 1_000, 2_000
LEFT_OUT = frozenset({".git", "__pycache__", "node_modules", "ftrun-logs"})
_NUMBER = re.compile(rb"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}|\d+")
"""Also matches a UUID."""
Due = Mapping[str, tuple[int, int]]
"""By file name, a range of bytes (begin, end)."""


class How(IntEnum):
    """How a file differs from the undisturbed run's; higher values are more specific."""

    NUMBERS, LINES, BYTES, COUNT, ABSENT = range(5)


@dataclass(frozen=True, slots=True)
class Difference:
    """A file's difference from the undisturbed run's. ``lines``: how many more it has; below 0:
    fewer."""

    how: How
    lines: int = 0

    @property
    def is_lack(self) -> bool:
        """Whether the file, or lines of it, are missing."""
        return self.how is How.ABSENT or self.lines < 0

    def __str__(self) -> str:
        """The difference in words, for a sentence about the file."""
        if self.how is How.COUNT:
            return f"{'lacks' if self.lines < 0 else 'has'} {counted(abs(self.lines), 'line')}" + (
                " more" * (self.lines > 0)
            )
        return {
            How.NUMBERS: "has the same lines with other numbers",
            How.LINES: "has other lines",
            How.BYTES: "has other bytes",
        }.get(self.how, "was not written")


@dataclass(frozen=True, slots=True)
class Files:
    """A comparison of the files of two runs.

    Attributes:
        equal: both have written them alike.
        unlike: by name, how it differs.
        lost: files that lack exactly what was due.
        more: files of the run with deaths that match no file of the undisturbed run.
    """

    equal: list[str] = field(default_factory=list)
    unlike: dict[str, Difference] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    more: list[str] = field(default_factory=list)


class Place:
    """The directory for the runs of one trial.

    Args:
        directory: the directory in which it is made.
        source: the directory that is copied, as an absolute path.

    Raises:
        UserError: it holds more than a trial copies.
    """

    def __init__(self, directory: Path, source: Path) -> None:
        self._source = source
        above, root = Path(source.anchor), directory / "here"
        for name in source.parts[1:]:
            root.mkdir()
            _link_siblings(above, root, name)
            root, above = root / name, above / name
        self.path = root
        self._kept = directory.resolve()
        self._before: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """Make the copy of the source in which a run works."""
        total = 0
        self.path.mkdir(parents=True)
        for number, (name, entry) in enumerate(_walk(self._source, leaves_out=self._kept)):
            to = self.path / name
            if entry.is_dir(follow_symlinks=False):
                to.mkdir()
                continue
            if entry.is_symlink():
                to.symlink_to(os.readlink(entry.path))
                continue
            if not entry.is_file():
                continue
            size = entry.stat().st_size
            if size >= LINKED_BYTES:
                to.symlink_to(entry.path)
                continue
            total += size
            if total > BYTES_MAX or number > FILES_MAX:
                raise UserError(
                    f"ftrun check runs the script in copies of the current directory, and "
                    f"{self._source} holds more than {BYTES_MAX >> 30} GiB in files below "
                    f"{LINKED_BYTES >> 20} MiB, or more than {FILES_MAX} files. Nothing was "
                    "started. Call it in a directory with the script alone"
                )
            shutil.copy2(entry.path, to)
        self._before = _state(self.path)

    def end(self, name: str) -> dict[str, Path]:
        """Keep a run's files under ``name``. Returns the files that it has written, by original
        name."""
        after = _state(self.path)
        written = [x for x, state in after.items() if self._before.get(x) != state]
        kept = self._kept / name
        self.path.rename(kept)
        return {x: kept / x for x in written}


def due_after(sizes: Mapping[str, Mapping[str, int]], step: int) -> Due:
    """The parts of files that a replica has written from ``step`` to the next step.

    Args:
        sizes: by file, its size after each step at which it had changed.
    """
    return {name: (_size(of, step), _size(of, step + 1)) for name, of in sizes.items()}


def _size(of: Mapping[str, int], step: int) -> int:
    return [0, *(size for after, size in of.items() if int(after) <= step)][-1]


def compare(
    undisturbed: dict[str, Path],
    killed: dict[str, Path],
    due: Due,
    early: Collection[str] = frozenset(),
    starts: Mapping[str, int] = MappingProxyType({}),
) -> Files:
    """Compare the files that a run with deaths has written with those of the undisturbed run.

    Args:
        due: by file, the range of bytes that a replica killed during a write would have written
            before its successor could join, taken from the undisturbed run. No other process writes
            it.
        early: files of ``killed`` that were last written before any step. Output of a start that
            reached no step is not part of the file that the next start began.
        starts: how many bytes the undisturbed run has written to a file before its first step. Each
            start of the job that appends to the file writes these again.
    """
    files, left = Files(), set(killed)
    for name, alike in sorted(_pairs(undisturbed, killed, early).items()):
        path = undisturbed[name]
        if not alike:
            files.unlike[name] = Difference(How.ABSENT)
            start, end = due.get(name, (0, 0))
            if start == 0 < end:
                files.lost.add(name)
            continue
        left.discard(alike[-1])
        if _digest(path) in (_digest(killed[alike[-1]]), _digest(*(killed[x] for x in alike))):
            files.equal.append(name)
            continue
        ours, theirs = b"".join(killed[x].read_bytes() for x in alike), path.read_bytes()
        ours = _once(ours, theirs[: starts.get(name, 0)])
        if ours == theirs:
            files.equal.append(f"{name} (but for what a start wrote that came to no step)")
            continue
        files.unlike[name] = found = _difference(theirs, ours)
        if found.is_lack and _lacks_only(theirs, ours, *due.get(name, (0, 0))):
            files.lost.add(name)
    files.more.extend(sorted(left))
    lacking = {name for name, found in files.unlike.items() if found.is_lack}
    for name in lacking - due.keys():
        # No worker reports it: native code has written it together with the files beside it.
        beside = {x for x in lacking if os.path.dirname(x) == os.path.dirname(name)}
        if beside & due.keys() and beside & due.keys() <= files.lost:
            files.lost.add(name)
    return files


def _once(text: bytes, first: bytes) -> bytes:
    """``text`` without what a start wrote that came to no step, if the next start has written it
    again, numbers aside. ``first``: what a start writes."""
    begun, lines = _form_of(first), text.splitlines(keepends=True)
    while begun and _form_of(b"".join(lines[: 2 * len(begun)])) == 2 * begun:
        lines = lines[len(begun) :]
    return b"".join(lines)


def _form_of(text: bytes) -> list[bytes]:
    """The lines, with all numbers replaced by 0."""
    return _NUMBER.sub(b"0", text).splitlines()


def _pairs(
    undisturbed: Collection[str], killed: Collection[str], early: Collection[str]
) -> dict[str, list[str]]:
    """Match each file of the undisturbed run with those of the same name or form.

    Files match by form if their names are equal without numbers. Each restart of a replica may
    write a separate file. Together they equal the undisturbed one.
    """
    pairs = {name: [name] for name in undisturbed if name in killed}
    theirs, ours = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in sorted({*undisturbed, *killed} - pairs.keys()):
        (theirs if name in undisturbed else ours)[form_of(name)].append(name)
    for form, names in theirs.items():
        left = [x for x in ours[form] if x not in early]
        left = left if len(left) >= len(names) else ours[form][-len(names) :]
        have_one_each = len(left) <= len(names)
        for name in names:
            pairs[name] = left[:1] if have_one_each else [*left]
            left = [x for x in left if x not in pairs[name][-1:]]
    return pairs


def form_of(name: str) -> str:
    """A name with all numbers replaced by 0, because no two runs share times and process ids."""
    return _NUMBER.sub(b"0", os.fsencode(name)).decode(errors="replace")


def _difference(theirs: bytes, ours: bytes) -> Difference:
    if b"\0" in theirs[:8192] or b"\0" in ours[:8192]:
        return Difference(How.BYTES)
    if more := ours.count(b"\n") - theirs.count(b"\n"):
        return Difference(How.COUNT, more)
    is_alike = _form_of(theirs) == _form_of(ours)
    return Difference(How.NUMBERS if is_alike else How.LINES)


def _lacks_only(theirs: bytes, ours: bytes, start: int, end: int) -> bool:
    """Whether ``ours`` differs only by lacking lines of the range, in one place, numbers aside."""
    parts = theirs[:start], theirs[start:end], theirs[end:], ours
    before, due, after, whole = map(_form_of, parts)
    kept = len(whole) - len(before) - len(after)
    return any(
        whole == [*before, *due[:at], *due[len(due) - kept + at :], *after]
        for at in range(min(kept + 1, LINES_MAX))
    )


def _walk(
    root: Path, within: str = "", leaves_out: Path | None = None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All entries, each directory before its content; without the directory ``leaves_out``."""
    with os.scandir(root / within) as entries:
        for entry in sorted(entries, key=lambda x: x.name):
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name in LEFT_OUT or (is_directory and _is_environment(entry.path)):
                continue
            if leaves_out is not None and os.path.realpath(entry.path) == str(leaves_out):
                continue
            name = os.path.join(within, entry.name)
            yield name, entry
            if is_directory:
                yield from _walk(root, name, leaves_out)


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _link_siblings(above: Path, root: Path, name: str) -> None:
    others: list[os.DirEntry[str]] = []
    with contextlib.suppress(PermissionError), os.scandir(above) as entries:
        others = [entry for entry in entries if entry.name != name]
    for entry in others[:SIBLINGS_MAX]:
        (root / entry.name).symlink_to(entry.path)


def _state(path: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for name, entry in _walk(path):
        if entry.is_file(follow_symlinks=False):
            stat = entry.stat()
            found[name] = (stat.st_size, stat.st_mtime_ns)
    return found


def _digest(*paths: Path) -> bytes:
    """The digest of the concatenated files."""
    hashed = hashlib.blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                hashed.update(piece)
    return hashed.digest()
