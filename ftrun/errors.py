"""The exception tree and the exit codes. The class of an error tells whose fault it is.

An error text states what happened, to whom, what ftrun does next and what the user can do.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn


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


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """One worker that did not end well, as its launching program sees it.

    ``rank``: its global rank. ``status``: its exit code, or minus the signal. ``restart``: which
    life of its replica it was, from 0 on. ``at``: when, in seconds since the epoch. ``error_type``,
    ``message``, ``traceback``: its uncaught exception; "" if it raised none.
    """

    rank: int
    replica_id: str
    group_rank: int
    pid: int
    status: int
    restart: int
    at: float
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    reason: str = ""

    @property
    def signal_name(self) -> str:
        """``SIGKILL`` and the like; "" if no signal ended it."""
        if self.status >= 0:
            return ""
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"

    def describe(self) -> str:
        """One sentence: who, and the exception, the signal or the exit code."""
        place = f"replica {self.replica_id}, worker {self.group_rank}, pid {self.pid}"
        who = f"rank {self.rank} ({place})"
        if self.error_type:
            message = self.message.strip().partition("\n")[0]
            return f"{who} raised {self.error_type}" + (f": {message}" if message else "")
        if self.reason:
            return f"{who}: {self.reason}"
        if self.status < 0:
            return f"{who} was ended by {self.signal_name}"
        return f"{who} ended with exit code {self.status}"


class FtrunError(Exception):
    """Root of all errors that ftrun raises on purpose."""

    exit_code: int = ExitCode.BUG


class UserError(FtrunError):
    """The input is wrong: nothing was started, or the script asked for something impossible."""

    exit_code: int = ExitCode.USAGE


class LaunchError(FtrunError):
    """A job that a Python program has launched did not finish; launching/story.py makes it.

    ``exit_code``: of the job, as of ``ftrun run``. ``reason``: why the job has ended. ``failures``:
    the workers that failed in the last life of their replica, first cause first. ``earlier``: those
    that were answered by a restart. ``values``: by global rank, of the workers that have finished.
    """

    def __init__(
        self,
        exit_code: int,
        reason: str,
        failures: tuple[WorkerFailure, ...] = (),
        earlier: tuple[WorkerFailure, ...] = (),
        values: dict[int, Any] | None = None,
    ) -> None:
        self.exit_code = exit_code
        self.reason = reason
        self.failures = failures
        self.earlier = earlier
        self.values = values or {}
        more = f" (the first of {len(failures)} failures)" if len(failures) > 1 else ""
        cause = f"\n{failures[0].describe()}{more}" if failures else ""
        trace = failures[0].traceback.rstrip() if failures else ""
        super().__init__(
            f"The job has ended with exit code {exit_code}: {reason.rstrip('.')}.{cause}"
            + (trace and f"\n{trace}")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles with all its parts, because an executor or a queue may carry it."""
        parts = (self.exit_code, self.reason, self.failures, self.earlier, self.values)
        return type(self), parts


class PeerError(FtrunError):
    """Another process (peer, agent, lighthouse) failed or is gone."""


class ProtocolError(PeerError):
    """Bytes or a message that the protocol does not allow."""


class Bug(FtrunError):
    """ftrun contradicts itself. The text asks the user to report it."""


def assert_never(value: NoReturn) -> NoReturn:
    """The last case of a ``match``: mypy rejects it if a class of the union has no case."""
    raise Bug(f"no case for {value!r}")
