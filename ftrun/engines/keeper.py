"""The keeper of a node: it runs the node's agent for an engine that starts no task again.

The first node's keeper runs the job's lighthouse too. Its address and the job's credentials appear
in a directory that all nodes share; there the others wait for it. Each keeper then runs an ordinary
agent with the options that follow, and ends with its exit code. An agent that a signal has killed
has a successor of the same name, once all that it has left behind has ended.

An engine signals every process of a job, so the keeper passes no signal on. The lighthouse is the
last to go: it is asked when its own node's agent has ended, and serves until the others have left.

Not here: where this node stands (place.py), an agent (agent/), when helpers are started again
(core/agent/lighthouse_starts.py).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ftrun.agent.embedded import EmbeddedLighthouse
from ftrun.agent.env_markers import AGENT_ID_NAME
from ftrun.base import clock, linux, own_process
from ftrun.base.addresses import join_address
from ftrun.base.errors import ExitCode
from ftrun.config.settings import RunSettings
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.lighthouse_starts import AgentStarts
from ftrun.core.agent.signals import Reaction
from ftrun.core.lighthouse.stopping import LEAVING_MAX_S
from ftrun.engines.place import Place
from ftrun.engines.returning import ReturningNodes
from ftrun.protocol.auth import load_or_create_token
from ftrun.protocol.embedding import ADDRESS_FILE, ServiceAddress, read_address
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

GUARD_BYTES = 16
LOOK_S = 0.1
"""How often the directory is read: a network's file system has no events."""
WAIT_SHOWN_S = 5.0
LIGHTHOUSE_LOG = "lighthouse.log"
REQUEUE_S = 60.0
LEFT_S = 10.0
"""How long the processes of a dead agent are waited for; its guards end them in less."""
LEFT_LOOK_S = 0.02
ENDS_S = 5.0
"""How long a lighthouse takes to end, once it stops."""


def say(text: str) -> None:
    """Print one line for people."""
    print(f"ftrun: {text}", file=sys.stderr, flush=True)


