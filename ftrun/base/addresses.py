"""``HOST:PORT``: split, checked, normalized.

Not here: whether anything answers at an address (protocol/handshake.py, agent/devices.py).
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from ftrun.base.defaults import BIND
from ftrun.base.errors import UserError

PORT_MAX = 65535
LOOPBACK = "127.0.0.1"
HOSTS_TRIED_MAX = 8
ANY_HOST = ("0.0.0.0", "::")
"""A server that is bound to one of these listens on every interface."""
_SOMEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): the interface that leads there is the one to the net."""


def split_address(text: str) -> tuple[str, int]:
    """``host:port`` in two; the host of an IPv6 address may stand in brackets.

    Raises:
        ValueError: it has another form.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or "/" in host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} is not an address of the form host:port")
    return host, int(port)


def without_scheme(text: str) -> str:
    """``HOST:PORT`` of a URL; schemes are written in any case."""
    scheme, mark, rest = text.partition("://")
    is_web = bool(mark) and scheme.lower() in ("http", "https")
    return (rest if is_web else text).rstrip("/")


def join_address(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, option: str) -> tuple[str, int]:
    """An option's ``HOST:PORT`` in two; ``http://`` in front and a ``/`` behind are ignored.

    ``https://`` too: whether TLS is used is for other options to say.

    Raises:
        UserError: no host, no port, or a port above 65535.
    """
    try:
        return split_address(without_scheme(text))
    except ValueError:
        raise UserError(
            f"{option} {text!r} is not HOST:PORT. For example: {option} {BIND}."
        ) from None


def normal_address(text: str | None) -> str | None:
    """``--lighthouse`` as plain HOST:PORT, or several of them after one another."""
    if text is None:
        return None
    return ",".join(join_address(*parse_address(x, "--lighthouse")) for x in text.split(","))


def is_loopback(host: str) -> bool:
    """True if no other machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_name(host: str) -> bool:
    """True if ``host`` is a name that means this machine alone.

    Debian's /etc/hosts gives a machine's own name the address 127.0.1.1, maybe beside another one.
    """
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return host not in found and any(map(is_loopback, found))


def address_towards(hosts: Sequence[str]) -> str | None:
    """The numeric address of the interface that leads to the first of ``hosts`` that is known.

    Never a loopback address, whatever /etc/hosts says of names. Where none is known it is that of
    the default route, or the only other one; None: no interface leads anywhere, or several may.
    """
    for host in hosts[:HOSTS_TRIED_MAX]:
        rows = []
        with contextlib.suppress(OSError):
            rows = socket.getaddrinfo(host, _SOMEWHERE[1], type=socket.SOCK_DGRAM)
        for family, _, _, _, at in rows:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(at)  # a datagram socket: nothing is sent
                found = str(probe.getsockname()[0])
                if not is_loopback(found):
                    return found
    found = own_host()
    if not is_loopback(found):
        return found
    others = {name: at for name, at in reversed(_own_addresses()) if not is_loopback(at)}
    return next(iter(others.values())) if len(others) == 1 else None


def interface_address(wanted: str) -> str:
    """The numeric address of an interface of this machine: by its name, or in a network (CIDR).

    Raises:
        UserError: there is none.
    """
    found = _own_addresses()
    first = wanted.partition(",")[0]  # GLOO_SOCKET_IFNAME may be a list
    try:
        network = ipaddress.ip_network(wanted, strict=False) if "/" in wanted else None
    except ValueError as error:
        raise UserError(f"--interface {wanted!r}: {error}. Nothing was started.") from None
    for name, address in found:
        if name == first or (network is not None and ipaddress.ip_address(address) in network):
            return address
    there = ", ".join(f"{name} ({address})" for name, address in found)
    raise UserError(
        f"--interface {wanted}: this node has no such interface or address. Nothing was started. "
        f"It has: {there or 'none'}. Without --interface, GLOO_SOCKET_IFNAME counts."
    )


def interface_of(address: str) -> str:
    """The name of the interface that has this address; "": none has."""
    return next((name for name, own in _own_addresses() if own == address), "")


def _own_addresses() -> list[tuple[str, str]]:
    """Each interface's name with each of its addresses: IPv4 first, and none of one link alone."""
    import psutil  # here, because most processes of ftrun ask for none

    rows = psutil.net_if_addrs().items()
    return [
        (name, row.address)
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, own in rows
        for row in own
        if row.family == family and "%" not in row.address
    ]


def own_host() -> str:
    """The numeric address at which other machines reach this one; loopback without a network.

    That of the interface that leads to the net, or of the first one in a network of its own.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)  # a datagram socket: nothing is sent
        except OSError:  # no interface leads anywhere
            own = (address for _, address in _own_addresses())
            return next((address for address in own if not is_loopback(address)), LOOPBACK)
        return str(probe.getsockname()[0])
