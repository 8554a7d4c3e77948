"""The directory that holds a job's snapshots: names, the newest whole one, and pruning.

| name                      | what it is                                                           |
|---------------------------|----------------------------------------------------------------------|
| ``step-000000004211``     | a whole snapshot: renamed to this when all of it was on the disk     |
| ``.draft-…``              | a snapshot that is being written, or whose writer has died           |
| ``.trash-…``              | a snapshot that is being removed                                     |
| ``step-….damaged``        | a snapshot whose bytes have changed; kept for people, never loaded   |
| ``step-….given-up``       | a snapshot of a later step than the last one written: the job has    |
|                           | rolled back behind it; kept for people, never loaded                 |
| ``earlier-…``             | snapshots from before ``--resume none``                              |

All snapshots in a directory belong to one history, so the one of the highest step is the newest. A
job resumes from the newest snapshot on which all replicas have agreed, if there is one. There is
one writer at a time. If a writer is cut off from its peers, the next writer removes its draft, and
the first one fails.

Not here: the content of a snapshot (manifest.py, writer.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ftrun.base import clock
from ftrun.base.files import sync, write_whole
from ftrun.snapshots import manifest
from ftrun.snapshots.manifest import Damaged, Manifest, Unknown

DRAFT, TRASH, EARLIER = ".draft-", ".trash-", "earlier-"
DAMAGED, GIVEN_UP = ".damaged", ".given-up"
_NAME = re.compile(r"step-(\d{12,18})")
ENTRIES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Found:
    """A snapshot whose manifest and file sizes are right."""

    path: Path
    manifest: Manifest


def name_of(step: int) -> str:
    """The name of the snapshot of ``step``. Names sort like steps."""
    return f"step-{step:012}"


def snapshots(directory: Path) -> list[Path]:
    """The snapshots, newest first. Empty if the directory does not exist.

    Raises:
        OSError: the directory cannot be read.
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
    """The result of ``look``.

    Attributes:
        newest: the snapshot to resume from.
        passed_over: newer ones that are damaged, and why.
        unagreed: newer whole ones on which not all replicas have agreed.
    """

    newest: Found | None
    passed_over: tuple[tuple[Path, str], ...] = ()
    unagreed: tuple[Path, ...] = ()

    def words(self) -> str:
        """Explains why an older snapshot is taken; "": the newest is taken."""
        if not self.unagreed or self.newest is None:
            return ""
        names = ", ".join(path.name for path in self.unagreed)
        return (
            f"{names}: newer, but skipped, because it is unknown whether all replicas had the same "
            f"parameters then. For {self.newest.path.name} it is known that they had. To take a "
            "newer one nevertheless, move the older ones away"
        )


def look(directory: Path, below: int | None = None) -> Looked:
    """Find the snapshot to resume from; ``below``: only snapshots of earlier steps than this one.

    It is the newest whole snapshot. If the replicas' agreement on that one is still open, it is the
    newest one on which they have agreed, if there is any.

    Raises:
        OSError: the directory cannot be read.
        Unknown: the newest one has a format that this ftrun does not know.
    """
    passed_over: list[tuple[Path, str]] = []
    whole: list[Found] = []
    for path in snapshots(directory):
        if below is not None and _step_of(path) >= below:
            continue
        try:
            found = Found(path, manifest.load(path))
        except Unknown:
            if not whole:
                raise
            continue
        except Damaged as why:
            if not whole:
                passed_over.append((path, str(why)))
            continue
        if found.manifest.agreed or (found.manifest.agreed is None and not whole):
            return Looked(found, tuple(passed_over), tuple(x.path for x in whole))
        whole.append(found)
    return Looked(whole[0] if whole else None, tuple(passed_over))


def agree(path: Path, step: int) -> None:
    """Note that all replicas had the same parameters at ``step``, the snapshot's or a later one.

    Raises:
        Damaged: the snapshot is gone, or not whole.
        OSError: the disk failed.
    """
    found, file = replace(manifest.load(path), agreed=step), path / manifest.NAME
    written = file.stat()
    write_whole(file, found.encode(), is_synced=True)
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))  # keeps the snapshot's age


