"""The exception tree and the exit codes. The class of an error shows whose fault it is.

An error text states what happened, to whom, what ftrun does next and what the user can do.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftrun.base.worker_failure import WorkerFailure


class ExitCode(IntEnum):
    """ftrun's own exit codes; a script's exit code (or 128 + signal) passes through unchanged."""

    OK = 0
    USAGE = 2
    BUG = 70
    LIGHTHOUSE_UNREACHABLE = 71
    CRASH_LOOP = 72
    WILL_NOT_HELP = 73
    NO_QUORUM = 74
    PREEMPTED = 75
    REFUSED = 76
    DEGRADED = 77
    CORRUPTED = 78
    INTERRUPTED = 130


OF_ONE_NODE = frozenset({ExitCode.LIGHTHOUSE_UNREACHABLE, ExitCode.PREEMPTED, ExitCode.REFUSED})
"""Exit codes of a node's agent that do not mean that the job has ended."""


class ExitReason(NamedTuple):
    """A row of the table of exit codes. ``kind``: the word in ``exit.json``."""

    kind: str
    text: str


EXIT_REASONS: dict[int, ExitReason] = {
    ExitCode.OK: ExitReason("finished", "all replicas have finished"),
    ExitCode.USAGE: ExitReason("usage", "the command, a setting or this machine is wrong"),
    ExitCode.BUG: ExitReason("bug", "ftrun contradicts itself, or has lost its own processes"),
    ExitCode.LIGHTHOUSE_UNREACHABLE: ExitReason(
        "lighthouse_lost",
        "no lighthouse has answered within --join-timeout, or for --lighthouse-timeout later",
    ),
    ExitCode.CRASH_LOOP: ExitReason(
        "crash_loop", "a replica raised the same error three times without a new step"
    ),
    ExitCode.WILL_NOT_HELP: ExitReason(
        "will_not_help", "the same error came twice at the same step, or before the first one"
    ),
    ExitCode.NO_QUORUM: ExitReason(
        "no_quorum", "nodes for --min-replicas did not come within --join-timeout"
    ),
    ExitCode.PREEMPTED: ExitReason("preempted", "SIGTERM or SIGHUP: this node has left in order"),
    ExitCode.REFUSED: ExitReason("refused", "the lighthouse or the first node refuses this agent"),
    ExitCode.DEGRADED: ExitReason(
        "degraded",
        "finished without a replica that was given up or left early (no --min-replicas allows it)",
    ),
    ExitCode.CORRUPTED: ExitReason(
        "corrupted",
        "replicas or workers hold different parameters (--on-corruption stop, or at their ends, or "
        "no restart is left)",
    ),
    ExitCode.INTERRUPTED: ExitReason("interrupted", "Ctrl-C"),
}
"""Every exit code of ftrun itself. Any other is the first cause's: docs/EXIT_CODES.md."""

BY_SCRIPT = "script"
BY_SIGNAL = "signal"


def exit_kind(code: int, is_of_script: bool) -> str:
    """The word for an exit code. A script's own exit code may equal one of ftrun's."""
    if not is_of_script and code in EXIT_REASONS:
        return EXIT_REASONS[code].kind
    return BY_SIGNAL if code > 128 else BY_SCRIPT


class FtrunError(Exception):
    """Root of all errors that ftrun raises on purpose."""

    exit_code: int = ExitCode.BUG


class UserError(FtrunError):
    """The input is wrong: nothing was started, or the script asked for something impossible."""

    exit_code: int = ExitCode.USAGE


class LaunchError(FtrunError):
    """A job that a Python program has launched did not finish; launching/story.py makes it.

    Attributes:
        exit_code: of the job, as of ``ftrun run``.
        reason: why the job has ended.
        failures: the workers that failed in the last life of their replica, first cause first.
        earlier: failures that were followed by a restart.
        values: by global rank, of the workers that have finished.
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
        """Pickle with all attributes, because an executor or a queue may carry it."""
        parts = (self.exit_code, self.reason, self.failures, self.earlier, self.values)
        return type(self), parts


class PeerError(FtrunError):
    """Another process (peer, agent, lighthouse) failed or is gone.

    ``unreached``: the host to which no connection could be made; "": that was not the cause.
    """

    unreached: str = ""


class ProtocolError(PeerError):
    """Bytes or a message that the protocol does not allow."""


class Bug(FtrunError):
    """ftrun contradicts itself. The text asks the user to report it."""


EXTRAS = {"textual": "screen", "prometheus_client": "lighthouse", "cryptography": "lighthouse"}
"""The packages that some commands need, and the extra of ftrun that has each."""


def not_installed(error: ModuleNotFoundError) -> UserError | None:
    """A hint about an optional package that is missing; None: it is another module."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return UserError(
        f"This needs the package {package.replace('_', '-')}, which is not installed. Nothing was "
        f"started. Install it: pip install 'ftrun[{extra}]'"
    )


def assert_never(value: NoReturn) -> NoReturn:
    """The last case of a ``match``: mypy rejects it if a class of the union is not handled."""
    raise Bug(f"no case for {value!r}")


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Add the file's name to an OSError in this block that has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
