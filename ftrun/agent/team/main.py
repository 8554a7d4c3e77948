"""The election of a group's lead, and a node's part in the group from start to end.

The node that can serve the meeting place leads. So the nodes find each other and need only
``--rdzv-endpoint``. Not here: an agent by itself (agent/main.py).
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ftrun.agent.devices import Machine
from ftrun.agent.launch import SpawnerLaunch
from ftrun.agent.setup import AgentSetup
from ftrun.agent.signals import catch_signals
from ftrun.agent.team.door import Door
from ftrun.agent.team.hand import Hand, empty
from ftrun.agent.team.lead import Lead, say
from ftrun.agent.team.meeting import address_here, free_port, is_free
from ftrun.agent.team.port import TeamPort
from ftrun.base.addresses import is_loopback_name, join_address, parse_address
from ftrun.base.errors import ExitCode, PeerError
from ftrun.config.forms import why_no_memory_snapshots
from ftrun.config.rendezvous import Rendezvous
from ftrun.config.settings import RunSettings
from ftrun.core.agent.events import EndAgent
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.signals import Reaction
from ftrun.core.forms import Form
from ftrun.core.teams.nodes import Node

if TYPE_CHECKING:
    from ftrun.agent.shell import Agent

ANY, LOOPBACK = "0.0.0.0", "127.0.0.1"
Elect = Callable[[str, str, float], AbstractAsyncContextManager[str]]
"""From a register, an address of this node and a limit: the address of the node that serves."""
MakeAgent: TypeAlias = "Callable[[AgentSetup, Lead], Agent]"


def open_token(rendezvous: Rendezvous) -> str:
    """The token of a team without a secret: it keeps other jobs out, but is no protection."""
    return hashlib.sha256(f"ftrun team {rendezvous.run_id}".encode()).hexdigest()


async def run_in_team(setup: AgentSetup, make: MakeAgent, elect: Elect | None = None) -> EndAgent:
    """Lead the group, or be a hand, to the end of the job."""
    settings, rendezvous = setup.settings, setup.settings.rendezvous
    assert rendezvous is not None
    token = open_token(rendezvous) if settings.token_file is None else setup.token
    async with AsyncExitStack() as stack:
        try:
            rendezvous, host = await _meeting(rendezvous, setup.machine, elect, stack)
        except PeerError as error:
            say(f"{error}. Nothing was started.")
            return EndAgent(ExitCode.LIGHTHOUSE_UNREACHABLE, str(error))
        setup = replace(setup, settings=replace(settings, rendezvous=rendezvous))
        if host is not None:
            return await _lead_at(setup, rendezvous, make, host, Door(token, settings.tls))
        hand = Hand(replace(setup, token=token), rendezvous, say)
        ending = await hand.run()
        what = "The job has ended" if hand.job_has_ended else "This node ends"
        say(f"{what} with exit code {ending.exit_code}: {ending.reason}.")
        return ending


async def _meeting(
    rendezvous: Rendezvous, machine: Machine, elect: Elect | None, stack: AsyncExitStack
) -> tuple[Rendezvous, str | None]:
    """The meeting place, and the address at which this node serves it; None: another node does."""
    if not rendezvous.register:
        host = address_here(rendezvous)
        is_lead = host is not None and not (rendezvous.is_static and rendezvous.rank)
        return rendezvous, host if host and is_lead and is_free(host, rendezvous) else None
    assert elect is not None
    own, stated = join_address(machine.host, free_port(machine.host)), rendezvous
    electing = elect(rendezvous.register, own, rendezvous.connect_timeout_s)
    address = await stack.enter_async_context(electing)
    host, port = parse_address(address, stated.stated_by)
    say(f"The etcd at {join_address(stated.host, stated.port)} names {address} to meet at.")
    return replace(rendezvous, host=host, port=port), machine.host if address == own else None


async def _lead_at(
    setup: AgentSetup, rendezvous: Rendezvous, make: MakeAgent, host: str, door: Door
) -> EndAgent:
    """Serve the meeting place at this address, and lead the nodes that join."""
    settings, own = setup.settings, setup.settings.workers_per_replica
    node = Node("lead", socket.gethostname(), setup.machine.host, own, rendezvous.rank)
    port = TeamPort()
    # A restart of all costs more than a wait, so a silence may last as long as a dead stream's.
    shared = None if why_no_memory_snapshots(settings) else settings.snapshot_path
    lead = Lead(rendezvous, node, door, 2 * settings.heartbeat_timeout_s, port, shared)
    # A name that is a loopback name here may be another address of this machine elsewhere.
    is_own_name = is_loopback_name(rendezvous.host) and rendezvous.host != "localhost"
    try:
        await _listen(door, port, ANY if is_own_name else host, node.host, rendezvous.port)
        return await _lead(setup, rendezvous, lead, make)
    finally:
        await door.stop()
        await port.close()


async def _listen(door: Door, port: TeamPort, host: str, own: str, number: int) -> None:
    """Accept the other nodes.

    ``MASTER_ADDR`` may be another address of this node (--interface): ``own``.

    Raises:
        OSError: the port is taken.
    """
    port.door = LOOPBACK, await door.start(LOOPBACK)
    await port.start([host] if host in (ANY, own) else [host, own], number)


async def _lead(setup: AgentSetup, rendezvous: Rendezvous, lead: Lead, make: MakeAgent) -> EndAgent:
    settings = setup.settings
    place = join_address(rendezvous.host, rendezvous.port)
    who = "A node needs the token" if settings.token_file else "Who reaches that port can join"
    say(f"The {rendezvous.size.replace(':', ' to ')} nodes meet at {place}, on this one. {who}.")
    ending = await first_team(settings, lead)
    try:
        while ending is None or ending.again is Form.RESIZED:
            if ending is not None:
                setup = replace(setup, launch=SpawnerLaunch())
                empty(setup.runtime_dir)
            agent = make(replace(setup, settings=lead.settings(settings)), lead)
            lead.attach(agent)
            try:
                ending = await agent.run()
            finally:
                lead.detach()
                await agent.close()
                settings = replace(settings, restarts_spent=agent.restarts)
                setup.launch.end()
        return ending
    finally:
        bug = EndAgent(ExitCode.BUG, "the first node's ftrun has failed")
        await lead.close(ending or bug)


async def first_team(settings: RunSettings, lead: Lead) -> EndAgent | None:
    """Wait for the nodes. Returns a reason to end if too few join, or at a signal."""
    rules, numbers = settings.signal_rules(), []

    def signalled(number: int) -> None:
        if rules.reaction(number) in (Reaction.LEAVE, Reaction.STOP):
            numbers.append(number)
            lead.interrupt(signal_name(number))

    catch_signals(rules, signalled)
    await lead.first()
    if numbers:
        say(f"{lead.gave_up}: nothing was started.")
        return EndAgent(rules.exit_code(numbers[0]), lead.gave_up)
    if lead.gave_up:
        say(f"{lead.gave_up}. Nothing was started.")
        return EndAgent(ExitCode.NO_QUORUM, lead.gave_up)
    return None
