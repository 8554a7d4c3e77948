"""Reports the agent's actions through a pipe to the program that launched it.

The agent never waits for that program. What does not fit into the pipe is buffered, up to a limit,
and written when there is room. Not here: the lines (records.py), the facts in them
(agent/facts.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from typing import Any

from ftrun.agent.facts import record_of
from ftrun.agent.watch import WorkerStarted
from ftrun.base import clock
from ftrun.core.agent.events import EndAgent, Event, Instruction
from ftrun.tools.launching.records import to_line

WAITING_BYTES_MAX = 64 << 20
ENDING = "the launching program reads too slowly: records of this job are missing"


class Reporter:
    """``Watch`` of an agent. ``caller_pidfd``: becomes readable when the launching program has
    ended."""

    def __init__(self, fd: int, caller_pidfd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._caller = caller_pidfd
        self._waiting = bytearray()
        self._has_writer = False
        self._is_incomplete = False
        self.reason = ""

    def __call__(self, fact: Event | Instruction | WorkerStarted) -> None:
        """Report one fact, if the program needs it."""
        if isinstance(fact, EndAgent):
            self.reason = fact.reason
        record = record_of(fact)
        if record is not None:
            self._add(**record)

    def settled(self, job_id: str, workers: int) -> None:
        """Report that the settings are known."""
        self._add("settled", job_id=job_id, workers=workers)

    def refused(self, exit_code: int, text: str) -> None:
        """Report that nothing was started; ``text``: what the command line would print."""
        self._add("refused", exit_code=exit_code, text=text)

    def close(self, exit_code: int) -> None:
        """Report the end, and write everything that is buffered, as long as the program lives."""
        reason = ENDING if self._is_incomplete else self.reason
        self._add("ended", exit_code=exit_code, reason=reason)
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.register(self._caller, select.POLLIN)
        while self._waiting:
            if any(fd == self._caller for fd, _ in poll.poll()):
                return
            self._flush()

    def _add(self, event: str, **facts: Any) -> None:
        line = to_line({"event": event, "at": clock.wall().timestamp(), **facts})
        if len(self._waiting) + len(line) > WAITING_BYTES_MAX:
            self._is_incomplete = True
            return
        self._waiting += line
        if not self._has_writer:
            self._flush()

    def _flush(self) -> None:
        """Write what the pipe accepts now. The event loop, if it runs, calls again for the rest."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()  # the program is gone, and the host ends the job
        self._watch_the_pipe(wanted=bool(self._waiting))

    def _watch_the_pipe(self, *, wanted: bool) -> None:
        with contextlib.suppress(RuntimeError):  # there is no loop before and after the agent
            loop = asyncio.get_running_loop()
            if wanted and not self._has_writer:
                loop.add_writer(self._fd, self._flush)
            elif not wanted and self._has_writer:
                loop.remove_writer(self._fd)
            self._has_writer = wanted