def _step_of(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found is not None, path
    return int(found[1])


def age_s(directory: Path) -> float | None:
    """The age of the newest snapshot, by the clock of its file system; None: no snapshot.

    It is compared with a file made now on the same file system, so machines whose clocks differ
    agree.

    Raises:
        OSError: the directory cannot be read or written.
    """
    looked = look(directory)
    if looked.newest is None:
        return None
    newest = next(iter(looked.unagreed), looked.newest.path)
    written_at = (newest / manifest.NAME).stat().st_mtime
    probe = directory / f".clock-{secrets.token_hex(8)}"
    try:
        probe.touch()
        os.utime(probe)
        return max(0.0, probe.stat().st_mtime - written_at)
    finally:
        probe.unlink(missing_ok=True)


# ---------------------------------------------------------------- writing


def drafts(directory: Path) -> list[int]:
    """The steps of which only a draft exists. The next writer removes drafts."""
    names = (path.name.removeprefix(DRAFT) for path in directory.glob(f"{DRAFT}*"))
    return sorted(int(found[1]) for name in names if (found := _NAME.match(name)))


def make_draft(directory: Path, step: int, writer: str) -> Path:
    """Make a directory in which to write the snapshot of ``step``.

    Removes the drafts of earlier writers first, because those are dead or cut off from the job.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(directory)
    path = directory / f"{DRAFT}{name_of(step)}-{writer}"
    path.mkdir()
    return path


def drop_draft(path: Path) -> None:
    """Remove a draft that will not become a snapshot."""
    shutil.rmtree(path, ignore_errors=True)


def publish(draft: Path, step: int, lineage: str) -> Path:
    """Rename a complete draft, whose files are on the disk already, to its snapshot's name.

    If there is a whole snapshot of the same state already, it is kept instead.

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
        os.rename(path, directory / f"{TRASH}{draft.name}")  # from a history that was rolled back
    os.rename(draft, path)
    for other in snapshots(directory):
        if _step_of(other) > step:
            os.rename(other, other.with_name(other.name + GIVEN_UP))
    sync(directory)
    return path


def _is_of(path: Path, lineage: str) -> bool:
    try:
        return manifest.load(path).lineage == lineage
    except Damaged:
        return False


def prune(directory: Path, keep: int, *, keeps_agreed: bool = False) -> int:
    """Remove all but the ``keep`` newest snapshots. Returns how many were removed.

    ``keeps_agreed``: also keep the newest one on which all replicas have agreed.
    """
    found = snapshots(directory)
    agreed = next(filter(_is_agreed, found), None) if keeps_agreed else None
    old = [path for path in found[keep:] if path != agreed]
    for path in reversed(old):  # the oldest first; each is renamed before its files are removed
        trash = directory / f"{TRASH}{path.name}"
        shutil.rmtree(trash, ignore_errors=True)
        os.rename(path, trash)
    _remove_leftovers(directory)
    return len(old)


def _is_agreed(path: Path) -> bool:
    try:
        return bool(manifest.load(path).agreed)
    except Damaged:
        return False


def _remove_leftovers(directory: Path) -> None:
    for entry in os.scandir(directory):
        if entry.name.startswith((DRAFT, TRASH)):
            shutil.rmtree(entry.path, ignore_errors=True)


# ---------------------------------------------------------------- setting aside


def set_damaged(path: Path) -> bool:
    """Rename a snapshot whose bytes have changed, so that it is never loaded again.

    Returns:
        False if it is gone: its job is running and pruned it while it was read.
    """
    if not path.exists():
        return False
    with contextlib.suppress(OSError):  # a peer was first, or the directory is read-only
        os.rename(path, path.with_name(path.name + DAMAGED))
    return True


def set_aside(directory: Path) -> Path | None:
    """Move all snapshots out of the way of a new job. Returns the new place; None: no snapshot.

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
