"""The file that marks a directory as one job's logs, and shows whether an agent still writes there.

Each agent of the job holds a shared lock on the file while it runs. The kernel releases it however
the agent ends, so a job has ended if the lock is free. Not here: finding jobs by their lighthouse
(status/jobs.py), removing logs (keep.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ftrun.base import clock
from ftrun.base.errors import UserError, naming
from ftrun.base.files import read_object
from ftrun.logs.layout import MARKER

SCHEMA = 1
FILE_BYTES_MAX = 64 * 1024
LOCK_TRIES = 50
LOCK_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Marked:
    """The contents of the marker of a job's logs. ``started``: UTC, in ISO 8601."""

    job_id: str
    host: str
    pid: int
    started: str


class LogDirLock:
    """Held by an agent for as long as it may write below the directory."""

    def __init__(self, directory: Path, job_id: str) -> None:
        """Take the lock.

        Raises:
            UserError: another ftrun is removing these logs right now.
            OSError: the file cannot be written.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(directory / MARKER, flags, 0o644)
        # The first agent writes the file. Later ones find the lock taken, or the file.
        if _lock(self._fd, fcntl.LOCK_EX):
            with naming(directory / MARKER):
                _write(self._fd, Marked(job_id, socket.gethostname(), os.getpid(), _now()))
        for _ in range(LOCK_TRIES):
            if _lock(self._fd, fcntl.LOCK_SH):
                return
            time.sleep(LOCK_PAUSE_S)
        os.close(self._fd)
        raise UserError(
            f"{directory}: another ftrun is removing these logs (--log-keep). Nothing was "
            "started. Try again, or give another --job-id."
        )

    def release(self) -> None:
        """The agent has stopped writing."""
        os.close(self._fd)


def read_marker(directory: Path) -> Marked | None:
    """The marker; None if ftrun has not written this directory, or the file is broken."""
    found = read_object(directory / MARKER, FILE_BYTES_MAX) or {}
    marked = Marked(*(found.get(field.name, 0) for field in fields(Marked)))
    is_sound = all(isinstance(x, str) for x in (marked.job_id, marked.host, marked.started))
    return marked if is_sound and found.get("schema") == SCHEMA else None


@contextlib.contextmanager
def sole_lock(directory: Path) -> Iterator[bool]:
    """Take the exclusive lock. Yields True while this process holds it; False: an agent may run."""
    try:
        fd = os.open(directory / MARKER, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _lock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def is_held(directory: Path) -> bool:
    """Whether an agent that writes there is running, as far as its file system has locks."""
    if not (directory / MARKER).is_file():
        return False
    try:
        fd = os.open(directory / MARKER, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(fd)
    return False


def _lock(fd: int, kind: int) -> bool:
    """Try to take the lock without waiting.

    A file system without locks refuses the exclusive lock and grants the shared one. There a job
    counts as running forever, and its logs are never removed.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        is_taken = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        return kind == fcntl.LOCK_SH and not is_taken
    return True


def _write(fd: int, marked: Marked) -> None:
    text = json.dumps({"schema": SCHEMA, **asdict(marked)})
    os.truncate(fd, 0)
    os.pwrite(fd, f"{text}\n".encode(), 0)


def _now() -> str:
    return clock.wall().isoformat(timespec="seconds")
