"""A node of a job that an engine has started: its keeper, with its certificates and address.

Not here: what a keeper does (engines/keeper.py), an ordinary run (start.py).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ftrun.agent.launch import handle_signals
from ftrun.base import linux
from ftrun.base.addresses import (
    LOOPBACK,
    address_towards,
    interface_address,
    is_loopback,
    join_address,
)
from ftrun.base.errors import UserError
from ftrun.config.checks import check
from ftrun.config.settings import RunSettings, check_writable
from ftrun.engines.keeper import Keeper, say
from ftrun.engines.meeting import Meeting
from ftrun.engines.place import Place


def keep_node(place: Place, settings: RunSettings, environ: Mapping[str, str]) -> int:
    """Run this node's part to its end. Returns the exit code.

    ``environ``: for the agent, with the engine's variables.

    Raises:
        UserError: a setting or this machine is wrong; nothing was started.
    """
    handle_signals()
    check(replace(settings, lighthouse=join_address(place.nodes[0], 0)))
    meeting = place.meeting(settings.job_log_dir.absolute())
    check_writable(meeting, "--log-dir")
    meeting.chmod(0o700)
    wanted = settings.interface
    host = interface_address(wanted) if wanted else address_towards(place.others)
    if not place.others:
        host = LOOPBACK
    elif host is None or is_loopback(host):
        raise UserError(
            f"No interface of {place.own_name} leads to another node of this job "
            f"({', '.join(place.others[:3])}). Nothing was started. Check the nodes' names in "
            "/etc/hosts or DNS, or state the interface: --interface NAME."
        )
    linux.become_subreaper()  # so that the keeper can reap what a dead agent leaves behind
    there = Meeting(meeting, place.node, host)
    keeper = Keeper(place, settings, environ, sys.argv[1:], there, _certificates)
    return asyncio.run(keeper.run())


def _certificates(directory: Path, hosts: tuple[str, ...]) -> None:
    """Write certificates for this try of the job, in a directory that only its user can read."""
    try:
        from ftrun.tools.certs import write_certificates
    except ModuleNotFoundError:
        say(
            "The connections of this job's nodes are not encrypted, because the package "
            "cryptography is missing (pip install 'ftrun[lighthouse]')."
        )
        return
    write_certificates(directory, hosts)
    (directory / "ca.key").unlink()  # no further certificates can be issued
