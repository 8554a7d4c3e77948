"""A small file that is whole at any moment: a magic line, a digest and a payload.

A new version is written under another name, fsynced and renamed, so a reader finds the old or the
new payload, never half of one. A file that is not needed after a crash of the machine is not
fsynced: it stays whole if its writer is killed, and an fsync takes seconds on a busy disk. Not
here: its content (journal.py, torchft.py), files of the same form that have versions
(register/directory.py).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ftrun.base.errors import ProtocolError, UserError
from ftrun.base.files import write_whole

DIGEST_BYTES = 16
CORRUPT_MAX = 100
"""The number of corrupt files that are kept. Beyond it the last one is replaced."""


class SealedFile:
    """One such file. ``what``: its name in errors. One process at a time.

    ``outlives``: whether it is needed after a crash of the machine.
    """

    def __init__(
        self, path: Path, magic: bytes, what: str, bytes_max: int, *, outlives: bool = True
    ) -> None:
        self._outlives = outlives
        self.path = path
        self._magic = magic
        self._what = what
        self._bytes_max = bytes_max

    def read(self) -> bytes | None:
        """The last payload; None: there is no file.

        Raises:
            ProtocolError: the file is corrupt.
            UserError: the file exists but cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                data = file.read(self._bytes_max + 1024)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(
                f"The {self._what} {self.path} cannot be read: {error.strerror}. "
                "The lighthouse was not started. Give another directory, or mend this one."
            ) from error
        return unsealed(self._magic, data, self._what)

    def write(self, payload: bytes) -> None:
        """Replace the payload. If it ``outlives`` a crash, it is durably on disk when this returns.

        Raises:
            OSError: it could not be written; the old payload stays.
        """
        data = sealed(self._magic, payload)
        write_whole(self.path, data, mode=0o600, is_synced=self._outlives)

    def keep_aside(self) -> Path:
        """Rename a corrupt file, for people to look at. Returns its new name."""
        aside = self.path.with_name(f"{self.path.name}.corrupt-{self._next_number()}")
        os.replace(self.path, aside)
        return aside

    def _next_number(self) -> int:
        for number in range(1, CORRUPT_MAX):
            if not self.path.with_name(f"{self.path.name}.corrupt-{number}").exists():
                return number
        return CORRUPT_MAX


def sealed(magic: bytes, payload: bytes) -> bytes:
    """The content of a file: the magic line, the digest, the payload."""
    return magic + hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest() + payload


def unsealed(magic: bytes, data: bytes, what: str) -> bytes:
    """The payload of a file with this content; ``what``: its name in errors.

    Raises:
        ProtocolError: it is corrupt.
    """
    if not data.startswith(magic):
        raise ProtocolError(f"it does not begin as a {what} does")
    payload = data[len(magic) + DIGEST_BYTES :]
    if data != sealed(magic, payload):
        raise ProtocolError("its checksum is wrong")
    return payload
