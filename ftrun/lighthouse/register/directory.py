"""The register as files of a directory that several hosts may share.

Version N is the file ``v.N``; the highest N counts. It is written under another name, fsynced, and
linked to its name by link(2), which is atomic and fails if the name exists, on NFS, Lustre and GPFS
too.

Old versions are removed, so a writer that was suspended for long may find its name free again.
Therefore, after the link, it checks whether a version exists that is so much higher that its own
name may have been removed. If so, its write does not count. Otherwise it counts, and others may
have built on it already. The link has changed the directory, so an NFS client does not answer this
check from its cache.

A value without a journal names the version whose file has it, and that file stays. Not here: when
anything is written (core/register/).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from ftrun.base.errors import ProtocolError
from ftrun.base.files import sync
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.lighthouse.register.store import StoreError, decode_head, encode_head
from ftrun.lighthouse.sealed_file import sealed, unsealed
from ftrun.protocol.limits import MESSAGE_BYTES_MAX

MAGIC = b"ftrun register 1\n"
VERSION = "v."
DRAFT = "draft."
CORRUPT = "corrupt."
KEPT = 16
"""Versions that stay beside the newest one, for slow readers."""
REMOVED_MAX = 64
"""The most files that one write removes."""
CORRUPT_MAX = 10
READS_MAX = 20

T = TypeVar("T")
log = logging.getLogger(__name__)


class DirectoryStore:
    """One register in one directory. Its calls may hang as long as the file system does."""

    def __init__(self, directory: Path) -> None:
        self.place = str(directory)
        self._directory = directory

    async def read(self, *, with_journal: bool) -> Answered:
        return await _in_thread(lambda: self._read(with_journal=with_journal))

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        return await _in_thread(lambda: self._swap(version, value))

    async def close(self) -> None:
        """Nothing is open between two calls."""

    # ------------------------------------------------------------ in a thread

    def _read(self, *, with_journal: bool) -> Answered:
        for _ in range(READS_MAX):
            version = self._highest()
            if not version:
                return Answered(0, None)
            with contextlib.suppress(FileNotFoundError):  # a newer one has been written
                return Answered(version, self._value(version, with_journal=with_journal))
        raise StoreError(f"{self.place} changes faster than it can be read")

    def _swap(self, version: int, value: Value) -> Accepted | Refused:
        if value.journal is None:
            try:
                at = self._journal_at(version)
            except FileNotFoundError:
                return Refused()
        else:
            at = version + 1
        head = encode_head(value, journal_at=at)
        draft = self._directory / f"{DRAFT}{version + 1}.{secrets.token_hex(8)}"
        try:
            _write(draft, head + b"\n" + (value.journal or b""))
            if not self._link(draft, version + 1):
                return Refused()
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
        self._remove_old(version + 1, at)
        return Accepted(version + 1)

    def _link(self, draft: Path, version: int) -> bool:
        """Give the draft its name; False: another file has, or had, this name."""
        name = self._path(version)
        try:
            os.link(draft, name)
        except FileExistsError:
            # NFS repeats a call whose answer was lost, and then reports that the name exists.
            if draft.stat().st_nlink < 2:
                return False
        sync(self._directory)
        if self._highest() > version + KEPT:  # otherwise this name cannot have been removed before
            name.unlink(missing_ok=True)
            return False
        return True

    def _path(self, version: int) -> Path:
        return self._directory / f"{VERSION}{version}"

    def _highest(self) -> int:
        """The highest version. If a file beyond the listed ones exists, the listing was stale."""
        listed = max((_number(name, VERSION) for name in os.listdir(self._directory)), default=0)
        while self._path(listed + 1).exists():
            listed += 1
        return listed

    def _value(self, version: int, *, with_journal: bool) -> Value | None:
        """Read a version; None: the file is corrupt, which counts as an unwritten register."""
        try:
            value, at, journal = self._parts(version)
            if not with_journal:
                return value
            if at != version:
                journal = self._parts(at)[2] if at else b""
            return replace(value, journal=journal)
        except ProtocolError as error:
            self._keep_aside(version)
            log.warning(
                "%s is corrupt (%s). It is kept; quorum and epoch are rebuilt from what the "
                "agents report.",
                self._path(version),
                error,
            )
            return None

    def _journal_at(self, version: int) -> int:
        """The version whose file has the journal of this version; 0: there is none."""
        try:
            return self._parts(version)[1] if version else 0
        except ProtocolError:
            return 0

    def _parts(self, version: int) -> tuple[Value, int, bytes]:
        """A version's head, the version that has its journal, and the journal in its own file.

        Raises:
            ProtocolError: the file is corrupt.
            FileNotFoundError: it is gone.
        """
        with open(self._path(version), "rb") as file:
            data = file.read(MESSAGE_BYTES_MAX + 4096)
        head, _, journal = unsealed(MAGIC, data, "register").partition(b"\n")
        value, more = decode_head(head)
        at = more.get("journal_at")
        if not isinstance(at, int) or not 0 <= at <= version:
            raise ProtocolError(f"its journal is in version {at!r}")
        return value, at, journal

    def _keep_aside(self, version: int) -> None:
        """Keep a corrupt file under a second name, for people to look at."""
        if sum(name.startswith(CORRUPT) for name in os.listdir(self._directory)) < CORRUPT_MAX:
            with contextlib.suppress(OSError):
                os.link(self._path(version), self._directory / f"{CORRUPT}{version}")

    def _remove_old(self, newest: int, journal_at: int) -> None:
        """Remove old versions, and drafts of killed processes."""
        removed = 0
        for name in os.listdir(self._directory):
            number = _number(name, VERSION) or _number(name.rpartition(".")[0], DRAFT)
            if 0 < number < newest - KEPT and number != journal_at and removed < REMOVED_MAX:
                removed += 1
                with contextlib.suppress(OSError):
                    (self._directory / name).unlink()


def _number(name: str, prefix: str) -> int:
    """The number after the prefix; 0: there is none."""
    rest = name.removeprefix(prefix)
    return int(rest) if rest != name and rest.isascii() and rest.isdecimal() else 0


def _write(path: Path, payload: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(sealed(MAGIC, payload))
        file.flush()
        os.fsync(file.fileno())


async def _in_thread(call: Callable[[], T]) -> T:
    """Run a call that may hang, without blocking the event loop or the end of the process.

    Raises:
        StoreError: it has failed.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = call()
        except OSError as error:
            failure = StoreError(error.strerror or str(error))
        except Exception as error:  # noqa: BLE001 - it is raised in the event loop.
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, name="the register's store", daemon=True).start()
    return await done