class Keeper:
    """Runs one node's part of a job.

    ``words``: of the command line, which the agent gets as they are. ``environ``: its environment.
    ``meeting``: the directory in which the nodes meet; it exists. ``host``: the address at which
    other nodes reach this one. ``certify``: writes certificates for such an address to a directory.
    """

    def __init__(
        self,
        place: Place,
        settings: RunSettings,
        environ: Mapping[str, str],
        words: Sequence[str],
        meeting: Path,
        host: str,
        certify: Callable[[Path, str], None],
    ) -> None:
        self._place = place
        self._settings = settings
        self._environ = dict(environ)
        self._words = words
        self._meeting = meeting
        self._host = host
        self._certify = certify
        self._starts = AgentStarts()
        self._was_asked = self._was_noticed = False
        self._lighthouse: EmbeddedLighthouse | None = None
        self._lighthouse_failed = ""
        self._returning: ReturningNodes | None = None

    async def run(self) -> int:
        """Run the node's part to its end; returns the exit code."""
        self._catch_signals()
        try:
            if self._place.node == 0:
                self._start_lighthouse()
            address = await self._meet()
            if address is None and self._was_asked:
                return ExitCode.PREEMPTED
            if address is None:
                return ExitCode.LIGHTHOUSE_UNREACHABLE
            self._environ |= self._found(address)
            if self._place.node == 0:
                self._await_lost_nodes()
            code = await self._keep_agent()
        finally:
            if self._returning is not None:
                self._looking.cancel()
                await self._returning.cancel()
            if self._lighthouse is not None:
                await self._lighthouse.stop(LEAVING_MAX_S + ENDS_S)
                shutil.rmtree(self._meeting, ignore_errors=True)  # its credentials let nobody in
        if code == ExitCode.PREEMPTED and self._settings.requeue:
            self._requeue()
        return code

    def _catch_signals(self) -> None:
        """Note that the node is to stop; handlers, because an ignored signal is inherited."""
        rules = self._settings.signal_rules()
        loop = asyncio.get_running_loop()
        for number in sorted(rules.caught()):
            ends = rules.reaction(number) in (Reaction.LEAVE, Reaction.STOP)
            loop.add_signal_handler(number, self._note, ends, number == rules.preempt)

    def _note(self, ends: bool, is_notice: bool) -> None:
        """A signal that does not end the node is the agent's alone."""
        if ends and not self._was_asked:
            self._was_asked, self._was_noticed = True, is_notice
            if self._returning is not None:  # their jobs are no part of this one
                self._cancelling = asyncio.ensure_future(self._returning.cancel())

    # ------------------------------------------------------------ the lighthouse

    def _start_lighthouse(self) -> None:
        tls = self._settings.tls.absolute()
        if not tls:
            self._certify(self._meeting, self._host)
            tls = self._certificates("lighthouse")
        self._lighthouse = EmbeddedLighthouse(
            self._meeting,
            load_or_create_token(self._token_file()),
            os.urandom(GUARD_BYTES).hex(),
            self._settings.job_log_dir / LIGHTHOUSE_LOG,
            lambda _address: None,
            self._lighthouse_ended,
            outlives=True,
            bind=join_address(self._host, 0),
            tls=tuple(str(path) for path in (tls.cert, tls.key, tls.ca) if path is not None),
        )
        self._lighthouse.start()

    def _lighthouse_ended(self, how: str, delay_s: float | None) -> None:
        assert self._lighthouse is not None
        then = self._lighthouse.starts.then(delay_s)
        say(f"The lighthouse of this job {how}. {then}.")
        if delay_s is None:
            self._lighthouse_failed = how

    def _token_file(self) -> Path:
        return (self._settings.token_file or self._meeting / "token").absolute()

    def _certificates(self, name: str) -> TlsFiles:
        """Those of the lighthouse, or of an agent; none: the job has none."""
        files = TlsFiles(
            *(self._meeting / file for file in (f"{name}.pem", f"{name}.key", "ca.pem"))
        )
        return files if files.cert is not None and files.cert.exists() else PLAINTEXT

    # ------------------------------------------------------------ where the nodes meet

    async def _meet(self) -> ServiceAddress | None:
        """The lighthouse's address, once it is there; None: it does not come, or nobody waits."""
        began, first = clock.now(), self._place.nodes[0]
        limit_s, is_shown = self._settings.join_timeout_s, False
        while not self._was_asked:
            if ADDRESS_FILE in os.listdir(self._meeting):  # asks a file server again
                return read_address(self._meeting)
            waited_s = clock.now() - began
            if self._lighthouse_failed:
                return None
            if waited_s >= limit_s:
                say(
                    f"The lighthouse of this job, on {first}, has not come up in {limit_s:g} s "
                    f"(--join-timeout): there is no {ADDRESS_FILE} in {self._meeting}. This node "
                    "ends. Is that a directory that all nodes share (--log-dir)?"
                )
                return None
            if waited_s >= WAIT_SHOWN_S and not is_shown:
                is_shown = True
                say(
                    f"{self._place.own_name} waits for the lighthouse of this job, on {first}, "
                    f"whose address is to appear in {self._meeting}."
                )
            await asyncio.sleep(LOOK_S)
        return None

    def _found(self, address: ServiceAddress) -> dict[str, str]:
        """The variables that tell the agent where the lighthouse is, and how it is let in."""
        found = {
            "FTRUN_LIGHTHOUSE": address.grpc,
            "FTRUN_TOKEN_FILE": str(self._token_file()),
            AGENT_ID_NAME: self._place.agent_id_of(self._place.own_name),
        }
        tls = self._certificates("agent")
        if not self._settings.tls and tls:
            found |= {
                "FTRUN_TLS_CERT": str(tls.cert), "FTRUN_TLS_KEY": str(tls.key),
                "FTRUN_TLS_CA": str(tls.ca),
            }  # fmt: skip
        return found

    # ------------------------------------------------------------ nodes that come back

    def _await_lost_nodes(self) -> None:
        """Have agents on the nodes that the engine loses, as soon as it has them again."""
        self._returning = ReturningNodes(
            self._place,
            self._environ,
            own_process.command("ftrun.cli", self._words, acts_on_signals=True),
            lambda node: {AGENT_ID_NAME: self._place.agent_id_of(node)},
            self._settings.job_log_dir.absolute(),
            say,
        )
        self._looking = asyncio.ensure_future(self._returning.run())

    # ------------------------------------------------------------ the next attempt

    def _requeue(self) -> None:
        """Have the engine queue the job again, after all nodes have left because of a notice.

        Not after a request of people, who want the job to end.
        """
        file = self._settings.preempt_file
        was_noticed = self._was_noticed or (file is not None and file.exists())
        if self._place.node != 0 or not was_noticed:
            return
        command = " ".join(self._place.requeue)
        try:
            done = subprocess.run(
                self._place.requeue, capture_output=True, text=True, timeout=REQUEUE_S, check=False
            )
            failure = (done.stdout + done.stderr).strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = str(error)
        if failure:
            say(f"The job is not queued again (--requeue): {command}: {failure}. Do so yourself.")
        else:
            say(f"The job is queued again (--requeue): {command}.")

    # ------------------------------------------------------------ the agent

    async def _keep_agent(self) -> int:
        """Run the agent and its successors; returns the last one's exit code."""
        while True:
            began = clock.now()
            agent = await self._start_agent()
            status = await agent.wait()
            lived_s = clock.now() - began
            delay_s = self._starts.ended(status, lived_s, was_asked=self._was_asked)
            if delay_s is None:
                return status if status >= 0 else 128 - status
            say(
                f"The agent on {self._place.own_name} (pid {agent.pid}) died: "
                f"{signal_name(-status)}. It is started again; training goes on."
            )
            await asyncio.gather(asyncio.sleep(delay_s), self._leftovers_ended())

    async def _leftovers_ended(self) -> None:
        """Wait for what the dead agent has left behind, which holds the node's devices (P8)."""
        until = clock.now() + LEFT_S
        while clock.now() < until:
            helper = 0 if self._lighthouse is None else self._lighthouse.pid
            linux.reap_strays(frozenset({helper}))
            rows = linux.process_rows()
            of_helper = {helper} | linux.descendants(rows, [helper]) if helper else set()
            if not linux.descendants(rows, [os.getpid()]) - of_helper:
                return
            await asyncio.sleep(LEFT_LOOK_S)

    async def _start_agent(self) -> asyncio.subprocess.Process:
        command = own_process.command("ftrun.cli", self._words, acts_on_signals=True)
        tie = partial(linux.die_with_parent, os.getpid())
        return await asyncio.create_subprocess_exec(*command, env=self._environ, preexec_fn=tie)
