"""The journal: the facts that a lighthouse needs after a kill -9, in one small file.

The file is a magic line, a digest and one protobuf record. A new one is written under another name,
fsynced and renamed, so a reader finds the old record or the new one, never half of one. A corrupt
file is kept as ``*.corrupt-<n>`` for people, and the state is rebuilt from the agents' reports. Not
here: the content of the record and when it must be on disk (core/lighthouse/machine.py).
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from ftrun import clock
from ftrun.core.ids import EPOCH_MAX
from ftrun.core.lighthouse.events import JournalState
from ftrun.errors import ProtocolError, UserError
from ftrun.protocol.limits import MESSAGE_BYTES_MAX
from ftrun.protocol.records import RecordCodec

MAGIC = b"ftrun journal 1\n"
DIGEST_BYTES = 16
CORRUPT_MAX = 100
"""The number of corrupt files kept; beyond it the last one is replaced."""

log = logging.getLogger(__name__)
_CODEC = RecordCodec(JournalState)


class JournalFile:
    """The journal file of one lighthouse. One process at a time (main.py holds the lock)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.writes = 0
        self.write_s = 0.0

    def load(self) -> JournalState | None:
        """The last state written; None if there is no file or it is corrupt.

        Raises:
            UserError: the file exists but cannot be read.
        """
        try:
            with open(self._path, "rb") as file:
                data = file.read(MESSAGE_BYTES_MAX + 1024)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(
                f"The journal {self._path} cannot be read: {error.strerror}. "
                "The lighthouse was not started. Give another --state-dir, or mend this one."
            ) from error
        try:
            return _checked(_CODEC.decode(_unwrap(data)))
        except ProtocolError as error:
            self._keep_aside(str(error))
            return None

    def write(self, state: JournalState) -> None:
        """Write ``state``; it is durably on disk when this returns.

        Raises:
            OSError: it could not be written; the old record stays.
        """
        started = clock.now()
        draft = self._path.with_suffix(".draft")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(_wrap(_CODEC.encode(state)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)
        _fsync_directory(self._path.parent)
        self.writes += 1
        self.write_s += clock.now() - started

    def _keep_aside(self, why: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.corrupt-{self._next_number()}")
        os.replace(self._path, aside)
        log.warning(
            "the journal %s is corrupt (%s). It is kept as %s; quorum and epoch are rebuilt from "
            "what the agents report.",
            self._path,
            why,
            aside,
        )

    def _next_number(self) -> int:
        for number in range(1, CORRUPT_MAX):
            if not self._path.with_name(f"{self._path.name}.corrupt-{number}").exists():
                return number
        return CORRUPT_MAX


def _checked(state: JournalState) -> JournalState:
    """Reject the last possible epoch: no later lighthouse could start."""
    if state.epoch >= EPOCH_MAX:
        raise ProtocolError(f"its epoch {state.epoch} is the last one there is, or beyond")
    return state


def _wrap(payload: bytes) -> bytes:
    return MAGIC + _digest(payload) + payload


def _unwrap(data: bytes) -> bytes:
    start = len(MAGIC) + DIGEST_BYTES
    if not data.startswith(MAGIC):
        raise ProtocolError("it does not begin as a journal does")
    payload = data[start:]
    if len(data) < start or data[len(MAGIC) : start] != _digest(payload):
        raise ProtocolError("its checksum is wrong")
    return payload


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()


def _fsync_directory(path: Path) -> None:
    """Make the rename itself durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
