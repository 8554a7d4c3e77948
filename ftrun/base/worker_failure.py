"""One worker's failure, as an attribute of the LaunchError of a program that has launched a job.

Not here: the error (errors.py), how failures are found (launching/story.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """One worker that failed, as its launching program sees it.

    Attributes:
        rank: its global rank.
        status: its exit code, or minus the signal.
        restart: which life of its replica it was, counted from 0.
        at: seconds since the epoch.
        error_type, message, traceback: its uncaught exception; "" if it raised none.
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
        """One sentence: the worker, and the exception, the signal or the exit code."""
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
