"""Atomic writes: files are written under another name, then renamed; JSON is read.

Not here: the files' content; files that must not replace an existing one (protocol/auth.py,
lighthouse/register/directory.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from ftrun.base.errors import naming


def write_whole(
    path: Path, data: bytes | str, *, mode: int | None = None, is_synced: bool = False
) -> None:
    """Replace the file at ``path`` atomically. No reader ever sees a part of it.

    Args:
        path: its directory exists.
        data: bytes, or text for UTF-8.
        mode: exactly these permissions; None: those that the umask leaves.
        is_synced: the file and its name are on the disk when this returns.

    Raises:
        OSError: it could not be written, and the old file stays. It names a file.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        fd = os.open(draft, flags, 0o666 if mode is None else mode)
        with naming(path), os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)  # whatever the umask
            file.write(data if isinstance(data, bytes) else data.encode())
            file.flush()
            if is_synced:
                os.fsync(fd)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    if is_synced:
        sync(path.parent)


def read_object(path: Path, bytes_max: int = 1 << 20) -> dict[str, Any] | None:
    """The JSON object in a file; None: there is no file, or no object of at most ``bytes_max``."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(bytes_max))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def sync(path: Path) -> None:
    """Fsync a file, or the names in a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
