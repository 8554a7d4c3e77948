"""The line under the output: its ticks, and Ctrl-Z.

Not here: its facts (job_view.py), its text (status_line.py), its row on the terminal
(under_line.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from ftrun.agent.job_view import JobView
from ftrun.agent.status_line import LineFacts, StatusLine
from ftrun.agent.terminal import Terminal
from ftrun.agent.watch import WorkerStarted
from ftrun.core.agent.events import Event, Instruction
from ftrun.core.messages import JobGlance

TICK_S = 0.5


class Line:
    """Shows the line from ``start`` to ``close``.

    ``own``: the number of the job's ``replicas`` that run on this node.
    """

    def __init__(self, terminal: Terminal, job_id: str, replicas: int, own: int) -> None:
        self._terminal = terminal
        self._view = JobView(job_id, replicas, own)
        encoding = (getattr(sys.stderr, "encoding", None) or "").lower()
        self._words = StatusLine(
            colours=terminal.has_colours, utf8=encoding.replace("-", "").startswith("utf8")
        )
        self._facts = LineFacts(job_id)
        self._row: tuple[LineFacts, int, bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._ticking: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop_here)
        self._terminal.show_line(self._render)
        self._tick()

    def close(self) -> None:
        """Erase the line, before ftrun's last lines."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._loop.remove_signal_handler(signal.SIGTSTP)
        self._terminal.pause_line(paused=True)

    def watch(self, fact: Event | Instruction | WorkerStarted) -> None:
        self._view.watch(fact)

    def note_glance(self, glance: JobGlance | None) -> None:
        if glance is not None:
            self._view.note_glance(glance)

    def _tick(self) -> None:
        self._facts = self._view.facts(self._terminal.last_event)
        self._terminal.refresh_line()
        self._ticking = self._loop.call_later(TICK_S, self._tick)

    def _render(self, columns: int) -> bytes:
        """The row. Called in the terminal's thread, at every write."""
        facts = self._facts
        if self._row is None or self._row[:2] != (facts, columns):
            self._row = facts, columns, self._words.render(facts, columns)
        return self._row[2]

    def _stop_here(self) -> None:
        """Handle Ctrl-Z: leave a clean row for the shell; show the line again after ``fg``."""
        self._terminal.pause_line(paused=True)
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when ftrun is resumed
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop_here)
        self._terminal.pause_line(paused=False)
