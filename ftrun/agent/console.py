"""Texts of the agent's shell on the terminal: the lighthouse's reachability, notices, the end.

If the agents of several nodes share one output, as under srun, one of them shows what concerns the
job, and each shows what concerns its node.

Not here: the terminal itself (terminal.py), the supervisor's texts (core/agent/words.py), the last
lines (summary.py).
"""

from __future__ import annotations

import json
import socket
import traceback
from pathlib import Path

from ftrun.agent.error_files import hand_on
from ftrun.agent.exit_reason import exit_document, write_exit
from ftrun.agent.incidents import IncidentRecords
from ftrun.agent.summary import summary_lines
from ftrun.agent.terminal import Terminal
from ftrun.base import clock
from ftrun.base.errors import ExitCode
from ftrun.base.words import first_of
from ftrun.config.settings import RunSettings
from ftrun.core.agent.events import EndAgent, ShowNotice
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.agent.words import REMEDY_APART
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import JobAccount, Notice
from ftrun.logs.layout import log_path
from ftrun.protocol.handshake import not_for_agents
from ftrun.protocol.rpc import Disconnected, Refusal

UNREACHABLE_AGAIN_S = 5.0
WORKERS_NAMED_MAX = 8


class Console:
    """Puts the agent's own lines on the terminal."""

    def __init__(self, settings: RunSettings, terminal: Terminal, supervisor: Supervisor) -> None:
        self._settings = settings
        self._terminal = terminal
        self._supervisor = supervisor
        self._started_at = clock.now()
        self._tries = 0
        self._unreachable_shown_at: float | None = None
        self._end_is_told = False

    def notice(self, notice: ShowNotice, node: str = "") -> None:
        """The supervisor's line, with the path of the log that has more.

        ``node``: the node of that log, if it is another one.
        """
        text = notice.text
        if notice.log is not None:
            life, directory = notice.log, self._settings.job_log_dir
            path = log_path(directory, life.replica_id, life.group_rank, life.restarts)
            text += f" Log{f' on {node}' if node else ''}: {path}"
        self._terminal.event_line(text)

    def lighthouse_notice(self, notice: Notice, own_slots: frozenset[str]) -> None:
        """The lighthouse's line, unless this agent shows the same with more detail.

        An agent that ends does not print the fate of the replicas that end with it: after Ctrl-C
        "training begins again at step 0" reads like a failure.
        """
        if notice.elsewhere and self._terminal.node:
            self._end_is_told = notice.kind == "ended"
            return
        own = bool(notice.replica_ids) and set(notice.replica_ids) <= own_slots
        is_all = notice.kind == "lost" and not notice.replica_ids
        if self._supervisor.is_ending and (is_all or notice.kind == "homeless"):
            return
        if notice.kind != "ended" and not (notice.kind == "lost" and own):
            self._terminal.event_line(notice.text, of_job=True)

    def sees_no_peers(self, error: OSError) -> None:
        """The kernel does not list this node's connections."""
        self._terminal.event_line(
            f"This node cannot see whether other nodes acknowledge its packets ({error}). So a "
            "node that loses its power is noticed only after --heartbeat-timeout."
        )

    def embedded_ended(self, how: str, then: str) -> None:
        self._terminal.event_line(f"The embedded lighthouse {how}. {then}.")

    def unpublished(self, error: OSError) -> None:
        self._terminal.event_line(f"`ftrun status` will not find this job: {error}")

    def refused(self, reason: str) -> None:
        self._terminal.event_line(f"The lighthouse refuses this agent: {reason}")

    def refuses(self, address: str, reason: str) -> None:
        self._terminal.event_line(f"This agent refuses the lighthouse at {address}: {reason}")

    def not_accepted(self, address: str, ending: Disconnected) -> None:
        """Something answers there, but it refuses the token, or takes no agents."""
        self._terminal.event_line(
            not_for_agents(address, ending.words)
            if ending.refused is Refusal.PORT
            else f"The lighthouse at {address} does not accept the token. Give both the same one: "
            "--token-file FILE."
        )

    def unreachable(self, address: str, reason: str) -> None:
        """No lighthouse has ever answered: one line per ``UNREACHABLE_AGAIN_S``."""
        self._tries += 1
        shown_at, now = self._unreachable_shown_at, clock.now()
        if shown_at is not None and now - shown_at < UNREACHABLE_AGAIN_S:
            return
        self._unreachable_shown_at = now
        until = self._supervisor.gives_up_at
        how_long = "again" if until is None else f"for {max(0.0, until - now):.0f} s more"
        self._terminal.event_line(
            f"No lighthouse answers at {address} (try {self._tries}: {reason}). "
            f"Trying {how_long}. "
            f"Start one with: ftrun lighthouse --bind {address} --token-file FILE"
            + ("" if self._settings.tls else " (or, if it is there with TLS, give --tls-ca PEM)")
        )

    def answered(self, address: str) -> None:
        """The first answer, if its absence was shown before."""
        if self._unreachable_shown_at is not None and not self._supervisor.was_answered:
            self._terminal.event_line(f"The lighthouse at {address} answers.")

    def bug(self, error: BaseException | None) -> None:
        lines = traceback.format_exception(error)
        self._terminal.event_line("This is a bug in ftrun. Please report it:\n" + "".join(lines))

    def passed_on(self, number: int, got: list[WorkerKey], spared: list[WorkerKey]) -> None:
        """A signal was passed on to some workers; it would have ended the others."""
        name = signal_name(number)
        text = f"{name}: passed on to {_workers(got)}."
        if spared:
            verb = "has" if len(spared) == 1 else "have"
            text += (
                f" Not to {_workers(spared)}, which {verb} no handler for it and would have ended."
            )
        self._terminal.event_line(text)

    def stacks(self, key: WorkerKey, text: str) -> None:
        who = f"{key.replica_id}.{key.group_rank}"
        if not text:
            self._terminal.event_line(
                f"worker {who} has no stacks: it has not begun, or is stopped."
            )
            return
        self._terminal.event_line(f"stacks of worker {who}:\n{text.rstrip()}")

    def stuck(self, pids: list[int]) -> None:
        """Processes that have survived SIGKILL."""
        self._terminal.event_line(f"processes are stuck in the kernel and do not end: pids {pids}")

    def end(
        self, ending: EndAgent, incidents: IncidentRecords, account: JobAccount | None = None
    ) -> None:
        """The report of the whole run. ``account``: the lighthouse's, if it was received."""
        elapsed_s = clock.now() - self._started_at
        slots, log_dir = self._supervisor.slots.summary(), self._settings.job_log_dir
        lines = summary_lines(
            slots, ending, elapsed_s, log_dir, incidents, account,
            is_told=self._end_is_told, is_part=self._settings.nodes > 1,
        )  # fmt: skip
        for line in lines:  # indented lines are about this node's replicas
            self._terminal.event_line(line, of_job=not line.startswith((" ", "This node")))
        if self._supervisor.ran_apart:
            self._terminal.event_line(f"  The replica groups ran apart. {REMEDY_APART}")
        in_order = (ExitCode.OK, ExitCode.PREEMPTED, ExitCode.INTERRUPTED)
        is_own = ending.kind == "" and ending.exit_code in in_order
        failed = None if is_own else incidents.last
        document = exit_document(ending, self._settings.job_id, socket.gethostname(), failed)
        error = write_exit(document, log_dir)
        if error is not None:
            self._terminal.event_line(f"  exit.json cannot be written: {error.strerror}")
        error = hand_on(failed, ending.exit_code)
        if error is not None:
            self._terminal.event_line(
                f"  the error file {error.filename} cannot be written: {error.strerror}"
            )
        if self._settings.standbys:
            used = self._supervisor.standbys.used
            self._terminal.event_line(f"  standbys: {self._settings.standbys} kept, {used} used")
        if self._settings.json_exit:
            self._terminal.json_line(json.dumps(document))


def _workers(keys: list[WorkerKey]) -> str:
    """``worker 0.0``, ``workers 0.0, 1.0 and 9 more``, ``no worker``."""
    names = [f"{key.replica_id}.{key.group_rank}" for key in keys]
    if not names:
        return "no worker"
    word = "worker" if len(names) == 1 else "workers"
    return f"{word} {first_of(names, WORKERS_NAMED_MAX)}"


def is_own(error: BaseException | None) -> bool:
    """Whether the agent's code is on the exception's stack; otherwise another library raised it."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return any(Path(frame.filename).parent == Path(__file__).parent for frame in frames)
