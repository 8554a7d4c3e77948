"""The exception tree and the exit codes. The class of an error tells whose fault it is.

An error text states what happened, to whom, what ftrun does next and what the user can do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ftrun.worker_failure import WorkerFailure


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
