"""The meeting place of a group's nodes, as this node sees it: its own address there, the port.

It is needed before anything is loaded. Not here: which node leads (main.py), the port itself
(port.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import replace

from ftrun.agent.devices import own_address
from ftrun.base.addresses import (
    interface_address,
    is_loopback,
    is_loopback_name,
    join_address,
    own_host,
)
from ftrun.base.errors import UserError
from ftrun.config.rendezvous import Rendezvous
from ftrun.config.settings import RunSettings


def with_own_address(settings: RunSettings) -> RunSettings:
    """The settings with the address at which the other nodes reach this one.

    Raises:
        UserError: the meeting place's name is not known, or node 0 must serve it and does not have
        the address.
    """
    rendezvous = settings.rendezvous
    assert rendezvous is not None
    served_at = address_here(rendezvous)
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


def address_here(rendezvous: Rendezvous) -> str | None:
    """The numeric address of the meeting place, if it is this node's.

    Debian's /etc/hosts gives a machine's own name a loopback address, which other machines cannot
    reach.

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


def free_port(host: str) -> int:
    """A port that is free at this address now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        return int(server.getsockname()[1])


def is_free(host: str, rendezvous: Rendezvous) -> bool:
    """Whether this node can serve the place. If not, another agent of this machine does.

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
