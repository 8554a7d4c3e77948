"""The exception tree and the exit codes. The class of an error tells whose fault it is.

An error text states what happened, to whom, what ftrun does next and what the user can do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn


class ExitCode(IntEnum):
    """ftrun's own exit codes; a script's exit code (or 128 + signal) passes through unchanged."""

    OK = 0
    USAGE = 2
    BUG = 70
    LIGHTHOUSE_UNREACHABLE = 71
    CRASH_LOOP = 72
    PREEMPTED = 75
    REFUSED = 76
    INTERRUPTED = 130


class FtrunError(Exception):
    """Root of all errors that ftrun raises on purpose."""

    exit_code: int = ExitCode.BUG


class UserError(FtrunError):
    """The input is wrong: nothing was started, or the script asked for something impossible."""

    exit_code: int = ExitCode.USAGE


class PeerError(FtrunError):
    """Another process (peer, agent, lighthouse) failed or is gone."""


class ProtocolError(PeerError):
    """Bytes or a message that the protocol does not allow."""


class Bug(FtrunError):
    """ftrun contradicts itself. The text asks the user to report it."""


def assert_never(value: NoReturn) -> NoReturn:
    """The last case of a ``match``: mypy rejects it if a class of the union has no case."""
    raise Bug(f"no case for {value!r}")
