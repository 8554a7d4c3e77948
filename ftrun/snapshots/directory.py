"""The directory that holds a job's snapshots: their names, the newest whole one, what is kept.

| name                      | what it is                                                           |
|---------------------------|----------------------------------------------------------------------|
| ``step-000000004211``     | a whole snapshot: it got this name when all of it was on the disk    |
| ``.draft-…``              | one that is being written, or whose writer has died                  |
| ``.trash-…``              | one that is being removed                                            |
| ``step-….damaged``        | one whose bytes have changed since; kept for people, never taken     |
| ``earlier-…``             | snapshots from before ``--resume none``                              |

All snapshots in a directory are of one history, so the newest is that of the highest step. There is
one writer at a time. One that was cut off from its peers and writes on loses its draft to the next
writer, and fails.

Not here: the content of a snapshot (manifest.py, writer.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from ftrun.base import clock
from ftrun.base.files import sync
from ftrun.snapshots import manifest
from ftrun.snapshots.manifest import Damaged, Manifest, Unknown

DRAFT, TRASH, EARLIER, DAMAGED = ".draft-", ".trash-", "earlier-", ".damaged"
_NAME = re.compile(r"step-(\d{12,18})")
ENTRIES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Found:
    """A snapshot whose manifest and file sizes are right."""

    path: Path
    manifest: Manifest


def name_of(step: int) -> str:
    """The name of the snapshot of ``step``: names sort as steps do."""
    return f"step-{step:012}"


def snapshots(directory: Path) -> list[Path]:
    """The snapshots, the newest first. A directory that is not there holds none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
    except FileNotFoundError:
        return []
    steps = [(int(found[1]), name) for name in names if (found := _NAME.fullmatch(name))]
    return [directory / name for _, name in sorted(steps, reverse=True)]


@dataclass(frozen=True, slots=True)
class Looked:
    """``newest``: the newest whole snapshot. ``passed_over``: newer ones, and why."""

    newest: Found | None
    passed_over: tuple[tuple[Path, str], ...] = ()


def look(directory: Path, below: int | None = None) -> Looked:
    """Find the newest whole snapshot; ``below``: of a step below this one.

    Raises:
        OSError: the directory cannot be read.
        Unknown: the newest one has a format that this ftrun does not know.
    """
    passed_over: list[tuple[Path, str]] = []
    for path in snapshots(directory):
        if below is not None and _step_of(path) >= below:
            continue
        try:
            return Looked(Found(path, manifest.load(path)), tuple(passed_over))
        except Unknown:
            raise
        except Damaged as why:
            passed_over.append((path, str(why)))
    return Looked(None, tuple(passed_over))


def _step_of(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found is not None, path
    return int(found[1])


def age_s(directory: Path) -> float | None:
    """The age of the newest snapshot, by the clock of its file system; None: no snapshot.

    A file that is made now gives the time now, so that machines whose clocks differ agree.

    Raises:
        OSError: the directory cannot be read or written.
    """
    newest = look(directory).newest
    if newest is None:
        return None
    written_at = (newest.path / manifest.NAME).stat().st_mtime
    probe = directory / f".clock-{secrets.token_hex(8)}"
    try:
        probe.touch()
        os.utime(probe)
        return max(0.0, probe.stat().st_mtime - written_at)
    finally:
        probe.unlink(missing_ok=True)


# ---------------------------------------------------------------- writing


def drafts(directory: Path) -> list[int]:
    """The steps of which there is a draft only. The next writer removes them."""
    names = (path.name.removeprefix(DRAFT) for path in directory.glob(f"{DRAFT}*"))
    return sorted(int(found[1]) for name in names if (found := _NAME.match(name)))


def make_draft(directory: Path, step: int, writer: str) -> Path:
    """A directory to write the snapshot of ``step`` in.

    Drafts of earlier writers are removed first: those are dead, or cut off from the job.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(directory)
    path = directory / f"{DRAFT}{name_of(step)}-{writer}"
    path.mkdir()
    return path


def drop_draft(path: Path) -> None:
    """Remove a draft that does not become a snapshot."""
    shutil.rmtree(path, ignore_errors=True)


def publish(draft: Path, step: int, lineage: str) -> Path:
    """Give a complete draft its name. Its files are on the disk already.

    If a whole one of the same state is there, that one stays.

    Raises:
        OSError: the draft is gone, because another writer has begun.
    """
    directory = draft.parent
    path = directory / name_of(step)
    sync(draft)
    if path.exists():
        if _is_of(path, lineage):
            shutil.rmtree(draft)
            return path
        os.rename(path, directory / f"{TRASH}{draft.name}")  # of a history that was given up
    os.rename(draft, path)
    sync(directory)
    return path


def _is_of(path: Path, lineage: str) -> bool:
    try:
        return manifest.load(path).lineage == lineage
    except Damaged:
        return False


def prune(directory: Path, keep: int) -> int:
    """Remove all but the ``keep`` newest snapshots; returns how many went."""
    old = snapshots(directory)[keep:]
    for path in reversed(old):  # the oldest first, each out of sight before its files go
        trash = directory / f"{TRASH}{path.name}"
        shutil.rmtree(trash, ignore_errors=True)
        os.rename(path, trash)
    _remove_leftovers(directory)
    return len(old)


def _remove_leftovers(directory: Path) -> None:
    for entry in os.scandir(directory):
        if entry.name.startswith((DRAFT, TRASH)):
            shutil.rmtree(entry.path, ignore_errors=True)


# ---------------------------------------------------------------- setting aside


def set_damaged(path: Path) -> bool:
    """Rename a snapshot whose bytes have changed, so that nobody takes it again.

    Returns:
        False if it is gone: its job goes on, and has removed it while it was read.
    """
    if not path.exists():
        return False
    with contextlib.suppress(OSError):  # a peer was first, or the directory is read-only
        os.rename(path, path.with_name(path.name + DAMAGED))
    return True


def set_aside(directory: Path) -> Path | None:
    """Move all snapshots out of the way of a new job. Returns where; None: there was no snapshot.

    Raises:
        OSError: they cannot be moved.
    """
    found = snapshots(directory)
    if not found:
        return None
    aside = directory / f"{EARLIER}{clock.wall():%Y%m%d-%H%M%S}-{os.getpid()}"
    aside.mkdir()
    for path in found:
        os.rename(path, aside / path.name)
    sync(directory)
    return aside
