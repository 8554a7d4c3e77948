"""One failure of a worker: its kind, its cause for people, its exit code, its signature.

Not here: what is done about it (supervisor.py), what else is known of it (evidence.py).
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from ftrun.core import failure_kinds as kinds
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
UNJOINED = " before it had joined the others, which train"
PEER_ERRORS = frozenset({"DistBackendError", "DistNetworkError", "ConnectionResetError"})
PEER_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
    "Socket closed",
    "failed to recv, got 0 bytes",
)
"""Texts of Gloo, NCCL and the stores when the process at the other end is gone."""


_PACKAGE = __file__.rpartition("core")[0]
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RaisedAt:
    """The innermost line of a traceback."""

    path: str
    line: int

    @property
    def is_of_ftrun(self) -> bool:
        """Whether ftrun has raised it, not the script or one of its libraries."""
        return self.path.startswith(_PACKAGE)

    def __str__(self) -> str:
        return f"{self.path.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that did not end well.

    ``status``: the exit code, or minus the signal. ``report``: its uncaught exception, if there was
    one. ``reason``: why it was given up, or could not be started. ``memory``: the evidence that the
    kernel killed it because memory ran out; "": none. ``hangs``: it was given up because it made no
    progress. ``is_of_node``: --health-check has failed on the node. ``on_request``: people killed
    it. ``unjoined``: its script has ended with exit code 0 before it had joined its peers.
    """

    replica_id: str
    group_rank: int
    pid: int
    restarts: int
    status: int
    report: FailureReport | None = None
    reason: str = ""
    memory: str = ""
    hangs: bool = False
    is_of_node: bool = False
    on_request: bool = False
    unjoined: bool = False

    @property
    def kind(self) -> str:
        """A kind of core/failure_kinds.py."""
        if self.is_of_node:
            return kinds.UNHEALTHY
        if self.hangs:
            return kinds.HANG
        if self.on_request:
            return kinds.ON_REQUEST
        if self.reason.startswith(kinds.CORRUPTED):
            return kinds.CORRUPTION
        if self.reason:
            return kinds.NOT_STARTED if not self.pid else kinds.GIVEN_UP
        if self.report is not None:
            error = self.report.error_type, self.report.message
            return kinds.PEER if is_of_peer(*error) else kinds.EXCEPTION
        if self.memory:
            return kinds.MEMORY
        return kinds.SIGNAL if self.status < 0 else kinds.EXIT

    @property
    def is_of_script(self) -> bool:
        """Whether the script itself has failed, and would probably fail again in the same step."""
        return self.kind in (kinds.EXCEPTION, kinds.EXIT)

    @property
    def step(self) -> int | None:
        """The step at which it raised, by its own report; None: not known, or before the first
        step.
        """
        return self.report.step if self.report is not None else None

    @property
    def heals(self) -> bool:
        """Whether that step is its peers', because it did not hold their state yet."""
        return self.report is not None and self.report.heals

    @property
    def raised_at(self) -> RaisedAt | None:
        """Where it raised; None: not known, or it did not raise."""
        frames = _FRAME.findall(self.report.traceback) if self.report is not None else []
        return RaisedAt(frames[-1][0], int(frames[-1][1])) if frames else None

    def words(self) -> str:
        """The cause, without a verb: an exception, a signal, an exit code, a reason."""
        if self.reason:
            return self.reason
        if self.report is not None:
            message = self.report.message.strip().partition("\n")[0]
            return f"{self.report.error_type}: {message}" if message else self.report.error_type
        if self.on_request:
            return "killed on request"
        if self.status < 0:
            by_kernel = ", out of memory" if self.memory else ""
            return f"{signal_name(-self.status)}{by_kernel}"
        return f"exit code {self.status}{UNJOINED * self.unjoined}"

    def cause(self) -> str:
        """The cause as the end of a sentence that begins with the worker."""
        if self.reason:
            return self.reason
        if self.report is not None:
            return f"failed: {self.words()}"
        if self.on_request:
            return "was killed on request (ftrun kill)"
        if self.status < 0:
            return f"died: {self.words()}"
        return f"ended with {self.words()}"

    def signature(self) -> str | None:
        """Equal for failures with the same cause in the script; None for a cause outside of it.

        It has the frames and the exception's type. A message has addresses, pids and times in it.
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
        return f"exit code {self.status}{UNJOINED * self.unjoined}"

    def will_recur(self, *, at_start: bool) -> bool:
        """Whether the same failure would come again at every try from the same position.

        That is true of an exception of the script's own code, and of any exit code before the
        script's first step, such as the one of a usage error. A signal or a lost peer may be
        chance.
        """
        if self.kind == kinds.EXCEPTION:
            return True
        return self.kind == kinds.EXIT and at_start


def is_of_peer(error_type: str, message: str) -> bool:
    """Whether an error means that the process at the other end of a connection is gone."""
    return error_type in PEER_ERRORS or any(words in message for words in PEER_WORDS)


def exit_code_of(status: int) -> int:
    """The exit code for a worker's status: its own, or 128 + the signal."""
    return 128 - status if status < 0 else status


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 42`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
