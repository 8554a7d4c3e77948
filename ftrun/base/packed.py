"""A function, packed for workers, and the values that its workers return: files in one directory.

The program that launches a function makes the directory with mode 0700 and writes one file. Each
worker reads that file, calls the function, and writes one file with its value. The files contain
pickles, which run code when they are read. So a file is read only if this user owns it, and data
from a socket is never written to one.

Not here: how a function is packed (launching/function.py), how a worker calls it
(inject/function.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftrun.base.errors import UserError
from ftrun.base.files import write_whole

CALL_BYTES_MAX = 256 << 20
VALUE_BYTES_MAX = 256 << 20
"""The limits of a packed call, and of the value of one worker."""
_CALL = "call"
_VALUE, _REFUSAL = b"v", b"e"
REFUSAL_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The main module of the program that launches a packed call.

    ``main_name``, ``main_path``: the module or the file of that program, which a worker runs under
    the name ``__mp_main__``; both empty: the call does not need it.
    """

    path: list[str]
    argv: list[str]
    main_name: str = ""
    main_path: str = ""


class NoValue(Exception):
    """A worker has returned no value that can be read back; the text has the cause."""


class _Here:
    """``is_in_main``: this process is a worker, and is running its launcher's main module."""

    is_in_main = False


def write_call(directory: Path, around: Surroundings, data: bytes) -> None:
    """Write the call, a pickle of (function, args, kwargs).

    Raises:
        UserError: it is too large, or the disk is full.
    """
    if len(data) > CALL_BYTES_MAX:
        raise UserError(
            f"The function and its arguments are {len(data) >> 20} MiB when packed; "
            f"{CALL_BYTES_MAX >> 20} MiB is the most. Nothing was started. Pass the path of a file "
            "instead, and let the function read it."
        )
    head = json.dumps(asdict(around)).encode() + b"\n"
    try:
        write_whole(directory / _CALL, head + data, mode=0o600)
    except OSError as error:
        raise UserError(
            f"The function cannot be written to {directory} ({error.strerror}). Nothing was "
            "started. Set TMPDIR to a directory with room."
        ) from None


def read_call(directory: Path) -> tuple[Surroundings, bytes]:
    """The call and its surroundings; the caller must unpickle it.

    Raises:
        OSError: there is no such file, or it is another user's.
    """
    head, _, data = _read(directory / _CALL).partition(b"\n")
    return Surroundings(**json.loads(head)), data


def write_value(directory: Path, incarnation: str, group_rank: int, value: Any) -> None:
    """Write a worker's value, or why it cannot be pickled, because a restart would not help.

    Raises:
        OSError: the disk is full.
    """
    buffer = _Limited()
    try:
        buffer.write(_VALUE)
        pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
        content = buffer.getvalue()
    except Exception as error:  # noqa: BLE001 - whatever the value's own methods raise
        text = (
            f"a value of type {type(value).__qualname__} was returned and cannot be pickled "
            f"({type(error).__name__}: {error})"
        )
        content = _REFUSAL + text[:REFUSAL_CHARS_MAX].encode(errors="replace")
    write_whole(directory / value_name(incarnation, group_rank), content, mode=0o600)


def read_value(directory: Path, incarnation: str, group_rank: int) -> Any:
    """The value of a worker that has finished; None if its function exited by ``sys.exit(0)``.

    Raises:
        NoValue: it cannot be read back.
    """
    try:
        content = _read(directory / value_name(incarnation, group_rank))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NoValue(f"the file with its value cannot be read: {error}") from error
    if content[:1] == _REFUSAL:
        raise NoValue(content[1:].decode(errors="replace"))
    try:
        return _Unpickler(io.BytesIO(content[1:])).load()
    except Exception as error:
        raise NoValue(
            f"its value cannot be unpickled here ({type(error).__name__}: {error})"
        ) from error


def value_name(incarnation: str, group_rank: int) -> str:
    """The name of the file with one worker's value."""
    return f"value-{incarnation}-{group_rank}"


@contextlib.contextmanager
def running_main() -> Iterator[None]:
    """Note that this worker is running its launcher's main module, which must launch nothing."""
    _Here.is_in_main = True
    try:
        yield
    finally:
        _Here.is_in_main = False


def is_in_main() -> bool:
    """Whether this worker is running its launcher's main module."""
    return _Here.is_in_main


class _Limited(io.BytesIO):
    """A buffer that refuses to grow above ``VALUE_BYTES_MAX``."""

    def write(self, data: Any, /) -> int:
        """Append ``data``.

        Raises:
            ValueError: the value is too large.
        """
        if self.tell() + len(data) > VALUE_BYTES_MAX:
            raise ValueError(f"it is larger than {VALUE_BYTES_MAX >> 20} MiB")
        return super().write(data)


class _Unpickler(pickle.Unpickler):
    """Finds the classes of a worker's ``__mp_main__`` in this process's ``__main__``."""

    def find_class(self, module: str, name: str, /) -> Any:
        """As the base class, except for that one module."""
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if facts.st_uid != os.geteuid():
            raise PermissionError(f"{path} is another user's")
        return file.read()
