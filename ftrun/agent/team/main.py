"""Who leads a group on several nodes, and a node's part of it from start to end.

The node that can serve the meeting place leads: that is how the nodes find each other without
knowing more than ``--rdzv-endpoint``. Not here: an agent by itself (agent/main.py).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftrun.agent.devices import Machine, own_address
from ftrun.agent.launch import SpawnerLaunch
from ftrun.agent.signals import catch_signals
from ftrun.agent.team.door import Door
from ftrun.agent.team.hand import Hand, empty
from ftrun.agent.team.lead import Lead, LeadingAgent, say
from ftrun.base.addresses import (
    interface_address,
    is_loopback,
    is_loopback_name,
    join_address,
    own_host,
)
from ftrun.base.errors import ExitCode, UserError
from ftrun.config.rendezvous import Rendezvous
from ftrun.config.settings import RunSettings
from ftrun.core.agent.events import EndAgent
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.signals import Reaction
from ftrun.core.forms import Form
from ftrun.core.teams.nodes import Node

MakeAgent = Callable[[RunSettings, SpawnerLaunch, Lead, Path], LeadingAgent]


def with_own_address(settings: RunSettings) -> RunSettings:
    """The settings with the address at which the other nodes reach this one.

    Raises:
        UserError: the meeting place's name is not known, or node 0 is to serve it and is not there.
    """
    rendezvous = settings.rendezvous
    assert rendezvous is not None
    served_at = _address_here(rendezvous)
    if served_at is None and rendezvous.is_static and rendezvous.rank == 0:
        raise UserError(
            f"{rendezvous.stated_by} {rendezvous.host}: this is node 0 (--node-rank 0), where the "
            "nodes meet, and that is no address of this node. Nothing was started. Give the "
            "address of node 0 on every node, and another --node-rank here if this is not it."
        )
    if settings.interface:
        return replace(settings, local_addr=interface_address(settings.interface))
    if settings.local_addr is not None:
        return settings
    towards = own_address(join_address(rendezvous.host, rendezvous.port))
    return replace(settings, local_addr=served_at or towards)


def open_token(rendezvous: Rendezvous) -> str:
    """The token of a team without a secret: it keeps other jobs out, and nobody else."""
    return hashlib.sha256(f"ftrun team {rendezvous.run_id}".encode()).hexdigest()


async def run_in_team(
    settings: RunSettings,
    machine: Machine,
    token: str,
    launch: SpawnerLaunch,
    make: MakeAgent,
    runtime_dir: Path,
) -> EndAgent:
    """Lead the group, or be a hand, to the end of the job."""
    rendezvous = settings.rendezvous
    assert rendezvous is not None
    if settings.token_file is None:
        token = open_token(rendezvous)
    host = _address_here(rendezvous)
    is_lead = host is not None and not (rendezvous.is_static and rendezvous.rank)
    if host is not None and is_lead and _is_free(host, rendezvous):
        name, own = socket.gethostname(), settings.workers_per_replica
        node = Node("lead", name, machine.host, own, rendezvous.rank)
        door = Door(token, settings.tls)
        lead = Lead(rendezvous, node, door)
        # A name that means this machine alone here is another of its addresses elsewhere.
        is_own_name = is_loopback_name(rendezvous.host) and rendezvous.host != "localhost"
        await door.start("0.0.0.0" if is_own_name else host, rendezvous.port)
        try:
            return await _lead(settings, lead, launch, make, runtime_dir)
        finally:
            await door.stop()
    hand = Hand(settings, rendezvous, machine, token, launch, runtime_dir, say)
    ending = await hand.run()
    what = "The job has ended" if hand.job_has_ended else "This node ends"
    say(f"{what} with exit code {ending.exit_code}: {ending.reason}.")
    return ending


async def _lead(
    settings: RunSettings,
    lead: Lead,
    launch: SpawnerLaunch,
    make: MakeAgent,
    runtime_dir: Path,
) -> EndAgent:
    rendezvous = settings.rendezvous
    assert rendezvous is not None
    place = join_address(rendezvous.host, rendezvous.port)
    who = "A node needs the token" if settings.token_file else "Who reaches that port can join"
    say(f"The {rendezvous.size.replace(':', ' to ')} nodes meet at {place}, on this one. {who}.")
    ending = await first_team(settings, lead)
    try:
        while ending is None or ending.again is Form.RESIZED:
            if ending is not None:
                launch = SpawnerLaunch()
                empty(runtime_dir)
            agent = make(lead.settings(settings), launch, lead, runtime_dir)
            lead.attach(agent)
            try:
                ending = await agent.run()
            finally:
                lead.detach()
                await agent.close()
                settings = replace(settings, restarts_spent=agent.restarts)
                launch.end()
        return ending
    finally:
        bug = EndAgent(ExitCode.BUG, "the first node's ftrun has failed")
        await lead.close(ending or bug)


async def first_team(settings: RunSettings, lead: Lead) -> EndAgent | None:
    """Wait for the nodes; a reason to end where too few come, or at a signal."""
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


def _address_here(rendezvous: Rendezvous) -> str | None:
    """The numeric address of the meeting place, if it is this node's.

    Debian's /etc/hosts gives a machine's own name a loopback address, at which nobody else gets.

    Raises:
        UserError: the name is not known.
    """
    host = rendezvous.host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(
            f"{rendezvous.stated_by} {host}: the host name is not known ({error.strerror}). "
            "Nothing was started."
        ) from None
    own = []
    for family, _, _, _, at in found:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((at[0], 0))
            own.append(str(at[0]))
    if own and host != "localhost" and is_loopback_name(host):
        return own_host()
    return next((one for one in own if not is_loopback(one)), own[0] if own else None)


def _is_free(host: str, rendezvous: Rendezvous) -> bool:
    """Whether this node can serve the place. Else another agent of this machine does.

    Raises:
        UserError: node 0 has to serve it, and cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, rendezvous.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and not (rendezvous.is_static and rendezvous.rank == 0):
            return False
        first = "If node 0 of this job runs here already, give another --node-rank. Else give"
        raise UserError(
            f"{rendezvous.stated_by} {join_address(host, rendezvous.port)}: "
            f"{os.strerror(error.errno or 0).lower()}. Nothing was started. "
            f"{first if error.errno == errno.EADDRINUSE else 'Give'} another port, the same on "
            "every node."
        ) from None
    return True
