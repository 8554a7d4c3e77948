"""The keeper of a node: runs the node's agent under an engine that does not restart tasks.

The keepers of the first nodes run a lighthouse each: one leads, the others stand by. The first
node's leads at first. When it is ready, all addresses are written, beside the job's credentials, to
a directory that all nodes share, in which the other nodes wait for them. Each keeper then runs an
ordinary agent with the resulting options, and exits with its exit code. If a signal has killed an
agent, the keeper starts a successor with the same name, once all leftover processes have ended. The
first agent is started at once, because importing torch takes longest, and waits for the addresses.

An engine signals every process of a job, so the keeper forwards no signal. The lighthouses leave
last: each is asked to stop when its own node's agent has ended, and the leader serves until the
others have left.

Not here: this node's place (place.py), the directory (meeting.py), an agent (agent/), when helpers
are restarted (core/agent/lighthouse_starts.py), which lighthouse leads (core/register/).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ftrun.agent.embedded import EmbeddedLighthouse
from ftrun.agent.env_markers import AGENT_ID_NAME, FROM_KEEPER
from ftrun.base import clock, linux, own_process
from ftrun.base.addresses import join_address, split_address
from ftrun.base.errors import OF_ONE_NODE, ExitCode
from ftrun.config.settings import RunSettings
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.lighthouse_starts import AgentStarts
from ftrun.core.agent.signals import Reaction
from ftrun.core.lighthouse.stopping import LEAVING_MAX_S
from ftrun.engines.meeting import CONTENDERS, Meeting, answers
from ftrun.engines.place import Place
from ftrun.engines.returning import ReturningNodes
from ftrun.protocol.auth import load_or_create_token
from ftrun.protocol.embedding import Embedding, ServiceAddress
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

GUARD_BYTES = 16
LOOK_S = 0.1
"""How often the directory is read: a network file system has no events."""
WAIT_SHOWN_S = 5.0
GATHER_S = 10.0
"""How long the first node waits for the nodes whose lighthouses stand by."""
LEFT_S = 10.0
"""How long to wait for the processes of a dead agent. Its guards end them sooner."""
LEFT_LOOK_S = 0.02
COMMAND_S = 60.0
ENDS_S = 5.0
"""How long a lighthouse takes to end, once it stops."""


def say(text: str) -> None:
    """Print one line for people."""
    print(f"ftrun: {text}", file=sys.stderr, flush=True)


class Keeper:
    """Runs one node's part of a job.

    Attributes:
        words: of the command line, passed to the agent unchanged.
        environ: the agent's environment.
        meeting: its directory exists.
        certify: writes certificates to a directory, for the hosts of lighthouses.
    """

    def __init__(
        self,
        place: Place,
        settings: RunSettings,
        environ: Mapping[str, str],
        words: Sequence[str],
        meeting: Meeting,
        certify: Callable[[Path, tuple[str, ...]], None],
    ) -> None:
        self._place = place
        self._settings = settings
        self._environ = dict(environ)
        self._words = words
        self._meeting = meeting
        self._certify = certify
        self._starts = AgentStarts()
        self._was_asked = self._was_noticed = False
        self._lighthouse: EmbeddedLighthouse | None = None
        self._lighthouse_failed = ""
        self._early: _Agent | None = None
        self._returning: ReturningNodes | None = None

    async def run(self) -> int:
        """Run the node's part to its end. Returns the exit code."""
        self._catch_signals()
        try:
            self._early = await self._launch_agent()
            if self._place.node < CONTENDERS:
                self._meeting.reserve()
            if self._place.node == 0:
                await self._begin()
            addresses = await self._meet()
            if not addresses:
                unreachable = ExitCode.LIGHTHOUSE_UNREACHABLE
                return ExitCode.PREEMPTED if self._was_asked else unreachable
            if self._meeting.address in addresses and self._lighthouse is None:
                self._start_lighthouse(lambda _address: None)
            self._environ |= self._found(addresses)
            if self._place.node < CONTENDERS:
                self._await_lost_nodes()
            code = await self._keep_agent()
        finally:
            if self._early is not None:
                await self._early.end()
            if self._lighthouse is not None:
                await self._lighthouse.stop(LEAVING_MAX_S + ENDS_S)
            is_last = await self._meeting.leave()
            if is_last and self._lighthouse is not None and self._lighthouse.has_left_agents:
                self._say_who_has_none()
            if self._returning is not None:
                self._looking.cancel()
        if self._returning is not None and (is_last or code not in OF_ONE_NODE):
            await self._returning.cancel()
        if is_last and code == ExitCode.PREEMPTED and self._settings.requeue:
            self._requeue()
        elif self._meeting.first_is_lost and code not in OF_ONE_NODE:
            await self._end_what_nobody_ends()
        return code

    def _catch_signals(self) -> None:
        """Note that the node must stop. Uses handlers, because an ignored signal would be
        inherited."""
        rules = self._settings.signal_rules()
        loop = asyncio.get_running_loop()
        for number in sorted(rules.caught()):
            ends = rules.reaction(number) in (Reaction.LEAVE, Reaction.STOP)
            loop.add_signal_handler(number, self._note, ends, number == rules.preempt)

    def _note(self, ends: bool, is_notice: bool) -> None:
        """Note a signal. One that does not end the node concerns only the agent."""
        if ends and not self._was_asked:
            self._was_asked, self._was_noticed = True, is_notice
            if self._returning is not None:  # their jobs are not part of this one
                self._cancelling = asyncio.ensure_future(self._returning.cancel())

    # ------------------------------------------------------------ the lighthouse

    async def _begin(self) -> None:
        """On the first node: make the job's credentials, and start its first lighthouse."""
        names = self._place.nodes[:CONTENDERS]
        until = clock.now() + GATHER_S
        while len(found := self._meeting.reserved()) < len(names) and not self._was_asked:
            if clock.now() >= until:
                absent = ", ".join(name for node, name in enumerate(names) if node not in found)
                say(f"No lighthouse stands by on {absent}: no word from there in {GATHER_S:g} s.")
                break
            await asyncio.sleep(LOOK_S)
        addresses = tuple(found.values())
        if not self._settings.tls:
            hosts = tuple(split_address(address)[0] for address in addresses)
            self._certify(self._meeting.directory, hosts)
        self._start_lighthouse(lambda _address: self._meeting.settle(addresses))

    def _start_lighthouse(self, on_ready: Callable[[ServiceAddress], None]) -> None:
        tls = self._settings.tls.absolute() or self._certificates("lighthouse")
        embedding = Embedding(
            str(self._meeting.directory),
            load_or_create_token(self._token_file()),
            bind=self._meeting.address,
            http=join_address(self._meeting.host, 0),
            tls=tuple(str(path) for path in (tls.cert, tls.key, tls.ca) if path is not None),
            for_nodes=True,
        )
        self._lighthouse = EmbeddedLighthouse(
            embedding,
            os.urandom(GUARD_BYTES).hex(),
            self._settings.job_log_dir / f"lighthouse.{self._place.own_name}.log",
            on_ready,
            self._lighthouse_ended,
        )
        self._lighthouse.start()

    def _lighthouse_ended(self, how: str, delay_s: float | None) -> None:
        assert self._lighthouse is not None
        then = self._lighthouse.starts.then(delay_s)
        if delay_s is None and self._meeting.settled():
            then = "It does not restart here"
        elif delay_s is None:
            self._lighthouse_failed = how
        say(f"The lighthouse on {self._place.own_name} {how}. {then}.")

    def _say_who_has_none(self) -> None:
        """Report that the last node with a lighthouse has left while other nodes train on."""
        first = ", ".join(self._place.nodes[:CONTENDERS])
        say(
            f"{self._place.own_name} has left, and with it the last lighthouse of this job. The "
            "others train on without one until a replica is lost, and for "
            f"{self._settings.isolation_limit_s:g} s at most (--isolation-limit). Then they wait "
            "for one, and end (--lighthouse-timeout). If a job is to continue, leave one of "
            f"{first} in it, or give --exit-with job: then a node that is drained stays."
        )

    def _token_file(self) -> Path:
        return (self._settings.token_file or self._meeting.directory / "token").absolute()

    def _certificates(self, name: str) -> TlsFiles:
        """The certificates of the lighthouse, or of an agent; none: the job has none."""
        files = TlsFiles(
            *(self._meeting.directory / file for file in (f"{name}.pem", f"{name}.key", "ca.pem"))
        )
        return files if files.cert is not None and files.cert.exists() else PLAINTEXT

    # ------------------------------------------------------------ where the nodes meet

    async def _meet(self) -> tuple[str, ...]:
        """The lighthouses' addresses, once one leads; empty: it has not come up, or a stop was
        requested."""
        began, first = clock.now(), self._place.nodes[0]
        limit_s, is_shown = self._settings.join_timeout_s, False
        while not self._was_asked:
            if addresses := self._meeting.settled():
                return addresses
            waited_s = clock.now() - began
            if self._lighthouse_failed:
                return ()
            if waited_s >= limit_s:
                say(
                    f"The lighthouse of this job, on {first}, has not come up in {limit_s:g} s "
                    f"(--join-timeout): its address is not in {self._meeting.directory}. This node "
                    "ends. Is that a directory that all nodes share (--log-dir)?"
                )
                return ()
            if waited_s >= WAIT_SHOWN_S and not is_shown:
                is_shown = True
                say(
                    f"{self._place.own_name} waits for the lighthouse of this job, on {first}, "
                    f"whose address is to appear in {self._meeting.directory}."
                )
            await asyncio.sleep(LOOK_S)
        return ()

    def _found(self, addresses: tuple[str, ...]) -> dict[str, str]:
        """The agent's variables: the addresses of the lighthouses, and its credentials."""
        # Its own node's comes first, because an agent tries the first one before it does anything.
        own_first = sorted(addresses, key=lambda address: address != self._meeting.address)
        found = {
            "FTRUN_LIGHTHOUSE": ",".join(own_first),
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
        """Start agents again on nodes that the engine loses, as soon as it has them back."""
        self._returning = ReturningNodes(
            self._place,
            self._place.nodes[:CONTENDERS],
            self._environ,
            own_process.command("ftrun.cli", self._words, acts_on_signals=True),
            lambda node: {
                AGENT_ID_NAME: self._place.agent_id_of(node),
                "FTRUN_NODE_RANK": str(self._place.nodes.index(node)),
            },
            self._settings.job_log_dir.absolute(),
            say,
        )
        self._looking = asyncio.ensure_future(self._returning.run())

    # ------------------------------------------------------------ the next attempt

    def _requeue(self) -> None:
        """Have the engine requeue the job, after all nodes have left because of a notice.

        Not after a request of people, who want the job to end.
        """
        file = self._settings.preempt_file
        if not (self._was_noticed or (file is not None and file.exists())):
            return
        command = " ".join(self._place.requeue)
        failure = self._command(self._place.requeue)
        if failure:
            say(f"The job is not queued again (--requeue): {command}: {failure}. Do so yourself.")
        else:
            say(f"The job is queued again (--requeue): {command}.")

    async def _end_what_nobody_ends(self) -> None:
        """Have the engine cancel the job, which has ended, if its launcher's machine is lost.

        The launcher may have been on the first node, which is lost together with the batch script.
        The engine would keep the other nodes allocated until the job's time limit. A launcher that
        is reachable prints that a cancel was requested, so none is requested while the first node
        is there.
        """
        launcher = self._place.launcher
        if launcher and await answers(launcher) is None:
            failure = self._command(self._place.cancel) or "done"
            say(
                f"The job is over, and nobody at {launcher} waits for that any more: "
                f"{' '.join(self._place.cancel)}: {failure}."
            )

    def _command(self, words: Sequence[str]) -> str:
        """Run a command of the engine. Returns why it has failed, or ""."""
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=COMMAND_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return (done.stdout + done.stderr).strip() if done.returncode else ""

    # ------------------------------------------------------------ the agent

    async def _keep_agent(self) -> int:
        """Run the agent and its successors. Returns the last one's exit code."""
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
                f"{signal_name(-status)}. It restarts; training continues."
            )
            await asyncio.gather(asyncio.sleep(delay_s), self._leftovers_ended())

    async def _leftovers_ended(self) -> None:
        """Wait for the dead agent's leftover processes, which hold the node's devices (P8)."""
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
        """Start an agent, or use the one started early, with the variables that were found."""
        agent, self._early = self._early or await self._launch_agent(), None
        agent.tell(self._environ)
        return agent.process

    async def _launch_agent(self) -> _Agent:
        command = own_process.command("ftrun.cli", self._words, acts_on_signals=True)
        tie = partial(linux.die_with_parent, os.getpid())
        theirs, ours = os.pipe()
        environ = {**self._environ, FROM_KEEPER: str(theirs)}
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env=environ, preexec_fn=tie, pass_fds=(theirs,)
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return _Agent(process, ours, environ)


@dataclass(slots=True)
class _Agent:
    """An agent that imports torch until it gets the address of the lighthouse."""

    process: asyncio.subprocess.Process
    pipe: int
    environ: Mapping[str, str]

    def tell(self, environ: Mapping[str, str]) -> None:
        """Send it the variables that have changed since its launch."""
        found = {name: x for name, x in environ.items() if self.environ.get(name) != x}
        with contextlib.suppress(BrokenPipeError), open(self.pipe, "wb") as pipe:  # it has ended
            pipe.write(json.dumps(found).encode())

    async def end(self) -> None:
        """End it. It needs no request, because it ends by itself."""
        os.close(self.pipe)
        await self.process.wait()
