"""One failure of a worker: its cause for people, its exit code, and when two are the same.

Not here: what is done about it (supervisor.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ftrun.core.messages import FailureReport

CRASH_SIGNALS = frozenset(
    int(number)
    for number in (
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGSYS,
    )
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that did not end well.

    ``status``: the exit code, or minus the signal. ``report``: its uncaught exception, if there was
    one. ``reason``: why it was given up, or could not be started.
    """

    replica_id: str
    group_rank: int
    pid: int
    restarts: int
    status: int
    report: FailureReport | None = None
    reason: str = ""

    def words(self) -> str:
        """The cause, without a verb: an exception, a signal, an exit code, a reason."""
        if self.reason:
            return self.reason
        if self.report is not None:
            message = self.report.message.strip().partition("\n")[0]
            return f"{self.report.error_type}: {message}" if message else self.report.error_type
        if self.status < 0:
            return signal_name(-self.status)
        return f"exit code {self.status}"

    def cause(self) -> str:
        """The cause as the end of a sentence that begins with the worker."""
        if self.reason:
            return self.reason
        if self.report is not None:
            return f"failed: {self.words()}"
        if self.status < 0:
            return f"died: {self.words()}"
        return f"ended with {self.words()}"

    def signature(self) -> str | None:
        """Equal for failures with the same cause in the script; None for a cause outside of it.

        The frames and the exception's type, because a message has addresses, pids and times in it.
        """
        if self.report is not None:
            frames = [
                line.strip()
                for line in self.report.traceback.splitlines()
                if line.lstrip().startswith('File "')
            ]
            return "\n".join([self.report.error_type, *frames])
        if self.reason:
            return None
        if self.status < 0:
            return signal_name(-self.status) if -self.status in CRASH_SIGNALS else None
        return f"exit code {self.status}"


def exit_code_of(status: int) -> int:
    """The exit code for a worker's status: its own, or 128 + the signal."""
    return 128 - status if status < 0 else status


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 42`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
