"""A node of a job whose replica groups are larger than a node: its part from start to end.

It offers itself to the lighthouse's registrar, which assigns its role: the lead of a group, a hand
of another node, or neither. When the role changes, the former one ends and the next one begins.
While the node waits, it keeps a spawner with all imports and standbys. While it has a place, it
keeps another spawner ready, so that the next place costs no import either.

Not here: which nodes make a group (core/teams/placement.py), torchrun's command (main.py), what a
lead and a hand do (lead.py, hand.py).
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.agent.env_markers import AGENT_ID_NAME
from ftrun.agent.environment import spawner_configuration, threads_per_worker
from ftrun.agent.launch import SpawnerLaunch
from ftrun.agent.link import web_address
from ftrun.agent.setup import AgentSetup
from ftrun.agent.signals import PreemptionFile, catch_signals
from ftrun.agent.team.door import Door
from ftrun.agent.team.hand import Hand, cause
from ftrun.agent.team.lead import Lead, say
from ftrun.agent.team.main import MakeAgent, first_team
from ftrun.base import clock
from ftrun.base.addresses import join_address, split_address
from ftrun.base.errors import OF_ONE_NODE, ExitCode
from ftrun.config.forms import standbys_of
from ftrun.config.rendezvous import Rendezvous
from ftrun.core import messages as m
from ftrun.core.agent.events import EndAgent, TeamChanged
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.signals import Reaction
from ftrun.core.teams.nodes import Node
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection, Refusal

if TYPE_CHECKING:
    from ftrun.agent.shell import Agent

REMIND_S = 10.0
PARK_AFTER_S = 15.0
"""While a group starts, nothing else should use the processor."""


class Member:
    """See the module's text. ``make``: creates the Agent of a group that this node leads.

    ``announce``: publishes the lighthouse's address for people, on every node of the job.
    """

    def __init__(self, setup: AgentSetup, make: MakeAgent, announce: Callable[[str], None]) -> None:
        settings = setup.settings
        assert settings.workers_per_node is not None
        assert settings.lighthouse is not None
        self._settings = settings
        # Until its parts know the group's workers, they count those of this node.
        self._own = replace(settings, workers_per_replica=settings.workers_per_node)
        self._setup = setup
        self._launch: SpawnerLaunch | None = setup.launch
        self._make = make
        self._announce = announce
        self._lighthouse = ""
        self._next_dir: Path | None = setup.runtime_dir
        self._is_shared = AGENT_ID_NAME in os.environ  # srun has a single output
        self._node_id = f"{socket.gethostname()[:40]}-{secrets.token_hex(8)}"
        self._door = Door(setup.token, settings.tls)
        self._address = self._certificate = ""
        self._wanted: m.TeamPlace | None = None
        self._why_free = ""
        self._changed = asyncio.Event()
        self._ending: EndAgent | None = None
        self._was_answered = False
        self._away_since: float | None = clock.now()
        self._shown_at: float | None = None
        self._connection = LighthouseConnection(
            settings.lighthouse.split(","), setup.token, self._heard, tls=settings.tls,
            job_id=settings.job_id,
        )  # fmt: skip

    async def run(self) -> EndAgent:
        """Serve until the end of the job or this node. None of its processes run after that."""
        if self._settings.tls:
            self._trusted = Path(tempfile.mkdtemp(prefix="ftrun-lead-"))
        await self._open_door()
        preempt, file = self._settings.preempt_file, None
        if preempt is not None:
            file = PreemptionFile(preempt, lambda: self._end_idle(f"{preempt} has appeared"))
        linking = asyncio.ensure_future(self._connection.run())
        try:
            while self._ending is None:
                self._changed.clear()
                if self._wanted is None:
                    await self._wait()
                else:
                    await self._be(self._wanted)
            code, reason = self._ending.exit_code, self._ending.reason
            self._say(f"This node ends with exit code {code}: {reason}.")
            return self._ending
        finally:
            if file is not None:
                file.close()
            self._connection.close()
            await asyncio.gather(linking, return_exceptions=True)
            await self._door.stop()
            if self._settings.tls:
                shutil.rmtree(self._trusted, ignore_errors=True)
            if self._launch is not None:
                self._launch.end()
            if self._next_dir is not None:
                shutil.rmtree(self._next_dir, ignore_errors=True)

    async def _open_door(self) -> None:
        """Accept hands, once there are any."""
        host = self._setup.machine.host
        with tempfile.TemporaryDirectory(prefix="ftrun-door-") as directory:
            if self._settings.tls:
                from ftrun.agent.team.identity import make_identity

                ca = self._settings.tls.ca
                files, self._certificate = make_identity(Path(directory), host, ca)
                self._door = Door(self._setup.token, files)
            self._address = join_address(host, await self._door.start(host, 0))

    # ------------------------------------------------------------ the registrar

    def _heard(self, event: Any) -> None:
        match event:
            case Connected():
                self._away_since, self._was_answered = None, True
                self._lighthouse = event.address
                if self._shown_at is not None:
                    self._shown_at = None
                    self._say(f"The lighthouse answers at {event.address}.")
                if self._ending is None:
                    self._connection.send(self._hello())
            case Disconnected():
                self._lost_touch(event)
            case m.Welcome(_, http):
                self._publish(web_address(http, self._lighthouse))
            case m.TeamPlace():
                self._wanted = event
                self._changed.set()
            case m.NodeFree(reason):
                self._wanted, self._why_free = None, reason
                self._changed.set()
            case m.Notice(text=text):
                if not (event.elsewhere and self._is_shared):
                    self._say(text)
            case m.EndJob(exit_code, reason, kind):
                self._end(EndAgent(exit_code, reason, kind))
            case m.Rejected(reason):
                self._end(EndAgent(ExitCode.REFUSED, f"the lighthouse refuses this node: {reason}"))
            case _:
                pass

    def _hello(self) -> m.NodeHello:
        settings, place = self._settings, self._wanted
        return m.NodeHello(
            self._node_id,
            socket.gethostname()[:64],
            self._setup.machine.host,
            self._address,
            self._certificate,
            self._own.workers_per_replica,
            settings.node_rank,
            settings.topology,
            settings.spec(),
            settings.nodes,
            settings.spare_nodes,
            None if place is None else place.team,
            () if place is None else place.members,
        )

    def _lost_touch(self, event: Disconnected) -> None:
        """A group continues without the lighthouse. A waiting node reports it, then gives up."""
        settings, now = self._settings, clock.now()
        if self._ending is not None:
            return
        if event.refused is not None and not self._was_answered:
            what = "token" if event.refused is Refusal.TOKEN else "lighthouse's port"
            self._end(EndAgent(ExitCode.REFUSED, f"the {what} was refused ({event.reason})"))
            return
        since = self._away_since = self._away_since or now
        limit_s = settings.lighthouse_timeout_s if self._was_answered else settings.join_timeout_s
        if self._wanted is not None:
            return
        if now - since >= limit_s:
            code = ExitCode.LIGHTHOUSE_UNREACHABLE
            self._end(EndAgent(code, f"no lighthouse answers at {event.address}"))
        elif self._shown_at is None or now - self._shown_at >= REMIND_S:
            self._shown_at = now
            self._say(
                f"No lighthouse answers at {event.address} ({cause(event.words)}). ftrun keeps "
                f"trying for {limit_s - (now - since):.0f} s."
            )

    def _publish(self, http: str | None) -> None:
        try:
            if http is not None:
                self._announce(http)
        except OSError as error:
            self._say(f"`ftrun status` will not find this job: {error}")

    def _say(self, text: str) -> None:
        say(text, socket.gethostname() if self._is_shared else "")

    def _end(self, ending: EndAgent) -> None:
        """Note the end. The first cause counts."""
        self._ending = self._ending or ending
        self._changed.set()

    # ------------------------------------------------------------ what it is

    async def _wait(self) -> None:
        """Wait, ready for a place."""
        rules = self._settings.signal_rules()

        def signalled(number: int) -> None:
            if rules.reaction(number) in (Reaction.LEAVE, Reaction.STOP):
                self._end(EndAgent(rules.exit_code(number), signal_name(number)))

        catch_signals(rules, signalled)
        self._park()
        await self._changed.wait()

    def _end_idle(self, reason: str) -> None:
        """A notice of preemption. A lead and a hand watch the file themselves."""
        if self._wanted is None:
            self._end(EndAgent(ExitCode.PREEMPTED, reason))

    async def _be(self, place: m.TeamPlace) -> None:
        """Lead a group, or be a hand, until that ends or the registrar assigns another role."""
        launch = self._prepare()
        self._launch = None
        settings = self._own
        # A spawner that ends removes its directory, perhaps when the next one has begun.
        own_dir, self._next_dir = self._next_dir, None
        if own_dir is None:
            own_dir = self._make_dir()
        setup = replace(self._setup, settings=settings, launch=launch, runtime_dir=own_dir)
        if place.place == 0:
            # The first group is replica 0.
            settings = replace(settings, node_rank=place.team, groups_placed=place.placed)
            lead = Lead(
                self._rendezvous(place), self._node(), self._door, settings.heartbeat_timeout_s
            )
            lead.lost = self._lost
            leading = Leading(lead)
            work = leading.run(replace(setup, settings=settings), self._make)
            stop = leading.stop
        else:
            if settings.tls:
                from ftrun.agent.team.identity import trusting

                trusted = trusting(settings.tls, self._trusted, place.certificate)
                settings = replace(settings, tls=trusted)
            hand = Hand(replace(setup, settings=settings), self._rendezvous(place), self._say)
            work, stop = hand.run(), hand.stop

        def park() -> None:
            self._park(beside=launch)

        parking = asyncio.get_running_loop().call_later(PARK_AFTER_S, park)
        ending = await self._until_another(place, work, stop)
        parking.cancel()
        launch.end()
        shutil.rmtree(own_dir, ignore_errors=True)
        if ending is not None:
            self._end(ending)

    async def _until_another(
        self, place: m.TeamPlace, work: Coroutine[Any, Any, EndAgent | None], stop: Any
    ) -> EndAgent | None:
        task = asyncio.ensure_future(work)
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            while not task.done():
                await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
                if changed.done() and not task.done():
                    if self._ending is not None or not _is_like(self._wanted, place):
                        stop(self._ending or EndAgent(ExitCode.PREEMPTED, self._why()))
                        await task
                        return None
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
            return task.result()
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)

    def _lost(self, place: int, reason: str) -> None:
        """Inform the registrar, which may not see it yet, so that the other nodes are free."""
        wanted = self._wanted
        if wanted is not None and place < len(wanted.members):
            self._connection.send(m.MemberGone(wanted.members[place], reason))

    def _why(self) -> str:
        if self._wanted is None:
            return self._why_free
        return f"it is to be in another one (led at {self._wanted.host})"

    def _prepare(self, beside: SpawnerLaunch | None = None) -> SpawnerLaunch:
        """A spawner that has not begun; it imports torch without further orders."""
        if self._launch is None:
            self._launch = SpawnerLaunch(beside)
        return self._launch

    def _park(self, beside: SpawnerLaunch | None = None) -> None:
        """Prepare a spawner with all imports and standbys, so that the next place costs no import.

        ``beside``: the spawner of the present place.
        """
        launch, settings = self._prepare(beside), self._own
        self._next_dir = self._next_dir or self._make_dir()
        setup = replace(self._setup, settings=settings, runtime_dir=self._next_dir)
        launch.configure(
            spawner_configuration(setup, waits=True),
            min(standbys_of(settings), settings.workers_per_replica),
            threads_per_worker(settings, setup.machine),
        )

    def _make_dir(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="ftrun-", dir=self._setup.runtime_dir.parent))

    def _node(self) -> Node:
        name, workers = socket.gethostname(), self._own.workers_per_replica
        return Node("lead", name, self._setup.machine.host, workers, 0, is_placed=True)

    def _rendezvous(self, place: m.TeamPlace) -> Rendezvous:
        size = len(place.members)
        host, port = split_address(place.address)
        return Rendezvous(
            size, size, place.place, host, port, is_static=True, stated_by="the lighthouse",
            join_timeout_s=math.inf, connect_timeout_s=math.inf,
        )  # fmt: skip


class Leading:
    """This node leads a group of nodes, until the group or the role ends."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._agent: Agent | None = None
        self._is_to_end = False

    async def run(self, setup: AgentSetup, make: MakeAgent) -> EndAgent | None:
        """Return how the job, or this node, has ended; None: only the group has."""
        lead, ending = self._lead, None
        try:
            ending = await first_team(setup.settings, lead)
            if ending is None and not self._is_to_end:
                own = replace(setup, settings=lead.settings(setup.settings))
                ending = await self._train(make(own, lead))
            return ending
        finally:
            # A node that ends alone does not end the others.
            is_jobs = ending is not None and ending.exit_code not in OF_ONE_NODE
            await lead.close(ending if is_jobs else None)

    async def _train(self, agent: Agent) -> EndAgent | None:
        lead, self._agent = self._lead, agent
        lead.attach(agent)
        try:
            ending = await agent.run()
        finally:
            self._agent = None
            lead.detach()
            await agent.close()
        goes_on = lead.leaver is not None and ending.exit_code in OF_ONE_NODE
        return None if ending.again is not None or goes_on else ending

    def stop(self, why: EndAgent) -> None:
        """The group is dissolved: end what runs, and leave the job to others."""
        self._is_to_end = True
        if self._agent is not None:
            text = f"This node leads no replica group now: {why.reason}."
            self._agent.handle(TeamChanged(text))
        else:
            self._lead.interrupt("")


def _is_like(wanted: m.TeamPlace | None, place: m.TeamPlace) -> bool:
    """Whether the wanted role is the present one, perhaps with a lost node replaced by another."""
    if wanted is None:
        return False
    now = (wanted.team, wanted.place, wanted.address)
    return now == (place.team, place.place, place.address)
