"""``--log-keep``: removes the logs of finished jobs beyond a number, an age or a size.

A directory is only touched if ftrun has marked it as a job's logs and no agent holds its lock. Only
files with ftrun's names are removed; everything else stays and is reported. Not here: the lock
(marker.py), the limit of a running job's files (disk.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftrun.base.errors import UserError
from ftrun.base.words import amount, first_of
from ftrun.logs.layout import MARKER, OWN_FILES
from ftrun.logs.marker import read_marker, sole_lock
from ftrun.logs.units import parse_age, parse_bytes

NAMES_SHOWN_MAX = 5
_JOBS = re.compile(r"(\d+)\s*jobs?")


@dataclass(frozen=True, slots=True)
class Keep:
    """Which finished jobs' logs are kept: the newest ``jobs``, younger than ``age_s``, up to
    ``size_bytes`` together with those of running jobs. None: no limit."""

    jobs: int | None = None
    age_s: float | None = None
    size_bytes: int | None = None

    def __bool__(self) -> bool:
        return self != Keep()


@dataclass(frozen=True, slots=True)
class _Logs:
    """One job's directory. ``changed_at``: the last change of any file in it."""

    path: Path
    size: int
    changed_at: float


def parse_keep(text: str) -> Keep:
    """Parse ``20jobs``, ``7d``, ``10GiB``, or several of them with commas; empty: keep all.

    Raises:
        UserError: the text has another form.
    """
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        jobs = _JOBS.fullmatch(part)
        found = {
            "jobs": int(jobs[1]) if jobs else None,
            "age_s": parse_age(part),
            "size_bytes": parse_bytes(part),
        }
        named = {name: value for name, value in found.items() if value is not None}
        if len(named) != 1 or named.keys() & values.keys():
            raise UserError(
                f"--log-keep {text!r}: give a number of jobs (20jobs), an age (7d, 12h), a size "
                "(10GiB), or one of each with commas. Nothing was started."
            )
        values |= named
    return Keep(**values)  # type: ignore[arg-type]


def apply_keep(log_dir: Path, keep: Keep, own: Path, now_s: float) -> list[str]:
    """Remove logs beyond the limits. Returns sentences for the user.

    ``own``: the directory of the job that starts, which is never touched. ``now_s``: seconds since
    1970.
    """
    sentences: list[str] = []
    removed: list[str] = []
    total = 0
    for logs in _beyond(log_dir, keep, own, now_s):
        size, left = _remove(logs.path)
        if size is None:
            continue
        total += size
        removed.append(logs.path.name)
        if left:
            some = first_of(left, NAMES_SHOWN_MAX)
            sentences.append(f"--log-keep: {some} stayed: ftrun did not write it.")
    if removed:
        jobs = "1 finished job" if len(removed) == 1 else f"{len(removed)} finished jobs"
        sentences.insert(
            0, f"--log-keep: removed the logs of {jobs} from {log_dir}, {amount(total)}: "
            f"{first_of(removed, NAMES_SHOWN_MAX)}.",
        )  # fmt: skip
    return sentences


def _beyond(log_dir: Path, keep: Keep, own: Path, now_s: float) -> Iterator[_Logs]:
    """The finished jobs beyond the limits, newest first."""
    finished = sorted(_marked(log_dir, own), key=lambda logs: logs.changed_at, reverse=True)
    size = 0
    for count, logs in enumerate(finished, 1):
        size += logs.size
        is_old = keep.age_s is not None and now_s - logs.changed_at > keep.age_s
        is_many = keep.jobs is not None and count > keep.jobs
        if is_old or is_many or (keep.size_bytes is not None and size > keep.size_bytes):
            yield logs


def _marked(log_dir: Path, own: Path) -> Iterator[_Logs]:
    with contextlib.suppress(OSError):
        for entry in sorted(log_dir.iterdir()):
            is_other = entry.is_dir() and not entry.is_symlink() and entry.name != own.name
            if not is_other or read_marker(entry) is None:
                continue
            with sole_lock(entry) as is_sole:
                if is_sole:
                    sizes, times = zip(*_facts(entry), strict=True)
                    yield _Logs(entry, sum(sizes), max(times))


def _facts(directory: Path) -> Iterator[tuple[int, float]]:
    """Size and time of each file. The directory's own come first, so that there is always one."""
    yield 0, 0.0
    for path in _files(directory):
        with contextlib.suppress(OSError):
            found = path.lstat()
            yield found.st_size, found.st_mtime


def _remove(directory: Path) -> tuple[int | None, list[Path]]:
    """Remove ftrun's files. Returns their size, and the other files. None: the job runs again."""
    with sole_lock(directory) as is_sole:
        if not is_sole:
            return None, []
        size, left = 0, []
        for path in sorted(_files(directory), key=lambda path: path.name == MARKER):
            name = path.relative_to(directory).as_posix()
            if path.is_symlink() or not OWN_FILES.fullmatch(name):
                left.append(path)
                continue
            with contextlib.suppress(OSError):
                found = path.lstat().st_size
                path.unlink()
                size += found
        for parent, _, _ in os.walk(directory, topdown=False):
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(parent)
        return size, left


def _files(directory: Path) -> Sequence[Path]:
    """All files below, without following links. A link to a directory counts as a file."""
    found = []
    for parent, names, files in os.walk(directory):
        place = Path(parent)
        found += [place / name for name in files]
        found += [place / name for name in names if (place / name).is_symlink()]
    return found
